//! Runs ONNX graphs in this process: batches side by side, one thread each, since that scales better than
//! several threads on one batch.

mod bindings;
pub mod library;
mod mapped;
mod row_permutation;
mod run;
mod seq2seq;
mod session;
mod values;
mod weights;

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
    mapped::MappedFiles,
    seq2seq::{OnnxSeq2Seq, Parallelism},
    session::{Graph, Session},
    weights::{Constants, Weights, keeps_signed_weights, require_known_files},
};
use super::{Backend, Deadline, Schedule, Signature};
use crate::{
    error::{Error, Result},
    telemetry,
    tensor::Tensor,
};

/// A graph served by a row of threads that share one session.
///
/// - Calls wait in one queue and go to the thread that is free first.
/// - The queue forgets calls whose caller has gone or whose deadline has passed.
/// - Dropping the backend ends the threads once the queue is empty.
#[derive(Debug)]
pub struct OnnxBackend {
    signature: Signature,
    schedule: Schedule,
    calls: flume::Sender<Call>,
}

/// Batches that a thread runs one after the other.
#[derive(Debug)]
struct Call {
    batches: Vec<Vec<Tensor>>,
    deadline: Deadline,
    reply: oneshot::Sender<Result<Vec<Vec<Tensor>>>>,
}

/// The tokens that a call has if there are so many: a few short texts.
const TOKENS_A_CALL: usize = 32;

impl OnnxBackend {
    /// Loads a graph for `threads` batches at a time.
    pub fn open(runtime: Runtime, graph: impl Into<Graph>, threads: NonZeroUsize) -> Result<Self> {
        let session = Session::open(runtime, graph, NonZeroUsize::MIN)?;
        let signature = session.signature().clone();
        let session = Arc::new(session);
        let (calls, queue) = flume::unbounded::<Call>();
        for number in 0..threads.get() {
            let (session, queue) = (Arc::clone(&session), queue.clone());
            thread::Builder::new()
                .name(format!("onnx-{number}"))
                .spawn(move || queue.iter().for_each(|call| call.run(&session)))
                .map_err(Error::io("cannot start a thread for an ONNX session"))?;
        }
        // One row a run: nothing is padded, and with dynamic quantisation, whose scale is that of the whole
        // batch, every text gets the same answer in whatever company it comes.
        let schedule = Schedule {
            max_batch_size: NonZeroUsize::MIN,
            concurrency: threads,
            min_call_tokens: TOKENS_A_CALL,
        };
        Ok(Self { signature, schedule, calls })
    }
}

impl Call {
    fn run(self, session: &Session) {
        let Self { batches, deadline, reply } = self;
        let mut outputs = Vec::with_capacity(batches.len());
        for inputs in batches {
            if reply.is_closed() {
                return;
            }
            let outcome = if deadline.has_passed() {
                Err(deadline.exceeded())
            } else {
                catch_unwind(AssertUnwindSafe(|| session.run(&inputs)))
                    .unwrap_or_else(|_| Err(Error::inference("the model's run panicked")))
            };
            match outcome {
                Ok(output) => outputs.push(output),
                Err(error) => {
                    // A caller that has gone wants no answer.
                    let _ = reply.send(Err(error));
                    return;
                }
            }
        }
        let _ = reply.send(Ok(outputs));
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
        let outputs = self.infer_each(vec![inputs], deadline).await?;
        Ok(outputs.into_iter().next().unwrap_or_default())
    }

    async fn infer_each(&self, batches: Vec<Vec<Tensor>>, deadline: Deadline) -> Result<Vec<Vec<Tensor>>> {
        batches.iter().try_for_each(|inputs| self.signature.check_inputs(inputs))?;
        let stopped = || Error::inference("the threads of the ONNX session have stopped");
        telemetry::ran("onnx");
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { batches, deadline, reply }).map_err(|_| stopped())?;
        deadline.bound(async { answer.await.unwrap_or_else(|_| Err(stopped())) }).await
    }
}
