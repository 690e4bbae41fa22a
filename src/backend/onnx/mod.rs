//! Runs ONNX graphs in this process: batches side by side, one thread each, since that scales better than
//! several threads on one batch.

pub mod library;
mod moves;
mod run;
mod sequences;
mod session;
mod values;
mod weights;
mod wiring;

use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use async_trait::async_trait;
use tokio::sync::oneshot;

pub use self::{
    library::Runtime,
    sequences::{OnnxSequences, Parallel},
    session::{Graph, Session},
    weights::{Constants, Weights, require_known_files},
};
use super::{Backend, Deadline, Schedule, Signature};
use crate::{
    error::{Error, Result},
    telemetry,
    tensor::Tensor,
};

/// A graph served by a row of threads that share one session.
///
/// - Batches wait in one queue and go to the thread that is free first.
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
    /// Loads a graph for `threads` batches at a time.
    pub fn open(runtime: Runtime, graph: impl Into<Graph>, threads: NonZeroUsize) -> Result<Self> {
        let session = Session::open(runtime, graph, NonZeroUsize::MIN)?;
        let signature = session.signature().clone();
        let session = Arc::new(session);
        let (batches, queue) = flume::unbounded::<Batch>();
        for number in 0..threads.get() {
            let (session, queue) = (Arc::clone(&session), queue.clone());
            thread::Builder::new()
                .name(format!("onnx-{number}"))
                .spawn(move || queue.iter().for_each(|batch| batch.run(&session)))
                .map_err(Error::io("cannot start a thread for an ONNX session"))?;
        }
        // One row a run: nothing is padded, and with dynamic quantisation, whose scale is that of the whole
        // batch, every text gets the same answer in whatever company it comes.
        let schedule = Schedule { rows: NonZeroUsize::MIN, lanes: threads };
        Ok(Self { signature, schedule, batches })
    }
}

impl Batch {
    fn run(self, session: &Session) {
        let Self { inputs, deadline, reply } = self;
        if reply.is_closed() {
            return;
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
        let stopped = || Error::Inference {
            message: "the threads of the ONNX session have stopped".into(),
            source: None,
        };
        telemetry::ran("onnx");
        let (reply, answer) = oneshot::channel();
        self.batches.send(Batch { inputs, deadline, reply }).map_err(|_| stopped())?;
        deadline.bound(async { answer.await.unwrap_or_else(|_| Err(stopped())) }).await
    }
}
