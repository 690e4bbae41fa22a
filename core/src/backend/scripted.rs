//! Backends whose outputs come from a function: test doubles, and recorders of inputs.

use std::{fmt, num::NonZeroUsize, sync::Mutex};

use async_trait::async_trait;

use crate::backend::{
    Backend, Deadline, Schedule, Signature,
    seq2seq::{DecodeFn, Decoder, Logits, Seq2SeqBackend, SourceBatch},
};
use kivu_base::{Result, locked, tensor::Tensor};

type Script = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// Computes a batch's outputs with a function, and records the input shapes.
pub struct ScriptedBackend {
    signature: Signature,
    schedule: Schedule,
    script: Box<Script>,
    shapes: Mutex<Vec<Vec<usize>>>,
}

impl ScriptedBackend {
    /// A backend that runs `script`, with one row per batch and one batch at a time.
    pub fn new(
        signature: Signature,
        script: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            signature,
            schedule: Schedule {
                max_batch_size: NonZeroUsize::MIN,
                concurrency: NonZeroUsize::MIN,
                min_call_tokens: 0,
            },
            script: Box::new(script),
            shapes: Mutex::default(),
        }
    }

    /// Sets the schedule.
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// First input's shape per batch so far.
    pub fn shapes(&self) -> Vec<Vec<usize>> {
        locked(&self.shapes).clone()
    }
}

impl fmt::Debug for ScriptedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedBackend")
            .field("signature", &self.signature)
            .finish_non_exhaustive()
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

    async fn infer_each(
        &self,
        batches: Vec<Vec<Tensor>>,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Tensor>>> {
        let run = |inputs: Vec<Tensor>| {
            if deadline.has_passed() {
                return Err(deadline.exceeded());
            }
            self.signature.check_inputs(&inputs)?;
            locked(&self.shapes).extend(inputs.first().map(|first| first.shape().to_vec()));
            (self.script)(&inputs)
        };
        batches.into_iter().map(run).collect()
    }
}

type Continuation = dyn Fn(&[i64], &[i64]) -> Vec<f32> + Send + Sync;

/// A sequence-to-sequence backend whose scores are a function of a source and its target so far, which begins with the
/// decoder's start token. Records the rows per step.
pub struct ScriptedSeq2Seq {
    vocabulary: usize,
    continuation: Box<Continuation>,
    steps: Mutex<Vec<usize>>,
}

impl ScriptedSeq2Seq {
    /// Creates a backend with this vocabulary size, scored by `continuation`.
    pub fn new(
        vocabulary: usize,
        continuation: impl Fn(&[i64], &[i64]) -> Vec<f32> + Send + Sync + 'static,
    ) -> Self {
        Self {
            vocabulary,
            continuation: Box::new(continuation),
            steps: Mutex::default(),
        }
    }

    /// Rows per step so far.
    pub fn steps(&self) -> Vec<usize> {
        locked(&self.steps).clone()
    }
}

impl fmt::Debug for ScriptedSeq2Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedSeq2Seq")
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Seq2SeqBackend for ScriptedSeq2Seq {
    fn concurrency(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    fn vocabulary(&self) -> Option<usize> {
        Some(self.vocabulary)
    }

    async fn decode(&self, sources: SourceBatch, deadline: Deadline, work: DecodeFn) -> Result<()> {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let rows = sources
            .rows
            .into_iter()
            .map(|source| (source, Vec::new()))
            .collect();
        work(&mut ScriptedDecoder {
            sequences: self,
            rows,
            logits: Vec::new(),
        })
    }
}

struct ScriptedDecoder<'a> {
    sequences: &'a ScriptedSeq2Seq,
    /// Source and target so far, per row.
    rows: Vec<(Vec<i64>, Vec<i64>)>,
    logits: Vec<f32>,
}

impl Decoder for ScriptedDecoder<'_> {
    fn step(&mut self, tokens: &[i64]) -> Result<Logits<'_>> {
        if let Ok(mut steps) = self.sequences.steps.lock() {
            steps.push(tokens.len());
        }
        self.logits.clear();
        for ((source, target), token) in self.rows.iter_mut().zip(tokens) {
            target.push(*token);
            self.logits
                .extend((self.sequences.continuation)(source, target));
        }
        Ok(Logits {
            values: &mut self.logits,
            width: self.sequences.vocabulary,
        })
    }

    fn reorder(&mut self, rows: &[usize]) -> Result<()> {
        self.rows = rows
            .iter()
            .filter_map(|row| self.rows.get(*row).cloned())
            .collect();
        Ok(())
    }
}
