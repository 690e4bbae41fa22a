//! The Lambda function for batch jobs: processes the files named by S3 events and state machines, and rows from data
//! warehouses and streams.

use std::{
    env,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kivu::{
    cloud::Cloud,
    config::{Config, LogFormat, OtlpConfig},
    model::Model,
    telemetry::{
        Otlp, start_log,
        trace::{Trace, X_RAY},
    },
};
use kivu_http::batch_requests;
use kivu_jobs::{Handler, Sinks};
use lambda_http::{
    Error, LambdaEvent,
    lambda_runtime::{self, Diagnostic},
    service_fn,
};
use serde_json::Value;

/// Deadlines beyond this are invalid: the emulator's are in the past, others are years ahead.
const MAX_TIME_LEFT: Duration = Duration::from_hours(24);
/// Time limit for sending traces and metrics before the response, after which Lambda may freeze the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Error> {
    start_log(LogFormat::Json);
    let loaded = load().inspect_err(|error| tracing::error!(error = error.chain(), "cannot start"));
    let (function, otlp) = loaded?;
    let function = Arc::new(function);
    let handler = service_fn(move |event: LambdaEvent<Value>| {
        let (function, otlp) = (Arc::clone(&function), otlp.clone());
        async move {
            let LambdaEvent {
                payload, context, ..
            } = event;
            let x_ray = context.xray_trace_id.as_deref();
            let trace = Trace::read(|name| x_ray.filter(|_| name == X_RAY));
            let handled = function
                .handle(payload, deadline(context.deadline), trace)
                .await;
            if let Some(otlp) = otlp {
                otlp.flush(FLUSH_TIMEOUT).await;
            }
            handled.map_err(|error| diagnostic(&error))
        }
    });
    lambda_runtime::run(handler).await
}

fn load() -> kivu::Result<(Handler, Option<Otlp>)> {
    let variables = Config::variables();
    let config = Config::load(None, &variables)?;
    let otlp = OtlpConfig::new(&variables);
    let name = env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_else(|_| "batch".to_owned());
    let otlp = otlp.map(|config| Otlp::start(&config, &name)).transpose()?;
    otlp.as_ref().map_or(Ok(()), Otlp::install)?;
    let cloud = Cloud {
        store: Some(kivu_aws::store(&config)),
        event_bus: Some(kivu_aws::event_bus),
        queue: Some(kivu_aws::queue),
        ..Cloud::default()
    };
    // Without PostgreSQL, which would make the archive larger.
    let sinks = Sinks {
        s3_vectors: Some(kivu_sinks::s3_vectors),
        open_search: Some(kivu_sinks::open_search),
        ..Sinks::default()
    };
    let models = Model::open_all(&config, &cloud)?;
    let requests = batch_requests(config.limits.clone());
    let handler = Handler::new(models, &config, cloud, sinks)?
        .with_parquet(kivu_parquet::parquet())
        .with_requests(requests);
    Ok((handler, otlp))
}

/// The time at which Lambda ends the function, from milliseconds since 1970; `None` if implausible.
fn deadline(ms: u64) -> Option<Instant> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let left = Duration::from_millis(ms).checked_sub(now)?;
    (left < MAX_TIME_LEFT).then(|| Instant::now() + left)
}

/// Converts an error, with a type name for a state machine's `Retry` and `Catch`.
fn diagnostic(error: &kivu::Error) -> Diagnostic {
    tracing::error!(error = error.chain(), "cannot process the event");
    let name = match error {
        kivu::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => {
            "Kivu.Unfinished"
        }
        kivu::Error::Io { .. } => "Kivu.Passing",
        _ => "Kivu.Failed",
    };
    Diagnostic {
        error_type: name.into(),
        error_message: error.chain(),
    }
}
