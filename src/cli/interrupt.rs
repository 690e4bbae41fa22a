//! Work that SIGINT and SIGTERM end in an orderly way.

use std::{process::ExitCode, thread};

use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use crate::error::{Error, Result};

/// The stack of a main thread, which the work would have otherwise.
const STACK_BYTES: usize = 8 * 1024 * 1024;
/// What shells add to a signal's number for the exit code of a program that it ended.
const SIGNALLED: u8 = 128;

/// Does `work`, on a thread of its own. SIGINT and SIGTERM end the program after `clean_up`, with the exit codes 130
/// and 143.
pub(super) fn interruptible(
    work: impl FnOnce() -> Result<ExitCode> + Send + 'static,
    clean_up: impl FnOnce(),
) -> Result<ExitCode> {
    let failed = || Error::io("cannot wait for signals");
    let runtime = Builder::new_current_thread().enable_io().build().map_err(failed())?;
    runtime.block_on(async {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        let mut interrupted = signal(interrupt).map_err(failed())?;
        let mut terminated = signal(terminate).map_err(failed())?;
        let (done, outcome) = oneshot::channel();
        thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || done.send(work()))
            .map_err(Error::io("cannot start a thread"))?;
        let kind = tokio::select! {
            outcome = outcome => return outcome.unwrap_or_else(|_| Err(Error::model("the command panicked"))),
            _ = interrupted.recv() => interrupt,
            _ = terminated.recv() => terminate,
        };
        clean_up();
        let number = u8::try_from(kind.as_raw_value()).unwrap_or_default();
        Ok(ExitCode::from(SIGNALLED + number))
    })
}
