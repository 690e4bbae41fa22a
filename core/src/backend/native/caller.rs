//! Runs a model on the callers' thread, in WebAssembly.

use std::{num::NonZeroUsize, sync::Mutex};

use kivu_engine::{
    kernel::InstructionSet,
    run::{Scratch, Text, Values},
};

use super::model::{NativeModel, TextOutputs};
use crate::backend::Deadline;
use kivu_base::{Result, locked};

/// Calls with fewer tokens are combined: one thread reads the weights once per call.
pub const MIN_CALL_TOKENS: usize = 192;

/// Outputs per text.
pub type Outputs = Vec<TextOutputs>;

/// A model, with the buffers from its last run.
#[derive(Debug)]
pub struct Workers {
    model: NativeModel,
    buffers: Mutex<(Values, Scratch)>,
}

impl Workers {
    pub fn start(model: NativeModel, _: NonZeroUsize) -> Result<Self> {
        Ok(Self {
            model,
            buffers: Mutex::default(),
        })
    }

    pub fn model(&self) -> &NativeModel {
        &self.model
    }

    /// Runs the model on texts.
    pub async fn run(&self, texts: Vec<Text>, _: Deadline) -> Result<Outputs> {
        let program = &self.model.program;
        let mut buffers = locked(&self.buffers);
        let (values, scratch) = &mut *buffers;
        let run = program.pack(texts.iter(), NonZeroUsize::MIN, std::mem::take(values));
        let instructions = InstructionSet::current();
        for stage in &program.stages {
            for task in 0..run.tasks(stage) {
                run.execute(program, instructions, stage, task, scratch);
            }
        }
        let outputs = (0..texts.len())
            .map(|text| run.outputs(program, text))
            .collect();
        *values = run.into_values();
        Ok(outputs)
    }
}
