//! What both functions read at their start, and about each invocation.

use std::{env, time::Duration};

use kivu::{
    clock,
    config::{Config, OtlpConfig},
    telemetry::Otlp,
};

/// Deadlines beyond this are invalid: the emulator's are in the past, others are years ahead.
const MAX_TIME_LEFT: Duration = Duration::from_hours(24);

/// A function's name and settings.
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) config: Config,
    otlp: Option<OtlpConfig>,
}

impl Start {
    /// Reads the environment. The function is called `name` outside Lambda.
    pub(crate) fn read(name: &str) -> kivu::Result<Self> {
        let variables = Config::variables()?;
        Ok(Self {
            config: Config::load(None, &variables)?,
            name: env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_else(|_| name.to_owned()),
            otlp: OtlpConfig::new(&variables),
        })
    }

    /// Starts the exporter of traces and metrics, if there is one.
    pub(crate) fn exporter(&self) -> kivu::Result<Option<Otlp>> {
        let otlp = self.otlp.as_ref();
        otlp.map(|config| Otlp::start(config, &self.name))
            .transpose()
    }
}

/// The time until Lambda ends the function, from milliseconds since 1970; `None` if implausible.
pub(crate) fn time_left(deadline: u64) -> Option<Duration> {
    let left = Duration::from_millis(deadline).checked_sub(clock::since_1970())?;
    (left < MAX_TIME_LEFT).then_some(left)
}
