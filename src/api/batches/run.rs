//! Runs a batch, from wherever an earlier process left it.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    entry::Entry,
    object::{BatchError, BatchRecord, BatchStatus, BatchUsage, RequestCounts},
    output,
    responder::Responder,
    validation,
};
use crate::{
    api::{app::App, files::Files},
    batch::{Ended, Existing, Job, Progress, RowWork, Status, Watcher},
    error::{Error, Result},
    pipeline::{in_background, sharing_turns},
};

/// The time between updates of a batch's counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The time between looking for a request to cancel, if it was made in another process.
const CANCEL_INTERVAL: Duration = Duration::from_secs(2);

/// What batches need to run.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    pub(super) app: Arc<App>,
    pub(super) files: Arc<Files>,
    /// The time between checkpoints.
    pub(super) interval: Duration,
}

/// Whether a batch is done, or is to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advanced {
    Done,
    Unfinished,
}

impl Runs {
    /// Runs a batch until it ends, until the time `until`, or until `stop`; both save what is done.
    pub(super) async fn advance(
        &self,
        entry: &Entry,
        until: Option<Instant>,
        stop: impl Future<Output = ()>,
    ) -> Result<Advanced> {
        let Some(mut record) = self.files.read::<BatchRecord>(&entry.record())? else {
            entry.clean(&self.files)?;
            return Ok(Advanced::Done);
        };
        let mut stop = pin!(stop);
        while !record.batch.status.is_final() {
            let before = record.batch.status;
            match before {
                BatchStatus::Validating => self.validate(entry, &mut record)?,
                BatchStatus::InProgress => {
                    if self
                        .respond(entry, &mut record, until, stop.as_mut())
                        .await?
                        == Advanced::Unfinished
                    {
                        return Ok(Advanced::Unfinished);
                    }
                }
                _ => self.finalize(entry, &mut record)?,
            }
            self.files.write(&entry.record(), &record)?;
            tracing::info!(id = entry.id, from = ?before, to = ?record.batch.status, "batch");
        }
        entry.clean(&self.files)?;
        Ok(Advanced::Done)
    }

    fn validate(&self, entry: &Entry, record: &mut BatchRecord) -> Result<()> {
        let batch = &mut record.batch;
        if let Some(time) = entry.cancelled_at(&self.files)? {
            batch.cancel(time);
            batch.enter(BatchStatus::Cancelled);
            return Ok(());
        }
        let Some(input) = self.files.storage.input(&entry.requests())? else {
            batch.fail(vec![failure("invalid_file", "the requests are missing")]);
            return Ok(());
        };
        match validation::check(&input, batch.endpoint(), self.files.limits.requests)? {
            Ok(checked) => {
                batch.model = checked.model;
                batch.request_counts.total = checked.requests;
                batch.enter(BatchStatus::InProgress);
            }
            Err(errors) => batch.fail(errors),
        }
        Ok(())
    }

