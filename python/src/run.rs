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
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kivu::locked;
use kivu_bindings::{Source, on_thread};
use pyo3::{PyResult, Python};
use tokio::runtime::Runtime;

use crate::errors::{exception, named};

/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(50);

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
    let mut started = locked(&RUNTIME);
    let is_forked = started
        .as_ref()
        .is_some_and(|started| started.process != process::id());
    if started.is_none() || is_forked {
        let is_usable = !is_forked || CALLS.load(Ordering::SeqCst) == 0;
        let runtime = is_usable.then(kivu_bindings::runtime).transpose();
        let runtime = runtime
            .map_err(|error| exception(py, &error))?
            .map(Arc::new);
        // Dropping a parent's runtime would wait for its threads.
        let _parents = ManuallyDrop::new(started.replace(Started {
            process: process::id(),
            runtime,
        }));
    }
    let runtime = started.as_ref().and_then(|started| started.runtime.clone());
    runtime.ok_or_else(|| {
        let message = "the process was forked during a call in another thread; fork before the first call, or start processes with the method `spawn` or `forkserver`";
        named(py, "ForkError", message.to_owned())
    })
}

/// Waits for a model's results. An exception from a signal handler, such as `KeyboardInterrupt`, ends the wait and
/// cancels the work.
pub fn wait<T: Send>(
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

/// Waits for a model that is loaded on a thread of its own. Loading goes on after an exception from a signal handler.
pub fn wait_for_load(py: Python<'_>, source: Source) -> PyResult<kivu::Model> {
    // Refuses children that were forked during a call.
    runtime(py)?;
    let call = Call::begin();
    let load = move || {
        let _call = call;
        source.load(kivu_aws::cloud)
    };
    wait(py, on_thread(load))
}
