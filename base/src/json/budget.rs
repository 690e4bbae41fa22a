//! Memory for the values of a JSON text, counted before they are kept.

use std::cell::{Cell, RefCell};

use scoped_tls::scoped_thread_local;

use crate::error::{Error, Result};

/// Limit: a multiple of the text size plus a constant. Real requests stay far below it.
const MAX_FACTOR: usize = 6;
const MAX_EXTRA_BYTES: usize = 18 * 1024 * 1024;
/// Value size in a list that has grown, and the additional size of an object with one field. While a list is
/// reallocated, it takes half as much again.
pub const VALUE_BYTES: usize = 64;
pub const OBJECT_BYTES: usize = 640;
/// Memory is held in steps, which are this part of the memory so far, since holding takes longer than reading a value.
pub const STEP: usize = 8;

/// Maximum memory for the values of a text with this size, in bytes.
pub fn max_memory(bytes: usize) -> usize {
    bytes
        .saturating_mul(MAX_FACTOR)
        .saturating_add(MAX_EXTRA_BYTES)
}

/// Holds memory, in bytes, or refuses to.
type Hold = Box<dyn Fn(usize) -> Result<()>>;

/// Limits for one JSON text.
pub struct Budget {
    size: usize,
    max_texts: usize,
    taken: Cell<usize>,
    held: Cell<usize>,
    hold: Hold,
    refusal: RefCell<Option<Error>>,
}

scoped_thread_local! {
    /// Limits for the text that is being read: the fields of derived types get nothing else from their object.
    static BUDGET: Budget
}

impl Budget {
    /// Memory for a text with this size. Lists with texts keep at most `max_texts` of them.
    pub fn new(size: usize, max_texts: usize) -> Self {
        let (taken, held, refusal) = (Cell::new(0), Cell::new(0), RefCell::default());
        Self {
            size,
            max_texts,
            taken,
            held,
            hold: Box::new(|_| Ok(())),
            refusal,
        }
    }

    /// Calls `hold` with the memory for all values so far, before it is taken.
    pub fn held_by(self, hold: impl Fn(usize) -> Result<()> + 'static) -> Self {
        Self {
            hold: Box::new(hold),
            ..self
        }
    }

    /// Reads a text, whose values count from now on. Also returns the refusal of a value, if there was one.
    pub fn scope<T>(self, read: impl FnOnce() -> T) -> (T, Option<Error>) {
        let read = BUDGET.set(&self, read);
        (read, self.refusal.into_inner())
    }

    fn take(&self, bytes: usize) -> Result<()> {
        let taken = self.taken.get().saturating_add(bytes);
        self.taken.set(taken);
        if taken <= self.held.get() {
            return Ok(());
        }
        if taken > max_memory(self.size) {
            return Err(Error::too_large(format!(
                "expected JSON of texts and numbers, but found too many lists, objects or numbers \
                 for {} bytes",
                self.size
            ))
            .with_hint("send fewer at once"));
        }
        let held = taken
            .saturating_add(taken / STEP)
            .min(max_memory(self.size));
        (self.hold)(held)?;
        self.held.set(held);
        Ok(())
    }
}

fn current<T>(read: impl FnOnce(&Budget) -> T) -> Option<T> {
    BUDGET.is_set().then(|| BUDGET.with(read))
}

/// Takes memory for a value that is being read. Values outside of [`Budget::scope`] were counted before.
pub fn take<E: serde::de::Error>(bytes: usize) -> Result<(), E> {
    let refuse = |budget: &Budget| {
        let refused = budget
            .take(bytes)
            .map_err(|refusal| budget.refusal.replace(Some(refusal)));
        refused.map_err(|_| E::custom("too large"))
    };
    current(refuse).unwrap_or(Ok(()))
}

/// Maximum texts that a list keeps.
pub fn max_texts() -> usize {
    current(|budget| budget.max_texts).unwrap_or(usize::MAX)
}
