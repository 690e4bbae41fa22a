//! The seam between pipelines and whatever runs a model: this process, a fleet, or a script in a test.

pub mod onnx;
pub mod processor;
pub mod routing;
pub mod scripted;
pub mod seq2seq;
pub mod speed;
pub mod triton;

use std::{
    fmt::{self, Debug},
    future::Future,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    tensor::{ElementType, Tensor},
};

/// Runs a model: named tensors in, named tensors out.
///
/// # Contract
/// - `inputs` come in the order of [`Signature::inputs`], all with the same number of rows.
/// - Outputs come in the order of [`Signature::outputs`], their rows in the order of the inputs' rows.
/// - A batch that is not done by its deadline fails with [`Error::DeadlineExceeded`]; work that nobody waits
///   for any more is not begun.
/// - One batch's failure leaves the next batch unharmed.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// The inputs that the model takes and the outputs that it gives.
    fn signature(&self) -> &Signature;

    /// How this backend likes its work cut.
    fn schedule(&self) -> Schedule;

    /// Runs one batch before the deadline.
    async fn infer(&self, inputs: Vec<Tensor>, deadline: Deadline) -> Result<Vec<Tensor>>;

    /// Runs batches one after the other, as one call; gives the outputs of each.
    async fn infer_each(&self, batches: Vec<Vec<Tensor>>, deadline: Deadline) -> Result<Vec<Vec<Tensor>>> {
        let mut outputs = Vec::with_capacity(batches.len());
        for inputs in batches {
            outputs.push(self.infer(inputs, deadline).await?);
        }
        Ok(outputs)
    }
}

/// How a backend likes its work cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Rows that run best together.
    pub max_batch_size: NonZeroUsize,
    /// Calls that run side by side; one caller keeps no more than twice these under way, so that callers take
    /// turns.
    pub concurrency: NonZeroUsize,
    /// Batches of fewer tokens than this go together as one call, which spares each its own way to a thread and back.
    pub min_call_tokens: usize,
}

/// The inputs that a model takes and the outputs that it gives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The inputs, in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// The outputs, in the model's order.
    pub outputs: Vec<TensorSpec>,
}

/// The name, element type and shape of one input or output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The name in the graph.
    pub name: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// The length of each axis; -1 where any length goes.
    pub shape: Vec<i64>,
}

impl TensorSpec {
    /// A tensor of the given name, type and shape (-1: any length).
    pub fn new(name: impl Into<String>, element_type: ElementType, shape: impl Into<Vec<i64>>) -> Self {
        Self { name: name.into(), element_type, shape: shape.into() }
    }

    fn takes(&self, tensor: &Tensor) -> bool {
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
    /// The place of the output called `name`.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// Refuses inputs that the model would not take, naming both sides.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            return Err(Error::invalid(format!(
                "expected {} inputs, but found {}",
                self.inputs.len(),
                inputs.len()
            )));
        }
        for (spec, tensor) in self.inputs.iter().zip(inputs) {
            if !spec.takes(tensor) {
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

/// The moment by which an answer is of use, with the time that was granted for it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    granted: Duration,
}

impl Deadline {
    /// A deadline `time` from now.
    pub fn within(time: Duration) -> Self {
        Self { at: Instant::now() + time, granted: time }
    }

    /// The earlier of the two.
    pub fn or_earlier(self, other: Self) -> Self {
        if other.at < self.at { other } else { self }
    }

    /// The time left, zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The error of work that was not done in time.
    pub fn exceeded(&self) -> Error {
        Error::DeadlineExceeded { after: self.granted }
    }

    /// Runs work that takes its time off the threads that serve connections, and waits for it no longer than
    /// this deadline.
    pub async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = tokio::task::spawn_blocking(work);
        let cut_short = |error| Err(Error::inference_because("the work was cut short", error));
        self.bound(async { done.await.unwrap_or_else(cut_short) }).await
    }

    /// Waits for `work`, but no longer than this deadline.
    pub async fn bound<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout_at(self.at.into(), work).await.unwrap_or_else(|_| Err(self.exceeded()))
    }
}
