//! Threads that load models within the memory budget.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    budget::{Budget, Reserved},
    entry::{Entry, Failure, RETRY_INTERVAL, Resident, Slot},
    shared::Shared,
};
use crate::{
    model::{
        Model,
        listing::tag,
        loaded::{Listed, engine},
    },
    repository::{Bundle, bundle::Home},
};
use kivu_base::{
    Error, Result,
    config::{Config, resident_memory},
    error::Message,
    locked,
};
use kivu_core::backend::Engine;
use kivu_telemetry::{record_failed_load, record_load, record_unload};

/// Models that are loaded at once: each load uses two threads, and most functions have two CPUs.
const THREADS: usize = 2;
/// How long a load waits for an idle model before it takes the memory of one in use, whose requests end first.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// The longest time between looking for idle models.
const POLL: Duration = Duration::from_millis(100);

/// Loads that no thread has begun.
struct Waiting {
    requested: flume::Receiver<Arc<Entry>>,
    /// Oldest first.
    loads: Vec<Arc<Entry>>,
    /// When models in use were last told to leave.
    asked: Instant,
}

#[derive(Debug)]
pub struct Loads {
    pub budget: Arc<Budget>,
    queue: flume::Sender<Arc<Entry>>,
}

/// A thread's view.
#[derive(Clone)]
struct Loader {
    /// Held by the thread that looks for its next load.
    waiting: Arc<Mutex<Waiting>>,
    budget: Arc<Budget>,
    shared: Arc<Shared>,
    config: Arc<Config>,
    /// Loads in progress.
    running: Arc<AtomicUsize>,
    /// All loads so far.
    begun: Arc<AtomicUsize>,
}

impl Loads {
    pub fn start(config: &Config, shared: Arc<Shared>) -> Result<Self> {
        let budget = Budget::new(config.model_memory()?);
        let (queue, requested) = flume::unbounded();
        let waiting = Waiting {
            requested,
            loads: Vec::new(),
            asked: Instant::now(),
        };
        let loader = Loader {
            waiting: Arc::new(Mutex::new(waiting)),
            budget: Arc::clone(&budget),
            shared,
            config: Arc::new(config.clone()),
            running: Arc::default(),
            begun: Arc::default(),
        };
        for number in 0..THREADS {
            let loader = loader.clone();
            thread::Builder::new()
                .name(format!("load-{number}"))
                .spawn(move || {
                    while let Some((entry, memory)) = loader.next() {
                        loader.load(&entry, memory);
                    }
                })
                .map_err(Error::io("cannot start a thread that loads models"))?;
        }
        Ok(Self { budget, queue })
    }

    /// Begins to load a model unless that has begun; `false` if its bundle was replaced, so that the list of models is
    /// out of date. An error if it failed a moment ago.
    pub fn request(&self, entry: &Arc<Entry>) -> Result<bool> {
        let mut slot = entry.slot_mut();
        match &*slot {
            Slot::Loading | Slot::Loaded(_) => return Ok(true),
            Slot::Replaced => {
                *slot = Slot::Absent;
                return Ok(false);
            }
            Slot::Failed(failure) if failure.at.elapsed() < RETRY_INTERVAL => {
                return Err(failure.error());
            }
            Slot::Failed(_) | Slot::Absent => {}
        }
        *slot = Slot::Loading;
        let sent = self.queue.send(Arc::clone(entry));
        self.budget.wake();
        sent.map(|()| true)
            .map_err(|_| Error::model("the threads that load models have stopped"))
    }
}

impl Failure {
    fn new(entry: &Entry, error: &Error) -> Self {
        let (message, is_temporary) = match error {
            Error::TooLarge { message } => (message.clone(), false),
            _ => (
                Message::new(format!("`{}` cannot be loaded at the moment", entry.name))
                    .with_hint("the server's log has the cause"),
                true,
            ),
        };
        Self {
            at: Instant::now(),
            message,
            is_temporary,
        }
    }

    fn error(&self) -> Error {
        match self.is_temporary {
            true => Error::unavailable(self.message.clone()),
            false => Error::config(self.message.clone()),
        }
    }
}

impl Loader {
    fn load(&self, entry: &Arc<Entry>, memory: Result<Reserved>) {
        let started = Instant::now();
        let loaded = catch_unwind(AssertUnwindSafe(|| self.open(entry, memory?)));
        let loaded = loaded.unwrap_or_else(|_| Err(Error::model("loading the model panicked")));
        let slot = match loaded {
            Ok(Some(resident)) => {
                record_load(started.elapsed());
                tracing::info!(
                    model = entry.name,
                    ms = started.elapsed().as_millis() as u64,
                    "loaded"
                );
                Slot::Loaded(Arc::new(resident))
            }
            Ok(None) => Slot::Replaced,
            Err(error) => {
                record_failed_load();
                tracing::error!(model = entry.name, error = error.chain(), "cannot load");
                Slot::Failed(Failure::new(entry, &error))
            }
        };
        entry.set(slot);
        if !self.shared.has(entry) {
            entry.unload();
        }
    }

    /// Opens a model; `None` if its bundle was replaced or removed, before the load or meanwhile.
    fn open(&self, entry: &Arc<Entry>, memory: Reserved) -> Result<Option<Resident>> {
        let Some(listed) = &entry.listed else {
            return Ok(None);
        };
        let Home::Folder(folder) = listed.bundle.home() else {
            return self.open_bundle(entry, listed, memory).map(Some);
        };
        // Bundles in folders are replaced in place, or removed.
        let before = tag(folder);
        if before.is_empty() {
            return Ok(None);
        }
        let opened = Bundle::open(folder).and_then(|bundle| {
            if bundle.digest() != entry.digest {
                return Ok(None);
            }
            let listed = Listed {
                bundle,
                ..listed.clone()
            };
            self.open_bundle(entry, &listed, memory).map(Some)
        });
        // Files of two bundles do not fit together, and those of a removed one are missing.
        if opened.is_err() && tag(folder) != before {
            return Ok(None);
        }
        opened
    }

