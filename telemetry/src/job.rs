//! Batch jobs: a span for each run of a job, and counters of its rows.

use std::future::Future;

use metrics::counter;

pub use super::stages::JobOutcome;
use super::{
    otlp::spans::{self, JobSpan},
    trace::Trace,
};

tokio::task_local! {
    /// The trace that jobs belong to.
    static PARENT: Option<Trace>;
}

/// Runs `work`, whose jobs belong to the trace `parent`.
pub async fn within<T>(parent: Option<Trace>, work: impl Future<Output = T>) -> T {
    PARENT.scope(parent, work).await
}

/// Counts rows that a job has finished, and how many of them have errors.
pub fn record_rows(rows: usize, failed: usize) {
    counter!("kivu_rows_total").increment(rows as u64);
    counter!("kivu_failed_rows_total").increment(failed as u64);
}

/// A job's run, with its span if jobs are traced.
#[derive(Debug)]
pub struct JobRecord(Option<JobSpan>);

impl JobRecord {
    /// Begins a run.
    pub fn begin() -> Self {
        let parent = PARENT.try_with(Clone::clone).ok().flatten();
        Self(spans::begin_job(parent.as_ref()))
    }

    /// Ends the run.
    pub fn end(self, outcome: &JobOutcome) {
        if let Some(span) = self.0 {
            span.end(outcome);
        }
    }
}
