//! Traces and metrics over OTLP, for the OpenTelemetry Collector and everything else that receives it.
//!
//! Exports run on the SDK's threads, with bounded queues: a receiver that is slow or unreachable loses data, and delays
//! no request.

mod client;
mod metrics;
pub mod spans;

use std::{sync::Arc, thread, time::Duration};

use ::metrics::Recorder;
use opentelemetry::{KeyValue, metrics::MeterProvider, trace::TracerProvider};
use opentelemetry_otlp::{
    MetricExporter, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider, Temporality},
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider},
};
use tokio::{runtime::Handle, sync::Semaphore, time::timeout};

use self::{client::Client, metrics::Instruments};
use super::request::record_reports;
use kivu_base::{
    Error, Result,
    config::{OtlpConfig, OtlpReceiver},
};

/// The instrumentation scope.
const SCOPE: &str = "kivu";
/// A failed export is repeated once, since collectors refuse requests while they restart. The next export follows soon.
const RETRIES: usize = 1;
/// Time limit for sending the last traces and metrics.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The exporters of traces and metrics.
#[derive(Clone, Debug)]
pub struct Otlp {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    /// One permit, so that flushes that take long do not add up.
    flushes: Arc<Semaphore>,
}

/// A value that is read when metrics are exported.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The metric's name.
    pub name: &'static str,
    /// The label `model`.
    pub model: Option<String>,
    /// The value.
    pub value: f64,
}

impl Otlp {
    /// Starts the exporters, which send their requests on the current Tokio runtime. Requests and jobs are traced from now on.
    ///
    /// # Errors
    /// If an exporter cannot be made, or the process has one already.
    pub fn start(config: &OtlpConfig, default_service: &str) -> Result<Self> {
        record_reports();
        let resource = resource(config, default_service);
        let traces = config
            .traces
            .as_ref()
            .map(|to| traces(config, to, resource.clone()))
            .transpose()?;
        let metrics = config
            .metrics
            .as_ref()
            .map(|to| metrics(config, to, resource))
            .transpose()?;
        Ok(Self {
            traces,
            metrics,
            flushes: Arc::new(Semaphore::new(1)),
        })
    }

    /// Records this process's metrics for OTLP only.
    ///
    /// # Errors
    /// If the process has an exporter already.
    pub fn install(&self) -> Result<()> {
        self.recorder().map_or(Ok(()), |recorder| {
            ::metrics::set_global_recorder(recorder).map_err(|error| {
                Error::inference_because("cannot register the metrics recorder", error)
            })
        })
    }

    /// A recorder for the metrics that this process records.
    pub fn recorder(&self) -> Option<impl Recorder + Send + Sync + 'static> {
        Some(metrics::recorder(Instruments(
            self.metrics.as_ref()?.meter(SCOPE),
        )))
    }

    /// Exports the metrics with these names, which `read` returns.
    pub fn observe(
        &self,
        names: &[&'static str],
        read: impl Fn() -> Vec<Reading> + Clone + Send + Sync + 'static,
    ) {
        let Some(provider) = &self.metrics else {
            return;
        };
        let meter = provider.meter(SCOPE);
        for name in names.iter().copied() {
            let read = read.clone();
            let gauge = meter
                .f64_observable_gauge(name)
                .with_callback(move |observer| {
                    for reading in read().into_iter().filter(|reading| reading.name == name) {
                        let label = reading.model.map(|model| KeyValue::new("model", model));
                        observer.observe(reading.value, label.as_slice());
                    }
                });
            gauge.build();
        }
    }

    /// Sends what was recorded, and waits at most `limit` for it.
    pub async fn flush(&self, limit: Duration) {
        let Self {
            traces, metrics, ..
        } = self.clone();
        self.in_background(limit, move || {
            traces.map(|traces| traces.force_flush());
            metrics.map(|metrics| metrics.force_flush());
        })
        .await;
    }

    /// Sends what was recorded, waits at most two seconds for it, and stops the exporters.
    pub async fn stop(self) {
        let limit = STOP_TIMEOUT;
        let Self {
            traces, metrics, ..
        } = self.clone();
        self.in_background(limit, move || {
            traces.map(|traces| traces.shutdown_with_timeout(limit));
            metrics.map(|metrics| metrics.shutdown_with_timeout(limit));
        })
        .await;
    }

    /// Does blocking work on a thread of its own: the runtime's are for tokenization, and are waited for at its end.
    async fn in_background(&self, limit: Duration, work: impl FnOnce() + Send + 'static) {
        let flushes = Arc::clone(&self.flushes);
        let flushed = async {
            let Ok(permit) = flushes.acquire_owned().await else {
                return;
            };
            let (done, waiting) = tokio::sync::oneshot::channel();
            let started = thread::Builder::new()
                .name("otlp-flush".to_owned())
                .spawn(move || {
                    let _permit = permit;
                    work();
                    let _ = done.send(());
                });
            if started.is_ok() {
                let _ = waiting.await;
            }
        };
        // Later spans are sent in the background, or lost at the process's end.
        let _ = timeout(limit, flushed).await;
    }
}

