//! The Lambda function for batch jobs: processes the files named by S3 events and state machines, and rows from data
//! warehouses and streams.

#[path = "../snapshot.rs"]
mod snapshot;
#[path = "../start.rs"]
mod start;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use kivu::{
    cloud::Cloud,
    config::{Limits, LogFormat},
    model::{Catalog, Model},
    telemetry::{
        Otlp, start_log,
        trace::{Trace, X_RAY},
    },
};
use kivu_http::batch_requests;
use kivu_jobs::{Handler, Sinks};
use lambda_http::{
    Error, LambdaEvent,
    lambda_runtime::{Diagnostic, Runtime, layers::TracingLayer},
    service_fn,
};
use serde_json::Value;
use tokio::sync::SetOnce;

use crate::{
    snapshot::{Restorable, log},
    start::{Start, time_left},
};

/// Time limit for sending traces and metrics before the response, after which Lambda may freeze the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Error> {
    start_log(LogFormat::Json);
    let function = Function::configure().inspect_err(log)?;
    let function = Arc::new(function);
    if !snapshot::is_taken() {
        function.start_telemetry().inspect_err(log)?;
        function.load().inspect_err(log)?;
    }
    let handling = Arc::clone(&function);
    let handler = service_fn(move |event: LambdaEvent<Value>| {
        let function = Arc::clone(&handling);
        async move { function.handle(event).await }
    });
    let runtime = Runtime::new(handler).layer(TracingLayer::new());
    let store = function.cloud.store.clone();
    snapshot::register(runtime, store, function).run().await
}

/// The function, from its start on.
struct Function {
    start: Start,
    cloud: Cloud,
    /// Set before the first event.
    handler: SetOnce<Handler>,
    /// The exporter of traces and metrics, if there is one; set before the first event.
    exporter: SetOnce<Option<Otlp>>,
}

impl Function {
    fn configure() -> kivu::Result<Self> {
        let start = Start::read("batch")?;
        Ok(Self {
            cloud: Cloud {
                store: Some(kivu_aws::store(&start.config)),
                event_bus: Some(kivu_aws::event_bus),
                queue: Some(kivu_aws::queue),
                ..Cloud::default()
            },
            start,
            handler: SetOnce::new(),
            exporter: SetOnce::new(),
        })
    }

    fn start_telemetry(&self) -> kivu::Result<()> {
        let otlp = self.start.exporter()?;
        otlp.as_ref().map_or(Ok(()), Otlp::install)?;
        // It is called once.
        let _ = self.exporter.set(otlp);
        Ok(())
    }

    async fn handle(&self, event: LambdaEvent<Value>) -> Result<Value, Diagnostic> {
        let LambdaEvent {
            payload, context, ..
        } = event;
        let x_ray = context.xray_trace_id.as_deref();
        let trace = Trace::read(|name| x_ray.filter(|_| name == X_RAY));
        let handler = self.handler.wait().await;
        let handled = handler
            .handle(
                payload,
                time_left(context.deadline).map(|left| Instant::now() + left),
                trace,
            )
            .await;
        if let Some(otlp) = self.exporter.wait().await {
            otlp.flush(FLUSH_TIMEOUT).await;
        }
        handled.map_err(|error| diagnostic(&error))
    }
}

impl Restorable for Function {
    fn load(&self) -> kivu::Result<Arc<Catalog>> {
        // Without PostgreSQL, which would make the archive larger.
        let sinks = Sinks(&[kivu_sinks::S3_VECTORS, kivu_sinks::OPEN_SEARCH]);
        let (config, cloud) = (&self.start.config, &self.cloud);
        let models = Model::open_all(config, cloud)?;
        let catalog = Catalog::of_models(models.clone());
        let handler = Handler::new(models, config, cloud.clone(), sinks)?
            .with_parquet(kivu_parquet::parquet())
            .with_requests(batch_requests(config.limits.clone()));
        // It is called once.
        let _ = self.handler.set(handler);
        Ok(Arc::new(catalog))
    }

    fn limits(&self) -> &Limits {
        &self.start.config.limits
    }

    fn start(self: Arc<Self>) -> BoxFuture<'static, Result<(), Error>> {
        async move { Ok(self.start_telemetry().inspect_err(log)?) }.boxed()
    }
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
