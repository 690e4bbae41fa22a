//! SIGINT, SIGTERM and SIGHUP. A closed terminal sends SIGHUP.

use std::{fs, future::pending, process::ExitCode, thread};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use kivu::{Error, Result};
use kivu_compiler::abandon;

/// Main thread stack size, for work that moves to another thread.
const STACK_BYTES: usize = 8 * 1024 * 1024;
/// Offset for exit codes after a signal: added to the signal's number, as in shells.
const SIGNALLED: u8 = 128;

/// SIGINT, SIGTERM and SIGHUP; while this exists, they do not end the process.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the process ignores it, as after `nohup`.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Installs the handlers. Must be called inside a Tokio runtime.
    pub fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(Error::io("cannot wait for signals"));
        let kind = SignalKind::hangup();
        let hang_up = if is_ignored(kind) {
            None
        } else {
            Some(listen(kind)?)
        };
        let (interrupt, terminate) = (
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
        );
        Ok(Self {
            interrupt,
            terminate,
            hang_up,
        })
    }

    /// Waits for the next signal; the exit code for it, 130, 143 or 129.
    pub async fn next(&mut self) -> u8 {
        let hung_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => pending().await,
            }
        };
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = hung_up => SignalKind::hangup(),
        };
        SIGNALLED + u8::try_from(kind.as_raw_value()).unwrap_or_default()
    }
}

/// Whether this process ignores a signal, which its parent process may have requested.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}

/// Outcome of interruptible work.
pub enum Ended<T> {
    Done(T),
    /// A signal arrived first; contains its exit code.
    Signalled(ExitCode),
}

impl Ended<ExitCode> {
    pub fn code(self) -> ExitCode {
        match self {
            Self::Done(code) | Self::Signalled(code) => code,
        }
    }
}

/// Runs `work`, which may build a model, on another thread. Signals abandon it and its builds, with the signal's exit
/// code.
pub fn interruptible<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Ended<T>> {
    let runtime = Builder::new_current_thread().enable_io().build();
    runtime
        .map_err(Error::io("cannot wait for signals"))?
        .block_on(async {
            let ended = until_signal(&mut Signals::new()?, work).await?;
            if matches!(ended, Ended::Signalled(_)) {
                abandon();
            }
            Ok(ended)
        })
}

/// Runs `work` on another thread until it is done or a signal arrives. A signal does not stop the thread.
pub async fn until_signal<T: Send + 'static>(
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
