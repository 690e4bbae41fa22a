//! The interface between pipelines and model runtimes, and Kivu's own engine. ONNX Runtime and fleets of servers, in crates of
//! their own, implement it as well.

pub mod encoder;
pub mod external_files;
pub mod model_inputs;
pub mod native;
pub mod processor;
pub mod routing;
pub mod scripted;
pub mod seq2seq;
mod signature;
pub mod similarity;
pub mod speed;
pub mod tensors;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    future::Future,
    num::NonZeroUsize,
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use native::ABSENT;

use kivu_base::{
    Error, Result,
    clock::Instant,
    error::quoted,
    tensor::{ElementType, Tensor},
};

/// Graph input with label vectors, for models whose labels another model reads.
pub const LABEL_VECTORS: &str = "label_vectors";
/// Input with the number of each token's task, from 1 on, or 0 for none, in models with task adapters.
pub const TASK_IDS: &str = "task_ids";

/// An engine for local models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Kivu's own, [`native`].
    Native,
    /// ONNX Runtime, in the crate `kivu-onnx`.
    #[default]
    Onnx,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Runs a model on named tensors.
///
/// # Contract
/// - `inputs` are in [`Signature::inputs`] order and have equal row counts.
/// - Outputs are in [`Signature::outputs`] order, with their rows in input order.
/// - A batch that misses its deadline fails with [`Error::DeadlineExceeded`]. Work does not start once its caller has
///   cancelled it.
/// - A failed batch does not affect other batches.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// The model's inputs and outputs.
    fn signature(&self) -> &Signature;

    /// The preferred batching.
    fn schedule(&self) -> Schedule;

    /// Runs batches in a single call. Returns the outputs per batch.
    async fn infer_each(
        &self,
        batches: Vec<Vec<Tensor>>,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Tensor>>>;

    /// Runs one batch.
    async fn infer(&self, inputs: Vec<Tensor>, deadline: Deadline) -> Result<Vec<Tensor>> {
        let outputs = self.infer_each(vec![inputs], deadline).await?;
        Ok(outputs.into_iter().next().unwrap_or_default())
    }
}

/// A model on a fleet, with the servers' description.
pub trait RemoteBackend: Backend {
    /// The servers' description.
    fn interface(&self) -> &Interface;

    /// The same model with only these outputs, in this order. `outputs` are indexes into the signature's.
    fn with_outputs(&self, outputs: &[usize]) -> Arc<dyn RemoteBackend>;

    /// The same model with the parameter `name` in every request.
    fn with_parameter(&self, name: &str, text: String) -> Arc<dyn RemoteBackend>;
}

/// A model on a fleet whose servers may not be running yet.
#[async_trait]
pub trait RemoteSource: Debug + Send + Sync {
    /// Whether a request can be sent now, as far as is known.
    fn is_available(&self) -> bool;

    /// The request's deadline or the fleet's timeout, whichever is earlier.
    fn deadline(&self, request: Deadline) -> Deadline;

    /// The model as the servers describe it. Sends a request only if necessary.
    async fn connect(&self, deadline: Deadline) -> Result<Arc<dyn RemoteBackend>>;

    /// Closes all connections and forgets what was measured over them; the next request opens new ones. Call it before the
    /// runtime in which they were opened ends.
    fn disconnect(&self);
}

/// Files that a model's weights are mapped from. Writing to one changes the model.
pub trait MappedFiles: Debug + Send + Sync {
    /// The first file that was written to since it was opened. Takes a system call per file.
    fn changed(&self) -> Option<&Path>;
}

/// Fails if one of a model's mapped files was written to. The error is for clients, and contains no path.
pub fn require_unchanged(mapped: Option<&dyn MappedFiles>) -> Result<()> {
    match mapped.and_then(MappedFiles::changed) {
        None => Ok(()),
        Some(_) => Err(
            Error::unavailable("the model's files have changed since it was loaded")
                .with_hint("restart the server, or retry later if it loads models on demand"),
        ),
    }
}

/// A model's interface, as described by the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The inputs and outputs.
    pub signature: Signature,
    /// The preferred batching.
    pub schedule: Schedule,
    /// Parameters in the model's configuration.
    pub parameters: BTreeMap<String, String>,
}

/// The batching that a backend prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Rows per batch.
    pub max_batch_size: NonZeroUsize,
    /// Calls that run in parallel. A caller has at most twice as many under way, so that callers take turns.
    pub concurrency: NonZeroUsize,
    /// Batches with fewer tokens are combined into one call, which saves thread switches. If that would leave the
    /// backend idle, calls have fewer tokens, but at least a quarter of this number.
    pub min_call_tokens: usize,
}

impl Schedule {
    /// Single-row batches, which need no padding.
    pub fn row_by_row(concurrency: NonZeroUsize, min_call_tokens: usize) -> Self {
        Self {
            max_batch_size: NonZeroUsize::MIN,
            concurrency,
            min_call_tokens,
        }
    }
}