    fn open_bundle(
        &self,
        entry: &Entry,
        listed: &Listed,
        mut memory: Reserved,
    ) -> Result<Resident> {
        let (model, found) = self.measured(|| Model::open_listed(listed, &self.config))?;
        // ONNX Runtime packs weights, which takes more memory than the files have bytes.
        let is_packed = engine(&self.config, &entry.manifest) == Engine::Onnx;
        if let Some(found) = found.filter(|found| is_packed && *found > memory.bytes) {
            memory.correct(found);
        }
        Ok(Resident::new(model, Some(memory)))
    }

    /// Runs a load, and returns by how much it has increased this process's memory; `None` if other loads ran meanwhile.
    fn measured<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<(T, Option<u64>)> {
        let is_alone = self.running.fetch_add(1, Ordering::SeqCst) == 0;
        let (number, before) = (
            self.begun.fetch_add(1, Ordering::SeqCst) + 1,
            resident_memory(),
        );
        let outcome = load();
        let after = resident_memory();
        self.running.fetch_sub(1, Ordering::SeqCst);
        let is_alone = is_alone && self.begun.load(Ordering::SeqCst) == number;
        let found = before
            .ok()
            .zip(after.ok())
            .map(|(before, after)| after.saturating_sub(before));
        Ok((outcome?, found.filter(|_| is_alone)))
    }

    /// Waits for a load and its memory: the oldest load, for which idle models leave, or one after it that fits meanwhile.
    /// `None` once the models are no longer served.
    fn next(&self) -> Option<(Arc<Entry>, Result<Reserved>)> {
        let mut waiting = locked(&self.waiting);
        loop {
            let changes = self.budget.changes();
            waiting.receive()?;
            if let Some(oldest) = waiting.take(0..1, |entry| self.reserve(entry)) {
                waiting.asked = Instant::now();
                return Some(oldest);
            }
            if self.evict_idle(estimate(&waiting.loads[0])) {
                continue;
            }
            let others = 1..waiting.loads.len();
            if let Some(fitting) = waiting.take(others, |entry| self.reserve(entry)) {
                return Some(fitting);
            }
            if waiting.asked.elapsed() > IDLE_TIME {
                self.evict_busy(estimate(&waiting.loads[0]));
                waiting.asked = Instant::now();
            }
            self.budget.wait(changes, POLL);
        }
    }

    /// Reserves a model's memory; `None` if too little is free at the moment.
    fn reserve(&self, entry: &Entry) -> Option<Result<Reserved>> {
        let (bytes, max) = (estimate(entry), self.budget.max());
        if bytes <= max {
            return self.budget.reserve(bytes).map(Ok);
        }
        Some(Err(Error::too_large(format!(
            "expected `{}` to fit into `max_memory`, {} MB, but it takes about {} MB",
            entry.name,
            max / 1_000_000,
            bytes.div_ceil(1_000_000)
        ))
        .with_hint("raise `max_memory`")))
    }

    /// Lets the least recently used idle model leave; `false` if all idle ones together do not make room for `bytes`.
    fn evict_idle(&self, bytes: u64) -> bool {
        let entries = self.shared.entries();
        let idle = || entries.iter().filter(|entry| entry.is_idle());
        let freed: u64 = idle().filter_map(|entry| entry.memory()).sum();
        if (self.budget.used() + bytes).saturating_sub(freed) > self.budget.max() {
            return false;
        }
        let idle = idle().min_by_key(|entry| entry.rank());
        let has_left = idle.is_some_and(|entry| entry.unload_idle());
        if has_left {
            record_unload();
        }
        has_left
    }

    /// Lets the least recently used models with these bytes leave, once their requests have ended.
    fn evict_busy(&self, bytes: u64) {
        let entries = self.shared.entries();
        let mut loaded: Vec<&Arc<Entry>> = entries
            .iter()
            .filter(|entry| entry.memory().is_some())
            .collect();
        loaded.sort_by_key(|entry| entry.rank());
        let mut leaving = 0;
        for entry in loaded {
            if leaving >= bytes {
                break;
            }
            leaving += entry.memory().unwrap_or(0);
            entry.unload();
            record_unload();
        }
    }
}

impl Waiting {
    /// Takes new requests, and waits for one if there are none; `None` if there will be none.
    fn receive(&mut self) -> Option<()> {
        if self.loads.is_empty() {
            self.loads.push(self.requested.recv().ok()?);
            self.asked = Instant::now();
        }
        self.loads.extend(self.requested.try_iter());
        (!self.requested.is_disconnected()).then_some(())
    }

    /// Takes the first load among these for which `reserve` has memory.
    fn take<T>(
        &mut self,
        places: Range<usize>,
        reserve: impl Fn(&Entry) -> Option<T>,
    ) -> Option<(Arc<Entry>, T)> {
        let (place, reserved) = places
            .into_iter()
            .find_map(|place| Some((place, reserve(&self.loads[place])?)))?;
        Some((self.loads.remove(place), reserved))
    }
}

/// A loaded model's memory in bytes, before it is measured: its files', whether they are mapped or read.
fn estimate(entry: &Entry) -> u64 {
    entry.size()
}