    /// Writes a response for each request. Requests that no longer run, since the batch was cancelled or has expired,
    /// have an error as their response.
    async fn respond(
        &self,
        entry: &Entry,
        record: &mut BatchRecord,
        until: Option<Instant>,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Advanced> {
        // An earlier process may have ended here.
        if self.files.storage.input(&entry.responses())?.is_some() {
            record.batch.enter(BatchStatus::Finalizing);
            return Ok(Advanced::Done);
        }
        let Some(input) = self.files.storage.input(&entry.requests())? else {
            record
                .batch
                .fail(vec![failure("invalid_file", "the requests are missing")]);
            return Ok(Advanced::Done);
        };
        let responder = Arc::new(Responder::new(Arc::clone(&self.app), record));
        let counter = Arc::new(Counter::new(Arc::clone(&self.files), entry, record));
        let work = RowWork::Requests {
            id: entry.id.clone(),
            responder: Arc::clone(&responder) as _,
        };
        let job = Job {
            watcher: Arc::clone(&counter) as _,
            until,
            interval: self.interval,
            existing: Existing {
                overwrite: true,
                restart: false,
            },
            ..Job::of(input, self.files.storage.output(&entry.responses()), work)
        };
        let ended = self.run(entry, job, &responder, stop).await?;
        record.batch.request_counts = counter.counts();
        match ended {
            Ended::Unfinished(_) => {
                self.files.write(&entry.record(), record)?;
                return Ok(Advanced::Unfinished);
            }
            Ended::Known => record.batch.enter(BatchStatus::Finalizing),
            Ended::Done(report) => match report.status {
                Status::Finished => record.batch.enter(BatchStatus::Finalizing),
                Status::Failed => {
                    let message = report
                        .error
                        .unwrap_or_else(|| "the batch failed".to_owned());
                    tracing::error!(id = entry.id, error = message, "batch failed");
                    record.batch.fail(vec![failure(
                        "server_error",
                        "the batch could not be run; the log has the cause",
                    )]);
                }
            },
        }
        Ok(Advanced::Done)
    }

    /// Runs a job, and looks for a request to cancel it meanwhile. If its unfinished output is damaged, it starts again.
    async fn run(
        &self,
        entry: &Entry,
        job: Job,
        responder: &Responder,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Ended> {
        let cancellation = async {
            loop {
                // An error now is one later, too.
                if entry
                    .cancelled_at(&self.files)
                    .is_ok_and(|time| time.is_some())
                {
                    responder.cancel();
                    return std::future::pending().await;
                }
                let _ = tokio::time::timeout(CANCEL_INTERVAL, self.files.changed.notified()).await;
            }
        };
        let again = Job {
            existing: Existing {
                restart: true,
                ..job.existing
            },
            ..job.clone()
        };
        let work = async {
            let ended = job
                .run_until(poll_fn(|context| stop.as_mut().poll(context)))
                .await;
            match ended {
                Err(error @ (Error::Config { .. } | Error::Model { .. })) => {
                    tracing::warn!(id = entry.id, error = error.chain(), "batch starts again");
                    again
                        .run_until(poll_fn(|context| stop.as_mut().poll(context)))
                        .await
                }
                ended => ended,
            }
        };
        tokio::select! {
            biased;
            never = cancellation => never,
            ended = in_background(sharing_turns(work)) => ended,
        }
    }

    fn finalize(&self, entry: &Entry, record: &mut BatchRecord) -> Result<()> {
        let outputs = output::write(&self.files, entry, record)?;
        let batch = &mut record.batch;
        (batch.output_file_id, batch.error_file_id) = (outputs.output, outputs.errors);
        batch.request_counts = outputs.counts;
        batch.usage = Some(BatchUsage::of(outputs.tokens));
        let cancelled_at = entry.cancelled_at(&self.files)?;
        batch.cancelling_at = cancelled_at.or(batch.cancelling_at);
        batch.enter(match cancelled_at {
            Some(_) => BatchStatus::Cancelled,
            None if outputs.has_expired => BatchStatus::Expired,
            None => BatchStatus::Completed,
        });
        Ok(())
    }

    /// Gives a batch up.
    pub(super) fn fail(&self, entry: &Entry, message: &str) -> Result<()> {
        if let Ok(Some(mut record)) = self.files.read::<BatchRecord>(&entry.record()) {
            record.batch.fail(vec![failure("server_error", message)]);
            self.files.write(&entry.record(), &record)?;
        }
        entry.clean(&self.files)
    }
}

fn failure(code: &str, message: &str) -> BatchError {
    BatchError {
        code: code.to_owned(),
        line: None,
        message: message.to_owned(),
        param: None,
    }
}

/// Writes a batch's counts while it runs.
struct Counter {
    files: Arc<Files>,
    name: String,
    state: Mutex<(BatchRecord, Instant)>,
}

impl Counter {
    fn new(files: Arc<Files>, entry: &Entry, record: &BatchRecord) -> Self {
        Self {
            files,
            name: entry.record(),
            state: Mutex::new((record.clone(), Instant::now())),
        }
    }

    fn counts(&self) -> RequestCounts {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.batch.request_counts
    }
}

impl Watcher for Counter {
    fn begin(&self, _: &str, _: u64) {}

    fn advance(&self, _: u64, _: Option<f64>) {}

    fn count(&self, progress: &Progress) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (record, written) = &mut *state;
        let failed: u64 = progress.errors.values().sum();
        let counts = &mut record.batch.request_counts;
        (counts.completed, counts.failed) = (progress.rows - failed, failed);
        if written.elapsed() >= COUNT_INTERVAL {
            *written = Instant::now();
            if let Err(error) = self.files.write(&self.name, record) {
                tracing::warn!(error = error.chain(), "cannot update a batch's counts");
            }
        }
    }
}
