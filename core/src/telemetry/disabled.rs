//! Replaces this module in WebAssembly: nothing is recorded.

#![expect(
    missing_docs,
    reason = "documented in the module that this one replaces"
)]

use std::time::Duration;

pub fn record_encoding(_: usize, _: Duration, _: Duration) {}

pub fn record_run(_: &'static str) {}

pub fn time_start<T>(_: &'static str, work: impl FnOnce() -> T) -> T {
    work()
}

pub mod fleet {
    pub fn record_fallback() {}
}

pub mod request {
    use std::future::Future;

    #[derive(Clone, Copy, Debug)]
    pub enum Stage {
        Tokenization,
    }

    pub async fn timed<T, E>(_: Stage, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        work.await
    }

    pub async fn timed_run<T, E>(run: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        run.await
    }
}
