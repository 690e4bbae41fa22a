//! A model that a server knows, whether it is loaded or not.

use std::{
    ops::Deref,
    path::Path,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::budget::{Budget, Reserved};
use crate::{
    model::{Model, loaded::Listed},
    repository::{Manifest, bundle::Home},
};
use kivu_base::{clock, error::Message};
use kivu_core::pipeline::seq2seq::Directions;

/// The pause before a model that could not be loaded is tried again.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a loaded model that no request has used yet is kept for the requests that wait for it.
const UNUSED_TIME: Duration = Duration::from_secs(1);
/// [`Entry::keep_ms`] of a model that stays until others need its memory.
const BY_DEFAULT: i64 = i64::MAX;
/// [`Entry::keep_ms`] of a model that leaves after all others.
const STAYS: i64 = -1;

/// A served model.
#[derive(Debug)]
pub struct Entry {
    /// The name in requests.
    pub name: String,
    /// The bundle's manifest, with aliases from the configuration.
    pub manifest: Manifest,
    /// SHA-256 of its manifest, in hexadecimal.
    pub digest: String,
    /// Maximum tokens per input, special tokens included.
    pub max_tokens: usize,
    /// `None` for models that are always loaded.
    pub listed: Option<Listed>,
    slot: RwLock<Slot>,
    /// Woken when the slot changes.
    pub changed: Notify,
    /// How often the model was loaded.
    loads: AtomicU64,
    /// Milliseconds since 1970; 0 before the first use.
    last_use: AtomicU64,
    /// How long the model stays after its last use: milliseconds, or one of the constants.
    keep_ms: AtomicI64,
    directions: OnceLock<Option<Directions>>,
}

/// Whether an entry's model is in memory.
#[derive(Debug)]
pub enum Slot {
    Absent,
    Loading,
    /// Not loaded: another bundle has taken the place of the entry's.
    Replaced,
    Loaded(Arc<Resident>),
    Failed(Failure),
}

/// Why a model could not be loaded.
#[derive(Clone, Debug)]
pub struct Failure {
    pub at: Instant,
    /// For clients.
    pub message: Message,
    /// Whether another attempt may succeed.
    pub is_temporary: bool,
}

/// A model in memory.
#[derive(Debug)]
pub struct Resident {
    pub model: Model,
    users: AtomicUsize,
    has_been_used: AtomicUsize,
    loaded: Instant,
    /// Freed after the model.
    memory: Option<Reserved>,
}

/// A model that is in use, and loaded until this is dropped.
#[derive(Debug)]
pub struct ModelLease {
    resident: Arc<Resident>,
    /// Told when the model is idle.
    budget: Option<Arc<Budget>>,
    entry: Arc<Entry>,
}

/// Whether a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// Its first request loads it.
    Available,
    /// It is being loaded.
    Loading,
    /// It is in memory.
    Loaded,
    /// It could not be loaded; a later request tries again.
    Failed,
}

impl ModelState {
    /// The name in responses and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Failed => "failed",
        }
    }
}

impl Entry {
    /// A model that is loaded from now on.
    pub fn of_model(model: Model) -> Self {
        let (name, manifest, digest) = (
            model.name.clone(),
            model.manifest.clone(),
            model.digest.clone(),
        );
        let max_tokens = model.pipeline.max_tokens();
        let slot = RwLock::new(Slot::Loaded(Arc::new(Resident::new(model, None))));
        Self {
            slot,
            ..Self::new(name, manifest, digest, max_tokens)
        }
    }

    /// A model that its first request loads.
    pub fn of_listed(listed: Listed, max_tokens: Option<usize>) -> Self {
        let (name, manifest) = (listed.name.clone(), listed.manifest.clone());
        let max_tokens = (manifest.settings.max_tokens()).min(max_tokens.unwrap_or(usize::MAX));
        let digest = listed.bundle.digest().to_owned();
        Self {
            listed: Some(listed),
            ..Self::new(name, manifest, digest, max_tokens)
        }
    }

