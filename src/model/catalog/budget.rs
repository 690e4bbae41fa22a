//! Memory for loaded models.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A number of bytes that loaded models share.
#[derive(Debug)]
pub(super) struct Budget {
    max: u64,
    used: Mutex<u64>,
    freed: Condvar,
}

/// Bytes that a model takes; they are free again once this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    budget: Arc<Budget>,
    pub(super) bytes: u64,
}

impl Budget {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, used: Mutex::default(), freed: Condvar::new() })
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    pub(super) fn used(&self) -> u64 {
        *self.lock()
    }

    /// Takes `bytes`; `None` if fewer are free.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let mut used = self.lock();
        let sum = used.checked_add(bytes).filter(|sum| *sum <= self.max)?;
        *used = sum;
        Some(Reserved { budget: Arc::clone(self), bytes })
    }

    /// Waits until bytes are freed or [`Budget::wake`] is called, but not longer than `limit`.
    pub(super) fn wait(&self, limit: Duration) {
        let _ = self.freed.wait_timeout(self.lock(), limit).unwrap_or_else(PoisonError::into_inner);
    }

    /// Wakes those that wait for bytes, since a model is idle that may leave.
    pub(super) fn wake(&self) {
        self.freed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved {
    /// Changes the number of bytes to what the model was found to take, even beyond the budget.
    pub(super) fn correct(&mut self, bytes: u64) {
        let mut used = self.budget.lock();
        *used = (*used - self.bytes) + bytes;
        self.bytes = bytes;
        drop(used);
        self.budget.freed.notify_all();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        *self.budget.lock() -= self.bytes;
        self.budget.freed.notify_all();
    }
}