fn resource(config: &OtlpConfig, default_service: &str) -> Resource {
    let attributes = config
        .attributes
        .iter()
        .cloned()
        .map(|(name, value)| KeyValue::new(name, value));
    let own = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", uuid::Uuid::new_v4().to_string()),
        KeyValue::new("telemetry.sdk.language", "rust"),
        KeyValue::new("telemetry.sdk.name", "opentelemetry"),
    ];
    let service = config
        .service
        .clone()
        .unwrap_or_else(|| default_service.to_owned());
    Resource::builder_empty()
        .with_attributes(own)
        .with_attributes(attributes)
        .with_service_name(service)
        .build()
}

fn traces(config: &OtlpConfig, to: &OtlpReceiver, resource: Resource) -> Result<SdkTracerProvider> {
    let exporter = sending(SpanExporter::builder().with_http(), "traces", to)?
        .build()
        .map_err(cannot_start)?;
    let queue = BatchConfigBuilder::default()
        .with_max_queue_size(config.queue.spans)
        .with_scheduled_delay(config.queue.delay)
        .with_max_export_batch_size(config.queue.export)
        .build();
    let provider = SdkTracerProvider::builder()
        .with_sampler(spans::RequestSampler {
            ratio: config.ratio,
            follows_parent: config.follows_parent,
        })
        .with_resource(resource)
        .with_span_processor(
            BatchSpanProcessor::builder(exporter)
                .with_batch_config(queue)
                .build(),
        )
        .build();
    spans::install(provider.tracer(SCOPE))?;
    Ok(provider)
}

fn metrics(config: &OtlpConfig, to: &OtlpReceiver, resource: Resource) -> Result<SdkMeterProvider> {
    let exporter = MetricExporter::builder().with_temporality(if config.has_deltas {
        Temporality::Delta
    } else {
        Temporality::Cumulative
    });
    let exporter = sending(exporter.with_http(), "metrics", to)?
        .build()
        .map_err(cannot_start)?;
    let reader = PeriodicReader::builder(exporter)
        .with_interval(config.interval)
        .build();
    Ok(SdkMeterProvider::builder()
        .with_resource(resource)
        .with_reader(reader)
        .build())
}

/// An exporter's builder that sends `what` to this receiver.
fn sending<B: WithHttpConfig + WithExportConfig>(
    builder: B,
    what: &'static str,
    to: &OtlpReceiver,
) -> Result<B> {
    let headers = to.headers.iter();
    let headers = headers.map(|(name, value)| (name.clone(), value.0.clone()));
    Ok(builder
        .with_http_client(Client::new(what, to, Handle::current())?)
        .with_retry_policy(RetryPolicy::recommended().with_max_retries(RETRIES))
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&to.url)
        .with_timeout(to.timeout)
        .with_headers(headers.collect()))
}

fn cannot_start(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::config_because("cannot start the OTLP exporter", error)
}