    fn new(name: String, manifest: Manifest, digest: String, max_tokens: usize) -> Self {
        Self {
            name,
            manifest,
            digest,
            max_tokens,
            listed: None,
            slot: RwLock::new(Slot::Absent),
            changed: Notify::new(),
            loads: AtomicU64::new(0),
            last_use: AtomicU64::new(0),
            keep_ms: AtomicI64::new(BY_DEFAULT),
            directions: OnceLock::new(),
        }
    }

    /// Languages, for the task `translation`.
    pub fn directions(&self) -> Option<&Directions> {
        let languages = || Some(Directions::new(&self.manifest.translation()?.languages));
        self.directions.get_or_init(languages).as_ref()
    }

    /// Whether the model is loaded.
    pub fn state(&self) -> ModelState {
        match &*self.slot() {
            Slot::Absent | Slot::Replaced => ModelState::Available,
            Slot::Loading => ModelState::Loading,
            Slot::Loaded(_) => ModelState::Loaded,
            Slot::Failed(_) => ModelState::Failed,
        }
    }

    /// Calls `read` with the model, if it is loaded.
    pub fn with_model<T>(&self, read: impl FnOnce(&Model) -> T) -> Option<T> {
        let resident = match &*self.slot() {
            Slot::Loaded(resident) => Arc::clone(resident),
            _ => return None,
        };
        Some(read(&resident.model))
    }

    /// Bytes that the loaded model takes from the budget; without a budget, its files' size. `None` if it is not loaded.
    pub fn memory(&self) -> Option<u64> {
        match &*self.slot() {
            Slot::Loaded(resident) => {
                let reserved = resident.memory.as_ref().map(|memory| memory.bytes);
                Some(reserved.unwrap_or_else(|| self.size()))
            }
            _ => None,
        }
    }

