//! Metrics, traces and the log.
//!
//! The functions here record metrics; the program chooses the exporter once, with [`Prometheus::install`] or
//! [`Embedded::install`], both with or without [`Otlp`]. Without one, recording does nothing. With one, or in a
//! [`RequestRecord`](request::RequestRecord), what pipelines and backends report is recorded as well. Metrics and log never contain
//! request texts.

mod buckets;
mod embedded;
pub mod fleet;
pub mod job;
mod log;
mod otlp;
mod registered;
pub mod request;
mod stages;
pub mod trace;

use std::{io, time::Duration};

use metrics::{Recorder, counter, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::layers::FanoutBuilder;

use self::buckets::BUCKETS;
pub use self::{
    embedded::Embedded,
    log::start_log,
    otlp::{Otlp, Reading},
};
use kivu_base::{Error, Result};

/// Records a response.
pub fn record_response(status: u16, took: Duration) {
    counter!("kivu_requests_total").increment(1);
    let class = match status {
        ..400 => "2xx",
        400..500 => "4xx",
        500.. => "5xx",
    };
    counter!("kivu_responses_total", "status" => class).increment(1);
    histogram!("kivu_request_seconds").record(took);
    if status >= 400 {
        counter!("kivu_errors_total", "status" => status.to_string()).increment(1);
    }
}

/// Records that a model was loaded on demand.
pub fn record_load(took: Duration) {
    histogram!("kivu_load_seconds").record(took);
}

/// Records that a model could not be loaded on demand.
pub fn record_failed_load() {
    counter!("kivu_failed_loads_total").increment(1);
}

/// Records that a loaded model left for another one.
pub fn record_unload() {
    counter!("kivu_unloads_total").increment(1);
}

/// Records a function's cold start, up to its readiness for requests.
pub fn record_cold_start(took: Duration) {
    counter!("kivu_cold_starts_total").increment(1);
    histogram!("kivu_cold_start_seconds").record(took);
}

/// The Prometheus exporter.
#[derive(Clone, Debug)]
pub struct Prometheus(PrometheusHandle);

impl Prometheus {
    /// Installs the exporter for this process, and the one for OTLP beside it.
    ///
    /// # Errors
    /// If the process has an exporter already.
    pub fn install(otlp: Option<&Otlp>) -> Result<Self> {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)
            .map(PrometheusBuilder::build_recorder);
        let recorder = recorder.map_err(cannot_register)?;
        let handle = recorder.handle();
        request::record_reports();
        install(recorder, otlp)?;
        start_counters();
        Ok(Self(handle))
    }

    /// Metrics in the Prometheus exposition format.
    pub fn page(&self) -> String {
        self.0.render()
    }

    /// Sorts recorded durations into their buckets, which bounds the memory between scrapes.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Counters begin with 0, since Prometheus sees no increase from a missing value to 1.
fn start_counters() {
    for name in [
        "kivu_requests_total",
        "kivu_texts_total",
        "kivu_tokens_total",
        "kivu_failed_loads_total",
        "kivu_unloads_total",
    ] {
        counter!(name).increment(0);
    }
    for class in ["2xx", "4xx", "5xx"] {
        counter!("kivu_responses_total", "status" => class).increment(0);
    }
    for status in ["429", "500", "502", "503", "504"] {
        counter!("kivu_errors_total", "status" => status).increment(0);
    }
}

/// Records all metrics with `recorder`, and also for OTLP.
fn install(recorder: impl Recorder + Send + Sync + 'static, otlp: Option<&Otlp>) -> Result<()> {
    match otlp.and_then(Otlp::recorder) {
        None => metrics::set_global_recorder(recorder).map_err(cannot_register),
        Some(other) => {
            let both = FanoutBuilder::default()
                .add_recorder(recorder)
                .add_recorder(other)
                .build();
            // The error holds the recorder, which cannot be sent to other threads.
            metrics::set_global_recorder(both)
                .map_err(|error| cannot_register(io::Error::other(error.to_string())))
        }
    }
}

fn cannot_register(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::inference_because("cannot register the metrics recorder", error)
}
