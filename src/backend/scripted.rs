//! A backend that answers from a function: for tests of everything above the seam.

use std::{fmt, num::NonZeroUsize, sync::Mutex};

use async_trait::async_trait;

use super::{Backend, Deadline, Schedule, Signature};
use crate::{error::Result, tensor::Tensor};

type Script = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// Answers every batch with what its function makes of it, and remembers the shapes that it was given.
pub struct ScriptedBackend {
    signature: Signature,
    schedule: Schedule,
    script: Box<Script>,
    shapes: Mutex<Vec<Vec<usize>>>,
}

impl ScriptedBackend {
    /// A backend of that signature, one row a batch and one batch at a time, that answers with `script`.
    pub fn new(
        signature: Signature,
        script: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            signature,
            schedule: Schedule { rows: NonZeroUsize::MIN, lanes: NonZeroUsize::MIN },
            script: Box::new(script),
            shapes: Mutex::default(),
        }
    }

    /// The same backend with another schedule.
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// The shape of the first input of every batch so far, in the order they came.
    pub fn shapes(&self) -> Vec<Vec<usize>> {
        self.shapes.lock().map(|shapes| shapes.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for ScriptedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedBackend").field("signature", &self.signature).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for ScriptedBackend {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schedule(&self) -> Schedule {
        self.schedule
    }

    async fn infer(&self, inputs: Vec<Tensor>, deadline: Deadline) -> Result<Vec<Tensor>> {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        self.signature.check_inputs(&inputs)?;
        if let (Ok(mut shapes), Some(first)) = (self.shapes.lock(), inputs.first()) {
            shapes.push(first.shape().to_vec());
        }
        (self.script)(&inputs)
    }
}
