//! A running job's progress: an object next to its checkpoint, for people and `kivu jobs`. It is written as often as the job
//! is saved, and deleted when the job ends. Nothing in it is from the input's rows.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{checkpoint::State, report::Progress};
use kivu::{
    Result, clock,
    repository::s3::{Condition, Store, Url, fit_key},
    telemetry::job::record_speed,
};

/// Suffix for the objects' names.
pub const SUFFIX: &str = ".progress";
/// Time that a write may be late before a job counts as stale, beside three intervals.
const GRACE_S: u64 = 30;

/// Job progress, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobProgress {
    /// Whether a process works on it.
    pub status: Activity,
    /// Input path or URL.
    pub input: String,
    /// The input's version or ETag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Output URL.
    pub output: String,
    /// Model name.
    pub model: String,
    /// When this process began or continued the job, in seconds since 1970.
    pub started: u64,
    /// When the object was written, in seconds since 1970.
    pub updated: u64,
    /// Seconds until it is written again.
    pub interval: u64,
    /// Finished rows, from earlier processes, too.
    pub rows: u64,
    /// Rows with an error.
    pub errors: u64,
    /// Rows per second of this process.
    pub rows_per_second: f64,
    /// Share of the input that was read, from 0 to 1, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Estimated seconds until the end, if the share is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// Whether a process works on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// A process works on it, or died.
    Running,
    /// It was stopped; the next run continues it.
    Waiting,
}

impl JobProgress {
    /// Whether the process that worked on the job seems to have died.
    pub fn is_stale(&self, now: u64) -> bool {
        self.status == Activity::Running
            && now.saturating_sub(self.updated)
                > self.interval.saturating_mul(3).saturating_add(GRACE_S)
    }
}

/// The constant part of a job's progress.
#[derive(Clone, Debug)]
pub struct JobFacts {
    pub input: String,
    pub version: Option<String>,
    pub model: String,
}

/// Publishes a job's progress.
pub struct ProgressObject {
    store: Arc<dyn Store>,
    url: Url,
    progress: JobProgress,
    interval: Duration,
    began: Instant,
    rows_before: u64,
    /// The input's share when the first rows were written.
    share_before: Option<f64>,
    written: Instant,
    /// Whether this process or an earlier one may have written the object.
    exists: bool,
}

impl ProgressObject {
    /// For a job that is claimed, with the time between saves.
    pub fn new(
        store: &Arc<dyn Store>,
        output: &Url,
        state: &State,
        facts: JobFacts,
        interval: Duration,
    ) -> Self {
        let JobFacts {
            input,
            version,
            model,
        } = facts;
        let began = Instant::now();
        Self {
            store: Arc::clone(store),
            url: output.with_key(fit_key(&format!(
                "{}.{}{SUFFIX}",
                output.key,
                &state.job[..16]
            ))),
            progress: JobProgress {
                status: Activity::Running,
                input,
                version,
                output: output.to_string(),
                model,
                started: now(),
                updated: 0,
                interval: interval.as_secs(),
                rows: state.progress.rows,
                errors: 0,
                rows_per_second: 0.0,
                share: None,
                seconds_left: None,
            },
            interval,
            began,
            rows_before: state.progress.rows,
            share_before: None,
            written: began,
            // A new job has saved its state once.
            exists: state.sequence > 1,
        }
    }

    /// Publishes the progress if the interval is over.
    pub fn advance(&mut self, progress: &Progress, share: Option<f64>) {
        self.share_before = self.share_before.or(share);
        if self.written.elapsed() < self.interval {
            return;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let speed = progress.rows.saturating_sub(self.rows_before) as f64 / seconds.max(1e-3);
        let left = share.zip(self.share_before).and_then(|(share, before)| {
            (share > before).then(|| (seconds * (1.0 - share) / (share - before)) as u64)
        });
        record_speed(speed, left);
        self.progress.rows = progress.rows;
        self.progress.errors = progress.errors.values().sum();
        self.progress.rows_per_second = speed;
        (self.progress.share, self.progress.seconds_left) = (share, left);
        self.write();
    }

    /// Publishes that the job waits for its next run.
    pub fn wait(&mut self, progress: &Progress) {
        if !self.exists {
            return;
        }
        record_speed(0.0, None);
        self.progress.status = Activity::Waiting;
        self.progress.rows = progress.rows;
        self.progress.seconds_left = None;
        self.write();
    }

    /// Deletes the object of a job that has ended.
    pub fn end(&mut self) {
        if self.exists {
            record_speed(0.0, None);
            self.warn(&self.store.delete(&self.url));
        }
    }

    fn write(&mut self) {
        self.written = Instant::now();
        self.progress.updated = now();
        self.exists = true;
        let Ok(text) = serde_json::to_vec(&self.progress) else {
            return;
        };
        let written = self.store.put(&self.url, text.into(), &Condition::None);
        self.warn(&written);
    }

    /// A job does not fail since nobody can watch it.
    fn warn<T>(&self, done: &Result<T>) {
        if let Err(error) = done {
            tracing::warn!(url = %self.url, error = error.chain(), "cannot publish the job's progress");
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    clock::since_1970().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_stale_after_three_intervals() {
        let progress = |status, updated| JobProgress {
            status,
            input: String::new(),
            version: None,
            output: String::new(),
            model: String::new(),
            started: 0,
            updated,
            interval: 60,
            rows: 0,
            errors: 0,
            rows_per_second: 0.0,
            share: None,
            seconds_left: None,
        };
        assert!(!progress(Activity::Running, 1000).is_stale(1210));
        assert!(progress(Activity::Running, 1000).is_stale(1211));
        // One that waits has been saved by its process.
        assert!(!progress(Activity::Waiting, 1000).is_stale(9999));
    }
}
