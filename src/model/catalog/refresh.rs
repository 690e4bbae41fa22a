//! A thread that reads the list of models again: new, changed and removed bundles are seen without a restart.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::sync::watch;

use super::{entry::Entry, shared::Shared};
use crate::{
    cloud::Cloud,
    model::{
        listing::{Bundles, none_found},
        loaded::Listed,
    },
    repository::s3::Url,
};
use kivu_base::{Error, Result, clock::Timestamp, config::Config, locked};

/// How often folders are read.
const FOLDER_INTERVAL: Duration = Duration::from_secs(1);
/// How often S3 is asked, which costs a request per URL.
const S3_INTERVAL: Duration = Duration::from_secs(30);
/// How much more often requests with unknown models may ask.
const UNKNOWN_FACTOR: u32 = 10;

#[derive(Debug)]
pub struct Refresh {
    requests: flume::Sender<()>,
    /// Number of refreshes that have begun.
    begun: Arc<AtomicU64>,
    done: watch::Receiver<Done>,
    interval: Duration,
    added: Arc<Mutex<Vec<PathBuf>>>,
}

/// The last refresh that has ended.
#[derive(Clone, Copy, Debug)]
struct Done {
    /// Its number.
    number: u64,
    at: Timestamp,
}

struct Refresher {
    config: Config,
    bundles: Bundles,
    shared: Arc<Shared>,
    added: Arc<Mutex<Vec<PathBuf>>>,
    /// Errors that were logged.
    known_errors: HashSet<String>,
}

impl Refresh {
    /// Reads the list, and starts the thread that does so again.
    pub fn start(config: &Config, cloud: &Cloud, shared: Arc<Shared>) -> Result<Self> {
        let added = Arc::<Mutex<Vec<PathBuf>>>::default();
        let mut refresher = Refresher {
            config: config.clone(),
            bundles: Bundles::new(cloud),
            shared,
            added: Arc::clone(&added),
            known_errors: HashSet::new(),
        };
        refresher.start()?;
        let is_remote = config
            .models
            .iter()
            .any(|model| Url::of(&model.path).is_some());
        let interval = if is_remote {
            S3_INTERVAL
        } else {
            FOLDER_INTERVAL
        };
        Self::start_thread(interval, added, move || refresher.run())
    }

    /// Starts the thread that calls `refresh` when it is asked for.
    fn start_thread(
        interval: Duration,
        added: Arc<Mutex<Vec<PathBuf>>>,
        mut refresh: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        let (requests, waiting) = flume::bounded(1);
        let (done, is_done) = watch::channel(Done {
            number: 0,
            at: Timestamp::now(),
        });
        let begun = Arc::<AtomicU64>::default();
        let begins = Arc::clone(&begun);
        thread::Builder::new()
            .name("refresh".to_owned())
            .spawn(move || {
                while waiting.recv().is_ok() {
                    let number = begins.fetch_add(1, Ordering::SeqCst) + 1;
                    refresh();
                    done.send_replace(Done {
                        number,
                        at: Timestamp::now(),
                    });
                }
            })
            .map_err(Error::io(
                "cannot start the thread that looks for new models",
            ))?;
        Ok(Self {
            requests,
            begun,
            done: is_done,
            interval,
            added,
        })
    }

    /// Asks for a refresh if the last one was a while ago.
    pub fn request_if_due(&self) {
        if self.done.borrow().at.age() >= self.interval {
            // A full queue contains a request that has not begun.
            let _ = self.requests.try_send(());
        }
    }

    /// Asks for a refresh unless the last one was a moment ago.
    pub fn request_soon(&self) {
        if self.done.borrow().at.age() >= self.interval / UNKNOWN_FACTOR {
            let _ = self.requests.try_send(());
        }
    }

    /// Waits for a refresh that begins from now on, unless the last one was a moment ago.
    pub async fn run(&self) {
        let is_due = self.done.borrow().at.age() >= self.interval / UNKNOWN_FACTOR;
        if is_due || self.has_added() {
            self.run_now().await;
        }
    }

