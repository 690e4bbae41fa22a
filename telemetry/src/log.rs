//! The log.

use std::{
    io::{self, IsTerminal},
    panic,
};

use tracing_subscriber::EnvFilter;

use kivu_base::config::LogFormat;

/// Writes the log to standard error in the given format; `RUST_LOG` is the filter. Later calls have no effect.
pub fn start_log(format: LogFormat) {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let filter = set("RUST_LOG").unwrap_or_else(|| "warn,aws_config=error,kivu=info".to_owned());
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr);
    // Fails if another subscriber is installed, which is kept.
    let _ = match format {
        LogFormat::Text => log
            .with_ansi(io::stderr().is_terminal() && set("NO_COLOR").is_none())
            .try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    // A panic message may contain request text; its location does not.
    panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::error!(place, "panicked");
    }));
}
