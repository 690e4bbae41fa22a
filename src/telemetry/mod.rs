//! What is counted and timed: the same counters for Prometheus and for CloudWatch.
//!
//! Whoever works says so here, by name; where it goes is decided by the program, once: [`Prometheus::install`] or
//! [`Embedded::install`]. Without either it goes nowhere and costs nothing. No text of a user comes near it.

mod embedded;
pub mod fleet;
pub mod trace;

use std::time::{Duration, Instant};

use metrics::{counter, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

pub use self::embedded::Embedded;
use crate::error::{Error, Result};

/// The upper bounds of the buckets that durations are counted in, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// A request was answered.
pub fn answered(status: u16, took: Duration) {
    counter!("kivu_requests_total").increment(1);
    let class = match status {
        ..400 => "2xx",
        400..500 => "4xx",
        500.. => "5xx",
    };
    counter!("kivu_responses_total", "status" => class).increment(1);
    histogram!("kivu_request_seconds").record(took);
}

/// A request's texts went through tokenizer and model.
pub fn encoded(tokens: usize, tokenizing: Duration, inferring: Duration) {
    counter!("kivu_tokens_total").increment(tokens as u64);
    histogram!("kivu_tokenize_seconds").record(tokenizing);
    histogram!("kivu_infer_seconds").record(inferring);
}

/// A backend ran a batch.
pub fn ran(backend: &'static str) {
    counter!("kivu_runs_total", "backend" => backend).increment(1);
}

/// Does a part of a start, and tells how long it took.
pub fn starting<T>(part: &'static str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let outcome = work();
    histogram!("kivu_cold_seconds", "part" => part).record(started.elapsed());
    outcome
}

/// A function's environment is ready for its first request.
pub fn started(took: Duration) {
    counter!("kivu_cold_starts_total").increment(1);
    histogram!("kivu_cold_start_seconds").record(took);
}

/// The counters as Prometheus reads them.
#[derive(Clone, Debug)]
pub struct Prometheus {
    handle: PrometheusHandle,
}

impl Prometheus {
    /// Sends what is counted to Prometheus from now on; to be done once a process.
    pub fn install() -> Result<Self> {
        let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).map(PrometheusBuilder::build_recorder);
        let recorder = recorder.map_err(|error| Error::inference("cannot count", error))?;
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder)
            .map_err(|_| Error::config("the counters are installed already"))?;
        Ok(Self { handle })
    }

    /// The page that Prometheus asks for.
    pub fn page(&self) -> String {
        self.handle.render()
    }

    /// Keeps the counters small where nobody asks for them; to be called every few seconds.
    pub fn tidy(&self) {
        self.handle.run_upkeep();
    }
}
