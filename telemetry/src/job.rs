//! Batch jobs: a span for each run of a job, and counters of its rows.

use metrics::counter;

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
