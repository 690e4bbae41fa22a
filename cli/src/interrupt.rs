//! SIGINT and SIGTERM.

use std::{process::ExitCode, thread};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use kivu::error::{Error, Result};
use kivu_compiler::abandon;

/// The stack size of a main thread, for work that moves to another thread.
const STACK_BYTES: usize = 8 * 1024 * 1024;
/// The exit code of a process that a signal ended is this and the signal's number, as in shells.
const SIGNALLED: u8 = 128;

/// SIGINT and SIGTERM; while this exists, they do not end the process.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the signals over. Must be called inside a runtime.
    pub(super) fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(Error::io("cannot wait for signals"));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next signal; the exit code for it, 130 or 143.
    pub(super) async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        SIGNALLED + u8::try_from(kind.as_raw_value()).unwrap_or_default()
    }
}

/// How work ended.
pub(super) enum Ended<T> {
    Done(T),
    /// A signal came first. The exit code for it.
    Signalled(ExitCode),
}

impl Ended<ExitCode> {
    pub(super) fn code(self) -> ExitCode {
        match self {
            Self::Done(code) | Self::Signalled(code) => code,
        }
    }
}

/// Runs `work`, which may build a model, on another thread. SIGINT and SIGTERM abandon it and its builds, with the exit
/// code 130 or 143.
pub(super) fn interruptible<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Ended<T>> {
    let runtime = Builder::new_current_thread().enable_io().build();
    runtime.map_err(Error::io("cannot wait for signals"))?.block_on(async {
        let ended = until_signal(&mut Signals::new()?, work).await?;
        if matches!(ended, Ended::Signalled(_)) {
            abandon();
        }
        Ok(ended)
    })
}

/// Runs `work` on another thread until it is done, or until a signal arrives. The thread continues then.
pub(super) async fn until_signal<T: Send + 'static>(
    signals: &mut Signals,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Ended<T>> {
    let (done, outcome) = oneshot::channel();
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || done.send(work()))
        .map_err(Error::io("cannot start a thread"))?;
    tokio::select! {
        outcome = outcome => {
            outcome.unwrap_or_else(|_| Err(Error::model("the command panicked"))).map(Ended::Done)
        }
        code = signals.next() => Ok(Ended::Signalled(ExitCode::from(code))),
    }
}
