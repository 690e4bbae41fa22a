//! Threads that wait for models, and threads that load them.

use std::thread;

use kivu::{Error, Result};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

/// The stack of a thread that loads a model, as a program's main thread has it.
const STACK_BYTES: usize = 8 * 1024 * 1024;

/// A runtime for the futures of this crate. Models have their own threads; the runtime's wait for them, and tokenize
/// long texts.
pub fn runtime() -> Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("kivu")
        .enable_all()
        .build();
    runtime.map_err(Error::io("cannot start the threads that wait for models"))
}

/// Runs work that blocks, such as [`Source::load`](crate::Source::load), on a thread of its own. The work goes on if
/// the future is dropped.
pub async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, outcome) = oneshot::channel();
    let started = thread::Builder::new()
        .name("kivu-load".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _ = done.send(work());
        });
    started.map_err(Error::io("cannot start a thread"))?;
    outcome.await.unwrap_or_else(|_| {
        Err(Error::inference(
            "the model could not be loaded: its loader panicked",
        ))
    })
}
