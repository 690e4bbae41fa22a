//! Work that SIGINT and SIGTERM end in an orderly way.

use std::{process::ExitCode, thread};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::error::{Error, Result};

/// The stack of a main thread, which the work would have otherwise.
const STACK_BYTES: usize = 8 * 1024 * 1024;
/// What shells add to a signal's number for the exit code of a program that it ended.
const SIGNALLED: u8 = 128;

/// SIGINT and SIGTERM, which no longer end the process by themselves.
pub(super) struct Signals {
    interrupted: Signal,
    terminated: Signal,
}

impl Signals {
    /// Takes the signals over; inside a runtime only.
    pub(super) fn new() -> Result<Self> {
        let failed = || Error::io("cannot wait for signals");
        Ok(Self {
            interrupted: signal(SignalKind::interrupt()).map_err(failed())?,
            terminated: signal(SignalKind::terminate()).map_err(failed())?,
        })
    }

    /// Waits for the next signal, and gives the exit code for it: 130 or 143.
    pub(super) async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupted.recv() => SignalKind::interrupt(),
            _ = self.terminated.recv() => SignalKind::terminate(),
        };
        SIGNALLED + u8::try_from(kind.as_raw_value()).unwrap_or_default()
    }
}

/// Does `work`, on a thread of its own. SIGINT and SIGTERM end the program after `clean_up`, with the exit codes 130
/// and 143.
pub(super) fn interruptible(
    work: impl FnOnce() -> Result<ExitCode> + Send + 'static,
    clean_up: impl FnOnce(),
) -> Result<ExitCode> {
    let failed = || Error::io("cannot wait for signals");
    let runtime = Builder::new_current_thread().enable_io().build().map_err(failed())?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (done, outcome) = oneshot::channel();
        thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || done.send(work()))
            .map_err(Error::io("cannot start a thread"))?;
        let code = tokio::select! {
            outcome = outcome => return outcome.unwrap_or_else(|_| Err(Error::model("the command panicked"))),
            code = signals.next() => code,
        };
        clean_up();
        Ok(ExitCode::from(code))
    })
}
