//! Waits for models without the interpreter's lock, so that other Python threads run and Ctrl-C works.
//!
//! After `os.fork`, the child has none of this process's other threads. The child gets its own Tokio runtime, and models
//! are opened again ([`crate::model`]). What the threads were doing at that moment never ends in the child: a lock that
//! one of them held stays locked. So calls are counted, and a child whose parent was in the middle of one is refused.

use std::{
    future::Future,
    mem::ManuallyDrop,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use kivu::Error;
use pyo3::{PyErr, PyResult, Python};
use tokio::runtime::{Builder, Runtime};

use crate::errors::{exception, named};

/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(50);
/// The stack of a thread that loads a model, as a program's main thread has it.
const STACK_BYTES: usize = 8 * 1024 * 1024;

/// Calls in progress.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Locked only while the interpreter's lock is held, so that it is free in a forked child.
static RUNTIME: Mutex<Option<Started>> = Mutex::new(None);

/// A runtime, and the process that has its threads.
#[derive(Clone)]
struct Started {
    process: u32,
    /// `None` in a child that was forked during a call.
    runtime: Option<Arc<Runtime>>,
}

/// A call in progress.
struct Call;

impl Call {
    fn begin() -> Self {
        CALLS.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// This process's runtime.
///
/// # Errors
/// The process was forked during a call.
fn runtime(py: Python<'_>) -> PyResult<Arc<Runtime>> {
    let mut started = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let is_forked = started.as_ref().is_some_and(|started| started.process != process::id());
    if started.is_none() || is_forked {
        let is_usable = !is_forked || CALLS.load(Ordering::SeqCst) == 0;
        let runtime = is_usable.then(|| start(py)).transpose()?;
        // Dropping a parent's runtime would wait for its threads.
        let _parents = ManuallyDrop::new(started.replace(Started { process: process::id(), runtime }));
    }
    let runtime = started.as_ref().and_then(|started| started.runtime.clone());
    runtime.ok_or_else(|| {
        let message = "expected no call in other threads while the process was forked, but found one; fork before the \
                       first call, or start processes with the method `spawn` or `forkserver`";
        named(py, "ForkError", message.to_owned())
    })
}

fn start(py: Python<'_>) -> PyResult<Arc<Runtime>> {
    // Models have their own threads; these wait for them, and tokenize long texts.
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("kivu").enable_all().build();
    let failed = Error::io("cannot start the threads that wait for models");
    runtime.map(Arc::new).map_err(|error| exception(py, &failed(error)))
}

/// Waits for a model's results. An exception from a signal handler, such as `KeyboardInterrupt`, ends the wait and
/// cancels the work.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    work: impl Future<Output = kivu::Result<T>> + Send,
) -> PyResult<T> {
    let runtime = runtime(py)?;
    let _call = Call::begin();
    let mut work = Box::pin(work);
    loop {
        let polled = py.detach(|| {
            let work = work.as_mut();
            runtime.block_on(async move { tokio::time::timeout(POLL, work).await })
        });
        match polled {
            Ok(result) => return result.map_err(|error| exception(py, &error)),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Waits for work that blocks, on a thread of its own. It goes on after an exception from a signal handler.
pub(crate) fn wait_for_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> kivu::Result<T> + Send + 'static,
) -> PyResult<T> {
    // Refuses children that were forked during a call.
    runtime(py)?;
    let (done, mut outcome) = mpsc::channel();
    let call = Call::begin();
    let started =
        thread::Builder::new().name("kivu-load".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            let _call = call;
            let _ = done.send(work());
        });
    started.map_err(|error| exception(py, &Error::io("cannot start a thread")(error)))?;
    loop {
        let received;
        (received, outcome) = py.detach(move || (outcome.recv_timeout(POLL), outcome));
        match received {
            Ok(result) => return result.map_err(|error| exception(py, &error)),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(panicked(py)),
        }
    }
}

fn panicked(py: Python<'_>) -> PyErr {
    exception(py, &Error::inference("the model could not be loaded: its loader panicked"))
}
