//! Memory for loaded models.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kivu_base::locked;

/// A number of bytes that loaded models share.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    /// How often bytes were freed, or [`Budget::wake`] was called.
    changes: u64,
}

/// Bytes that a model takes; they are free again once this is dropped.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<Budget>,
    pub bytes: u64,
}

impl Budget {
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// Takes `bytes`; `None` if fewer are free.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let mut state = self.lock();
        state.used = state
            .used
            .checked_add(bytes)
            .filter(|sum| *sum <= self.max)?;
        Some(Reserved {
            budget: Arc::clone(self),
            bytes,
        })
    }

    /// For [`Budget::wait`]: what happens from now on ends its wait.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Waits until bytes are freed or [`Budget::wake`] is called, if neither has happened since `changes`, but not longer
    /// than `limit`.
    pub fn wait(&self, changes: u64, limit: Duration) {
        let is_same = |state: &mut State| state.changes == changes;
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_same);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Wakes those that wait: a model is idle that may leave, or another one is to be loaded.
    pub fn wake(&self) {
        self.change(|_| {});
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.changes += 1;
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Reserved {
    /// Changes the number of bytes to what the model was found to take, even beyond the budget.
    pub fn correct(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.budget
            .change(|state| state.used = (state.used - before) + bytes);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.change(|state| state.used -= self.bytes);
    }
}
