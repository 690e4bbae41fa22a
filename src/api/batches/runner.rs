//! Runs batches in the server's process, in turn, on threads of its own.

use std::{
    collections::HashMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
};

use super::{
    entry::{Entry, QUEUE, folder},
    object::{BATCH, BatchRecord},
    run::{Advanced, Runs},
};
use crate::{
    api::{
        app::App,
        files::{Files, age, is_id, now},
    },
    error::{Error, Result},
};

/// The time after which another batch has its turn.
const TURN: Duration = Duration::from_secs(10);
/// The time between looking for batches that another process has created.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The time before a batch runs again after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// How long batch objects are kept, in seconds.
const KEPT_S: u64 = 30 * 24 * 60 * 60;
/// Objects of a batch that was not completely created are removed after this time.
const MAX_CREATION: Duration = Duration::from_hours(24);
/// The time for saving a batch when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// A batch that still fails this many seconds after it has expired is given up.
const GRACE_S: u64 = 60 * 60;

/// Threads that run batches.
#[derive(Debug)]
pub struct BatchRunner {
    stop: watch::Sender<bool>,
    stopped: flume::Receiver<()>,
}

impl BatchRunner {
    /// Starts to run batches in `files` with the models of `app`, saving them at this interval.
    pub fn start(app: App, files: Arc<Files>, interval: Duration) -> Result<Self> {
        let (stop, is_stopping) = watch::channel(false);
        let (done, stopped) = flume::bounded(1);
        let runs = Runs {
            app: Arc::new(app),
            files,
            interval,
        };
        let failed = || Error::io("cannot start the threads for batches");
        // Their blocking work does not delay requests.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("batches")
            .enable_all()
            .build()
            .map_err(failed())?;
        let work = move || {
            run_all(&runtime, &runs, is_stopping);
            runtime.shutdown_background();
            let _ = done.send(());
        };
        thread::Builder::new()
            .name("batches".into())
            .spawn(work)
            .map_err(failed())?;
        Ok(Self { stop, stopped })
    }

    /// Saves the running batch, which the next process continues.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        // After the time limit, the next process continues at the last checkpoint.
        let _ = self.stopped.recv_timeout(STOP_TIMEOUT);
    }
}

fn run_all(runtime: &Runtime, runs: &Runs, stop: watch::Receiver<bool>) {
    let mut loops = Loop {
        runs,
        stop,
        retries: HashMap::new(),
        swept: None,
    };
    runtime.block_on(async {
        while !*loops.stop.borrow() {
            let has_more = loops.turn().await.unwrap_or_else(|error| {
                tracing::error!(error = error.chain(), "cannot run batches");
                false
            });
            if !has_more {
                loops.wait().await;
            }
        }
    });
}

struct Loop<'a> {
    runs: &'a Runs,
    stop: watch::Receiver<bool>,
    /// When batches run again after an error.
    retries: HashMap<Entry, Instant>,
    swept: Option<Instant>,
}

impl Loop<'_> {
    /// Gives each batch a turn; whether there are unfinished ones.
    async fn turn(&mut self) -> Result<bool> {
        let files = &self.runs.files;
        if !files.storage.lock()? {
            return Ok(false);
        }
        if self
            .swept
            .is_none_or(|swept| swept.elapsed() >= SWEEP_INTERVAL)
        {
            self.swept = Some(Instant::now());
            sweep(files)?;
        }
        let mut entries = Entry::all(files)?;
        self.retries.retain(|entry, _| entries.contains(entry));
        entries.retain(|entry| {
            self.retries
                .get(entry)
                .is_none_or(|at| *at <= Instant::now())
        });
        let mut has_more = false;
        for entry in entries {
            if *self.stop.borrow() {
                return Ok(false);
            }
            let until = Some(Instant::now() + TURN);
            let mut stop = self.stop.clone();
            let stop = async move { drop(stop.wait_for(|is_stopping| *is_stopping).await) };
            match self.runs.advance(&entry, until, stop).await {
                Ok(advanced) => {
                    has_more |= advanced == Advanced::Unfinished;
                    self.retries.remove(&entry);
                }
                Err(error) => self.failed(entry, &error)?,
            }
        }
        Ok(has_more)
    }

    fn failed(&mut self, entry: Entry, error: &Error) -> Result<()> {
        tracing::error!(id = entry.id, error = error.chain(), "batch fails for now");
        let is_hopeless = match self.runs.files.read::<BatchRecord>(&entry.record()) {
            Ok(record) => record.is_some_and(|record| record.batch.expires_at + GRACE_S < now()),
            Err(Error::Io { .. }) => false,
            // A damaged object stays damaged.
            Err(_) => true,
        };
        if is_hopeless {
            return self
                .runs
                .fail(&entry, "the batch could not be run; the log has the cause");
        }
        self.retries.insert(entry, Instant::now() + RETRY_INTERVAL);
        Ok(())
    }

    /// Waits for a new batch, or for a while.
    async fn wait(&mut self) {
        tokio::select! {
            () = self.runs.files.changed.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = self.stop.wait_for(|is_stopping| *is_stopping) => {}
        }
    }
}

/// Removes expired files, old batches, and what unfinished requests have left.
fn sweep(files: &Files) -> Result<()> {
    files.storage.tidy(QUEUE, MAX_CREATION)?;
    let is_old = |id: &&str| is_id(BATCH, id) && age(BATCH, id) >= MAX_CREATION;
    for owner in files.storage.folders()? {
        files.sweep(&owner)?;
        let folder = folder(&owner);
        let names = files.storage.list(&folder)?;
        for id in names
            .iter()
            .filter_map(|name| name.split('.').next())
            .filter(is_old)
        {
            let entry = Entry::new(&owner, id);
            match files.read::<BatchRecord>(&entry.record()) {
                Ok(Some(record))
                    if record.batch.status.is_final()
                        && record.batch.created_at + KEPT_S < now() =>
                {
                    files.storage.remove(&entry.record())?;
                    entry.clean(files)?;
                }
                Ok(None) => entry.clean(files)?,
                _ => {}
            }
        }
        files.storage.tidy(&folder, MAX_CREATION)?;
    }
    Ok(())
}
