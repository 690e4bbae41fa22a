//! Replaces this module in WebAssembly, where all calls run one after another.

use std::{future::Future, num::NonZeroUsize};

/// Runs background work, which has no priority here.
pub(crate) async fn in_background<T>(work: impl Future<Output = T>) -> T {
    work.await
}

/// A running request.
pub(super) struct Running(());

impl Running {
    pub(super) fn begin() -> Self {
        Self(())
    }
}

/// Maximum calls in progress.
pub(super) fn max_calls(_: NonZeroUsize) -> usize {
    1
}

/// Waits for nothing.
pub(super) async fn give_way() {}
