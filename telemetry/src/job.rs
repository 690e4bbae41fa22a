//! Batch jobs: a span for each run of a job, and counters of its rows.

use metrics::{counter, gauge};

pub use super::stages::JobOutcome;
use super::{
    otlp::spans::{self, JobSpan},
    trace::Trace,
};

/// Counts rows that a job has finished, and how many of them have errors.
pub fn record_rows(rows: usize, failed: usize) {
    counter!("kivu_rows_total").increment(rows as u64);
    counter!("kivu_failed_rows_total").increment(failed as u64);
}

/// Records the speed of a job that runs, in rows per second, and the estimated seconds until its end. Zero after it.
pub fn record_speed(rows_per_second: f64, seconds_left: Option<u64>) {
    gauge!("kivu_job_rows_per_second").set(rows_per_second);
    gauge!("kivu_job_seconds_left").set(seconds_left.unwrap_or_default() as f64);
}

/// A job's run, with its span if jobs are traced.
#[derive(Debug)]
pub struct JobRecord(Option<JobSpan>);

impl JobRecord {
    /// Begins a run, in the trace `parent` if there is one.
    pub fn begin(parent: Option<&Trace>) -> Self {
        Self(spans::begin_job(parent))
    }

    /// Ends the run.
    pub fn end(self, outcome: &JobOutcome) {
        if let Some(span) = self.0 {
            span.end(outcome);
        }
    }
}
