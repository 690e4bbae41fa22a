//! Kivu's own engine for encoders.
//!
//! It reads the graphs that `kivu build` writes. ONNX Runtime rounds differently, and a value that is rounded to a
//! different 8-bit integer changes all later layers, so both engines' results agree as well as int8 agrees
//! with fp32. A text's output has the same bits whatever other texts are in the request, for any thread count,
//! and on every processor.

mod graph;
mod label_head;
pub mod model;
mod stages;
mod table;
mod weights;
#[cfg_attr(target_family = "wasm", path = "caller.rs")]
mod workers;

use std::num::NonZeroUsize;

use async_trait::async_trait;
use kivu_engine::kernel::InstructionSet;
pub use kivu_engine::program::ABSENT;

use self::workers::{MIN_CALL_TOKENS, Workers};
pub use self::{
    graph::MULTI_VECTORS,
    label_head::{HIERARCHICAL_SOFTMAX, ROW_PRODUCTS},
    model::{NativeModel, TextOutputs, WeightFiles},
    table::{MEAN_OF_INT8_ROWS, MEAN_OF_ROWS, TableBackend, TableModel},
    weights::Buffer,
};
use super::{
    Schedule, Signature,
    encoder::{EachText, EncoderBackend, EncoderCall},
};
use crate::observer::record_batch;
use kivu_base::{Error, Result};

/// The instructions that the engine uses in this process.
pub fn instructions() -> InstructionSet {
    InstructionSet::current()
}

/// Selects the instructions for this process; `None` selects the fastest.
///
/// # Errors
/// If the process uses others already.
pub fn use_instructions(chosen: Option<InstructionSet>) -> Result<()> {
    match chosen {
        Some(chosen) if !chosen.choose() => Err(Error::config(format!(
            "expected the same `instructions` for all models in a process, but found `{}` after `{}`",
            chosen.name(),
            InstructionSet::current().name()
        ))),
        _ => Ok(()),
    }
}

/// Checks the instructions again after a restore from a snapshot, perhaps on another processor. Returns the
/// instructions that all models used before, if the processor lacks them.
pub fn check_instructions() -> Option<InstructionSet> {
    InstructionSet::check_again()
}

/// A model, and the threads that run it.
#[derive(Debug)]
pub struct NativeBackend {
    threads: NonZeroUsize,
    workers: Workers,
}

impl NativeBackend {
    /// Starts `threads` threads for a model.
    pub fn start(model: NativeModel, threads: NonZeroUsize) -> Result<Self> {
        Ok(Self {
            threads,
            workers: Workers::start(model, threads)?,
        })
    }

    fn model(&self) -> &NativeModel {
        self.workers.model()
    }
}

#[async_trait]
impl EncoderBackend for NativeBackend {
    fn signature(&self) -> &Signature {
        self.model().signature()
    }

    fn schedule(&self) -> Schedule {
        Schedule::row_by_row(self.threads, MIN_CALL_TOKENS)
    }

    fn text_bytes(&self, tokens: usize) -> Option<u64> {
        Some(self.model().text_bytes(tokens, self.threads))
    }

    /// Runs all batches' texts together.
    async fn run(&self, call: EncoderCall<'_>, each: &mut EachText<'_>) -> Result<()> {
        let model = self.model();
        let sequences = || call.batches.iter().flatten();
        let texts = sequences().map(|sequence| model.text(*sequence));
        let texts = texts.collect::<Result<_>>()?;
        record_batch("native");
        model.require_unchanged()?;
        let outputs = self.workers.run(texts, call.deadline).await?;
        model.require_unchanged()?;
        for (text, (sequence, found)) in sequences().zip(&outputs).enumerate() {
            each(text, &model.rows(sequence.encoding, call.outputs, found))?;
        }
        Ok(())
    }
}