    /// How often the model was loaded on demand.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Total file size in bytes.
    pub fn size(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.size).sum()
    }

    /// Seconds since 1970 when a request used the model; `None` before the first one.
    pub fn last_use(&self) -> Option<Duration> {
        let last = self.last_use.load(Ordering::Relaxed);
        (last > 0).then(|| Duration::from_millis(last))
    }

    /// Seconds since 1970 when the model leaves; `None` if only others' need for memory makes it leave.
    pub fn expires(&self) -> Option<Duration> {
        let keep = u64::try_from(self.keep_ms.load(Ordering::Relaxed)).ok();
        let keep = keep.filter(|keep| *keep != BY_DEFAULT as u64)?;
        Some(self.last_use().unwrap_or_default() + Duration::from_millis(keep))
    }

    /// Sets how long the model stays loaded after its last use; `None` for as long as possible.
    pub fn keep_for(&self, time: Option<Duration>) {
        let keep = time.map_or(STAYS, |time| {
            i64::try_from(time.as_millis()).unwrap_or(STAYS)
        });
        self.keep_ms
            .store(keep.min(BY_DEFAULT - 1), Ordering::Relaxed);
    }

    /// Whether the bundle is in this folder.
    pub fn is_in(&self, folder: &Path) -> bool {
        let home = self.listed.as_ref().map(|listed| listed.bundle.home());
        matches!(home, Some(Home::Folder(found)) if found == folder)
    }

    /// The order in which models leave: those that stay are last.
    pub fn rank(&self) -> (bool, u64) {
        (
            self.keep_ms.load(Ordering::Relaxed) == STAYS,
            self.last_use.load(Ordering::Relaxed),
        )
    }

    /// Uses the model if it is loaded.
    pub fn lease(self: &Arc<Self>, budget: Option<&Arc<Budget>>) -> Option<ModelLease> {
        let slot = self.slot();
        let Slot::Loaded(resident) = &*slot else {
            return None;
        };
        resident.users.fetch_add(1, Ordering::AcqRel);
        resident.has_been_used.store(1, Ordering::Relaxed);
        self.last_use.store(now_ms(), Ordering::Relaxed);
        let (resident, budget, entry) = (Arc::clone(resident), budget.cloned(), Arc::clone(self));
        Some(ModelLease {
            resident,
            budget,
            entry,
        })
    }

    /// Takes the model out of memory once no request uses it; requests from now on load it again.
    pub fn unload(&self) -> bool {
        self.unload_if(|_| true)
    }

    /// Takes the model out of memory if nothing uses it.
    pub fn unload_idle(&self) -> bool {
        self.unload_if(Resident::is_idle)
    }

    fn unload_if(&self, may_leave: impl Fn(&Resident) -> bool) -> bool {
        let taken = {
            let mut slot = self.slot_mut();
            match &*slot {
                Slot::Loaded(resident) if may_leave(resident) => {
                    std::mem::replace(&mut *slot, Slot::Absent)
                }
                _ => return false,
            }
        };
        self.keep_ms.store(BY_DEFAULT, Ordering::Relaxed);
        drop(taken);
        self.changed.notify_waiters();
        true
    }

    /// Takes the model out of memory if it is not to stay after its requests.
    fn leave_if_due(&self) {
        if self.keep_ms.load(Ordering::Relaxed) == 0 {
            self.unload_idle();
        }
    }

    /// Whether the model is loaded, and no request uses it or is about to.
    pub fn is_idle(&self) -> bool {
        matches!(&*self.slot(), Slot::Loaded(resident) if resident.is_idle())
    }

    /// Whether the model's time is over, or its files were written to.
    pub fn must_leave(&self) -> bool {
        let now = Duration::from_millis(now_ms());
        match &*self.slot() {
            Slot::Loaded(resident) => {
                let files = resident.model.files.as_ref();
                files.is_some_and(|files| files.changed().is_some())
                    || (resident.is_idle() && self.expires().is_some_and(|time| time <= now))
            }
            _ => false,
        }
    }

    /// Sets the slot, counts a loaded model, and wakes those who wait for a change.
    pub fn set(&self, slot: Slot) {
        if matches!(slot, Slot::Loaded(_)) {
            self.loads.fetch_add(1, Ordering::Relaxed);
        }
        *self.slot_mut() = slot;
        self.changed.notify_waiters();
    }

    /// Locks the slot for reading.
    pub fn slot(&self) -> RwLockReadGuard<'_, Slot> {
        self.slot.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the slot for writing, which does not wake those who wait for a change.
    pub fn slot_mut(&self) -> RwLockWriteGuard<'_, Slot> {
        self.slot.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resident {
    pub fn new(model: Model, memory: Option<Reserved>) -> Self {
        let (users, has_been_used) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self {
            model,
            users,
            has_been_used,
            loaded: Instant::now(),
            memory,
        }
    }

    fn is_idle(&self) -> bool {
        let is_awaited =
            self.has_been_used.load(Ordering::Relaxed) == 0 && self.loaded.elapsed() < UNUSED_TIME;
        self.users.load(Ordering::Acquire) == 0 && !is_awaited
    }
}

impl Deref for ModelLease {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.resident.model
    }
}

impl ModelLease {
    /// Whether both use the same loaded model.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.resident, &other.resident)
    }
}

impl Clone for ModelLease {
    fn clone(&self) -> Self {
        self.resident.users.fetch_add(1, Ordering::AcqRel);
        let Self {
            resident,
            budget,
            entry,
        } = self;
        Self {
            resident: Arc::clone(resident),
            budget: budget.clone(),
            entry: Arc::clone(entry),
        }
    }
}

impl Drop for ModelLease {
    fn drop(&mut self) {
        if self.resident.users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if let Some(budget) = &self.budget {
            self.entry.leave_if_due();
            budget.wake();
        }
    }
}

fn now_ms() -> u64 {
    u64::try_from(clock::since_1970().as_millis()).unwrap_or(u64::MAX)
}
