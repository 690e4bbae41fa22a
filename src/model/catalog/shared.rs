//! The entries, which requests, loads and refreshes share.

use std::sync::{Arc, PoisonError, RwLock};

use super::entry::Entry;

/// All entries, in configuration order.
#[derive(Debug)]
pub struct Shared {
    entries: RwLock<Arc<[Arc<Entry>]>>,
}

impl Shared {
    pub fn new(entries: Arc<[Arc<Entry>]>) -> Self {
        Self {
            entries: RwLock::new(entries),
        }
    }

    pub fn entries(&self) -> Arc<[Arc<Entry>]> {
        Arc::clone(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces all entries, and wakes requests that wait for one that is gone.
    pub fn replace(&self, entries: &Arc<[Arc<Entry>]>) {
        let old = {
            let mut current = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(entries))
        };
        let is_gone = |entry: &&Arc<Entry>| !entries.iter().any(|now| Arc::ptr_eq(now, entry));
        for entry in old.iter().filter(is_gone) {
            entry.unload();
            entry.changed.notify_waiters();
        }
    }

    pub fn has(&self, entry: &Arc<Entry>) -> bool {
        self.entries().iter().any(|now| Arc::ptr_eq(now, entry))
    }
}
