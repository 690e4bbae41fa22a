//! A backend with one graph.

use std::num::NonZeroUsize;

use async_trait::async_trait;

use super::{
    library::Runtime,
    session::{Graph, Session},
    workers::Workers,
};
use kivu_base::{Result, tensor::Tensor};
use kivu_core::backend::{Backend, Deadline, Schedule, Signature};

/// Runs batches in parallel on threads that share one session. Each batch runs on a single thread, which scales
/// better than several threads for one batch.
#[derive(Debug)]
pub struct OnnxBackend {
    signature: Signature,
    schedule: Schedule,
    workers: Workers<Session>,
}

/// A few short texts: fewer tokens are not worth the switch to another thread and back.
const MIN_CALL_TOKENS: usize = 32;

impl OnnxBackend {
    /// Loads a graph and starts `threads` threads.
    pub fn open(runtime: Runtime, graph: impl Into<Graph>, threads: NonZeroUsize) -> Result<Self> {
        let session = Session::open(runtime, graph, NonZeroUsize::MIN)?;
        let signature = session.signature().clone();
        // With one row per batch nothing is padded. Dynamic quantization, whose scale covers the whole batch, then
        // gives a text the same result whatever else is in the request.
        let schedule = Schedule::row_by_row(threads, MIN_CALL_TOKENS);
        Ok(Self {
            signature,
            schedule,
            workers: Workers::start("onnx", threads, session)?,
        })
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

    async fn infer_each(
        &self,
        batches: Vec<Vec<Tensor>>,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Tensor>>> {
        batches
            .iter()
            .try_for_each(|inputs| self.signature.check_inputs(inputs))?;
        let run = move |session: &Session, is_abandoned: &dyn Fn() -> bool| {
            let run_batch = |inputs: &Vec<Tensor>| match is_abandoned() || deadline.has_passed() {
                true => Err(deadline.exceeded()),
                false => session.run(inputs),
            };
            batches.iter().map(run_batch).collect()
        };
        self.workers.run(deadline, run).await
    }
}
