//! Batch jobs: a span for each run of a job, and counters of its rows.

use std::future::Future;

use metrics::counter;

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

/// What a job's span reports. It has no paths or messages, which may contain texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOutcome {
    /// Model name; empty for jobs whose rows name their models.
    pub model: String,
    /// The model's task, or `requests`.
    pub task: String,
    /// `finished`, `failed`, `known`, `unfinished` or `error`; another run may succeed after the last two.
    pub status: &'static str,
    /// Finished rows, including earlier runs and rows with errors.
    pub rows: u64,
    /// Rows with errors.
    pub failed_rows: u64,
    /// Input tokens.
    pub tokens: u64,
}

impl JobOutcome {
    /// Whether the run ended with an error; rows with errors are none.
    pub(super) fn is_error(&self) -> bool {
        matches!(self.status, "failed" | "error")
    }
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