    /// Waits for a refresh that begins from now on.
    pub async fn run_now(&self) {
        // One that has begun may have missed the change.
        let next = self.begun.load(Ordering::SeqCst) + 1;
        // A full queue contains a request that has not begun.
        let _ = self.requests.try_send(());
        let _ = self.done.clone().wait_for(|done| done.number >= next).await;
    }

    pub fn add(&self, path: PathBuf) {
        locked(&self.added).push(path);
    }

    fn has_added(&self) -> bool {
        !locked(&self.added).is_empty()
    }
}

impl Refresher {
    /// Reads the list for the first time: errors in the configuration end the start, damaged bundles in it do not.
    fn start(&mut self) -> Result<()> {
        let mut failed = None;
        let listed = self.bundles.list(&self.config, &mut |error| match error {
            Error::Config { .. } | Error::Io { .. } => Err(error),
            error => {
                tracing::error!(error = error.chain(), "a model is left out");
                self.known_errors.insert(error.chain());
                failed.get_or_insert(error);
                Ok(())
            }
        });
        let listed = listed?;
        // A folder may be empty: bundles that are added to it are served.
        if listed.is_empty() && !self.config.models.iter().any(|model| model.path.is_dir()) {
            return Err(failed.unwrap_or_else(none_found));
        }
        self.replace(listed);
        Ok(())
    }

    fn run(&mut self) {
        let added = std::mem::take(&mut *locked(&self.added));
        for path in added {
            if !self.config.models.iter().any(|model| model.path == path) {
                self.config.models.push(path.into());
            }
        }
        let mut errors = HashSet::new();
        let listed = self.bundles.list(&self.config, &mut |error| {
            errors.insert(error.chain());
            match error {
                // S3 does not respond: the models are as they were.
                Error::Io { .. } => Err(error),
                _ => Ok(()),
            }
        });
        for error in errors.difference(&self.known_errors) {
            tracing::error!(error, "cannot read all models again");
        }
        self.known_errors = errors;
        if let Ok(listed) = listed {
            self.replace(listed);
        }
    }

    /// Replaces the entries of bundles that have changed; all others stay, with their loaded models.
    fn replace(&self, listed: Vec<Listed>) {
        let known = self.shared.entries();
        let entry = |listed: Listed| {
            let is_same = |entry: &&Arc<Entry>| {
                entry.digest == listed.bundle.digest()
                    && entry.name == listed.name
                    && entry.manifest.aliases == listed.manifest.aliases
                    && entry
                        .listed
                        .as_ref()
                        .is_some_and(|old| old.bundle.path("") == listed.bundle.path(""))
            };
            let same = known.iter().find(is_same).cloned();
            same.unwrap_or_else(|| Arc::new(Entry::of_listed(listed, self.config.limits.tokens)))
        };
        let entries: Arc<[Arc<Entry>]> = listed.into_iter().map(entry).collect();
        let is_unchanged = known.len() == entries.len()
            && known
                .iter()
                .zip(entries.iter())
                .all(|(old, new)| Arc::ptr_eq(old, new));
        if !is_unchanged {
            self.shared.replace(&entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of an earlier refresh must neither end the wait nor be awaited again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_wait_ends_with_a_refresh_that_began_after_it() {
        let (change, seen) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (changes, sees) = (Arc::clone(&change), Arc::clone(&seen));
        let refresh = move || {
            let read = changes.load(Ordering::SeqCst);
            thread::yield_now();
            sees.store(read, Ordering::SeqCst);
        };
        let refresh = Refresh::start_thread(Duration::ZERO, Arc::default(), refresh).unwrap();
        let refresh = Arc::new(refresh);
        let other = Arc::clone(&refresh);
        let others = tokio::spawn(async move {
            loop {
                other.request_if_due();
                tokio::task::yield_now().await;
            }
        });
        for number in 1..=20_000 {
            change.store(number, Ordering::SeqCst);
            let waited = tokio::time::timeout(Duration::from_secs(60), refresh.run_now());
            waited.await.expect("a refresh that ended was awaited");
            assert!(
                seen.load(Ordering::SeqCst) >= number,
                "an earlier refresh ended the wait"
            );
        }
        others.abort();
    }
}
