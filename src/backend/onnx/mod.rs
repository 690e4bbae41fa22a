//! Runs ONNX graphs in this process: one-thread sessions side by side, since those scale better than threads
//! inside a session.

pub mod library;
mod session;

use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread,
};

use async_trait::async_trait;
use tokio::sync::oneshot;

pub use self::{library::Runtime, session::Session};
use super::{Backend, Deadline, Schedule, Signature};
use crate::{
    error::{Error, Result},
    tensor::Tensor,
};

/// A graph served by a row of sessions, each on a thread of its own.
///
/// - Batches wait in one queue and go to the session that is free first.
/// - The queue forgets batches whose caller has gone or whose deadline has passed.
/// - Dropping the backend ends the threads once the queue is empty.
#[derive(Debug)]
pub struct OnnxBackend {
    signature: Signature,
    schedule: Schedule,
    batches: flume::Sender<Batch>,
}

#[derive(Debug)]
struct Batch {
    inputs: Vec<Tensor>,
    deadline: Deadline,
    reply: oneshot::Sender<Result<Vec<Tensor>>>,
}

impl OnnxBackend {
    /// Loads the graph at `path` into `sessions` sessions.
    ///
    /// Returns as soon as the first is ready; the others are made in the background meanwhile, so that a cold
    /// start waits for one only.
    pub fn open(runtime: Runtime, path: &Path, sessions: NonZeroUsize) -> Result<Self> {
        let first = Session::open(runtime, path, NonZeroUsize::MIN)?;
        let signature = first.signature().clone();
        let (batches, queue) = flume::unbounded();
        let mut ready = Some(first);
        for number in 0..sessions.get() {
            let (queue, first, path) = (queue.clone(), ready.take(), path.to_owned());
            thread::Builder::new()
                .name(format!("onnx-{number}"))
                .spawn(move || serve(runtime, first, path, &queue))
                .map_err(Error::io("cannot start a thread for an ONNX session"))?;
        }
        // One row a run: nothing is padded, and with dynamic quantisation, whose scale is that of the whole
        // batch, every text gets the same answer in whatever company it comes.
        let schedule = Schedule { rows: NonZeroUsize::MIN, lanes: sessions };
        Ok(Self { signature, schedule, batches })
    }
}

fn serve(runtime: Runtime, ready: Option<Session>, path: PathBuf, queue: &flume::Receiver<Batch>) {
    let session = ready.map_or_else(|| Session::open(runtime, &path, NonZeroUsize::MIN), Ok);
    drop(path);
    let mut session = match session {
        Ok(session) => session,
        Err(error) => {
            tracing::error!(error = error.chain(), "one ONNX session less than configured");
            return;
        }
    };
    for Batch { inputs, deadline, reply } in queue {
        if reply.is_closed() {
            continue;
        }
        let outcome = if deadline.has_passed() {
            Err(deadline.exceeded())
        } else {
            catch_unwind(AssertUnwindSafe(|| session.run(&inputs))).unwrap_or_else(|_| {
                Err(Error::Inference { message: "the model's run panicked".into(), source: None })
            })
        };
        // A caller that has gone wants no answer.
        let _ = reply.send(outcome);
    }
}

#[async_trait]
impl Backend for OnnxBackend {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schedule(&self) -> Schedule {
        self.schedule
    }

    async fn infer(&self, inputs: Vec<Tensor>, deadline: Deadline) -> Result<Vec<Tensor>> {
        self.signature.check_inputs(&inputs)?;
        let stopped = || Error::Inference { message: "the ONNX sessions have stopped".into(), source: None };
        let (reply, answer) = oneshot::channel();
        self.batches.send(Batch { inputs, deadline, reply }).map_err(|_| stopped())?;
        deadline.bound(async { answer.await.unwrap_or_else(|_| Err(stopped())) }).await
    }
}
