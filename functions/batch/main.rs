//! The Lambda function for batch jobs: processes the files named by S3 events and state machines, and rows from data
//! warehouses and streams.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kivu::{
    api::{App, BatchObjects, Files},
    batch::Handler,
    config::{Config, LogFormat},
    model::Model,
    telemetry::start_log,
};
use lambda_http::{
    Error, LambdaEvent,
    lambda_runtime::{self, Diagnostic},
    service_fn,
};
use serde_json::Value;

/// Deadlines beyond this are invalid: the emulator's are in the past, others are years ahead.
const MAX_TIME_LEFT: Duration = Duration::from_hours(24);

#[tokio::main]
async fn main() -> Result<(), Error> {
    start_log(LogFormat::Json);
    let function = load().inspect_err(|error| tracing::error!(error = error.chain(), "cannot start"))?;
    let function = Arc::new(function);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| {
        let function = Arc::clone(&function);
        async move {
            let LambdaEvent { payload, context, .. } = event;
            function.handle(payload, deadline(context.deadline)).await.map_err(|error| diagnostic(&error))
        }
    }))
    .await
}

fn load() -> kivu::Result<Handler> {
    let config = Config::load(None, &Config::variables())?;
    let models = Model::open_all(&config)?;
    let batches = Files::open(&config)?.and_then(|files| {
        let app = App::new(models.clone(), config.limits.clone());
        BatchObjects::new(app, files, Duration::from_millis(config.batch.save_ms))
    });
    Ok(Handler::new(models, &config)?.with_jobs(batches.map(|batches| Box::new(batches) as _)))
}

/// The time at which Lambda ends the function, from milliseconds since 1970; `None` if implausible.
fn deadline(ms: u64) -> Option<Instant> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_millis(ms).checked_sub(now)?;
    (left < MAX_TIME_LEFT).then(|| Instant::now() + left)
}

/// Converts an error, with a type name for a state machine's `Retry` and `Catch`.
fn diagnostic(error: &kivu::Error) -> Diagnostic {
    tracing::error!(error = error.chain(), "cannot process the event");
    let name = match error {
        kivu::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => "Kivu.Unfinished",
        kivu::Error::Io { .. } => "Kivu.Passing",
        _ => "Kivu.Failed",
    };
    Diagnostic { error_type: name.into(), error_message: error.chain() }
}