/// A model's inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// In the model's order.
    pub inputs: Vec<TensorSpec>,
    /// In the model's order.
    pub outputs: Vec<TensorSpec>,
}

/// Name, element type and shape for one input or output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The name in the graph.
    pub name: String,
    /// Element type.
    pub element_type: ElementType,
    /// Axis lengths; -1 for any length.
    pub shape: Vec<i64>,
}

impl TensorSpec {
    /// A tensor with this name, type and shape.
    pub fn new(
        name: impl Into<String>,
        element_type: ElementType,
        shape: impl Into<Vec<i64>>,
    ) -> Self {
        Self {
            name: name.into(),
            element_type,
            shape: shape.into(),
        }
    }

    /// Names for error messages.
    pub fn names(specs: &[Self]) -> String {
        quoted(
            &specs
                .iter()
                .map(|spec| spec.name.as_str())
                .collect::<Vec<_>>(),
        )
    }

    fn accepts(&self, tensor: &Tensor) -> bool {
        self.element_type == tensor.element_type()
            && self.shape.len() == tensor.shape().len()
            && self
                .shape
                .iter()
                .zip(tensor.shape())
                .all(|(side, found)| *side < 0 || *side as usize == *found)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |specs: &[TensorSpec]| {
            let specs = specs.iter();
            specs
                .map(|spec| format!("`{}` {} {:?}", spec.name, spec.element_type, spec.shape))
                .collect::<Vec<_>>()
                .join(", ")
        };
        write!(f, "{} → {}", list(&self.inputs), list(&self.outputs))
    }
}

impl Signature {
    /// Output index by name.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// Refuses inputs that do not match the signature, with both in the message.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            return Err(Error::invalid(format!(
                "expected {} inputs, but found {}",
                self.inputs.len(),
                inputs.len()
            )));
        }
        for (spec, tensor) in self.inputs.iter().zip(inputs) {
            if !spec.accepts(tensor) {
                return Err(Error::invalid(format!(
                    "expected `{}` as {} of shape {:?}, but found {} of shape {:?}",
                    spec.name,
                    spec.element_type,
                    spec.shape,
                    tensor.element_type(),
                    tensor.shape()
                )));
            }
        }
        Ok(())
    }
}

/// The time by which a result is needed, for a request or one of its parts.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    /// The time that was granted, for the error message.
    granted: Duration,
    /// Parts of the request that run at the same time.
    parts: NonZeroUsize,
}

impl Deadline {
    /// A deadline `time` from now.
    pub fn within(time: Duration) -> Self {
        Self {
            at: Instant::now() + time,
            granted: time,
            parts: NonZeroUsize::MIN,
        }
    }

    /// No deadline that a program could miss: a year from now.
    pub fn none() -> Self {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        Self::within(YEAR)
    }

    /// The same deadline for each of a request's parts, of which up to `parts` run at the same time. Together they have
    /// as much work in progress as other requests, so that requests take turns.
    pub fn shared_by(self, parts: usize) -> Self {
        let parts = NonZeroUsize::new(parts).unwrap_or(NonZeroUsize::MIN);
        Self {
            parts: self.parts.saturating_mul(parts),
            ..self
        }
    }

    /// The part of `count` that this part of a request may have in progress, at least 1.
    pub fn share(&self, count: usize) -> usize {
        (count / self.parts).max(1)
    }

    /// Returns the earlier deadline.
    pub fn or_earlier(self, other: Self) -> Self {
        let parts = self.parts;
        let earlier = if other.at < self.at { other } else { self };
        Self { parts, ..earlier }
    }

    /// The time left; zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether no time is left.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Error for work that missed the deadline.
    pub fn exceeded(&self) -> Error {
        Error::DeadlineExceeded {
            after: self.granted,
        }
    }

    /// Runs `work` on an input with this size: here, or on another thread if it would delay other requests.
    pub async fn run_sized<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        const MAX_INLINE_BYTES: usize = 8 * 1024;
        if bytes <= MAX_INLINE_BYTES {
            work()
        } else {
            self.off_thread(work).await
        }
    }

    /// Runs blocking `work` here: there are no other threads.
    #[cfg(target_family = "wasm")]
    pub async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        work()
    }

    /// Waits for `work`: there is no clock.
    #[cfg(target_family = "wasm")]
    pub async fn bound<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        work.await
    }

    /// Runs blocking `work` on another thread, and waits for its result until the deadline.
    #[cfg(not(target_family = "wasm"))]
    pub async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let task = tokio::task::spawn_blocking(work);
        let failed = |error| {
            Err(Error::inference_because(
                "the work panicked or was cancelled",
                error,
            ))
        };
        self.bound(async { task.await.unwrap_or_else(failed) })
            .await
    }

    /// Waits for `work` until the deadline.
    #[cfg(not(target_family = "wasm"))]
    pub async fn bound<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout_at(self.at.into(), work)
            .await
            .unwrap_or_else(|_| Err(self.exceeded()))
    }
}
