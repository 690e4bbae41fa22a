//! One run: packed texts, and the values that the program's stages exchange.
//!
//! A stage consists of tasks, which any threads can execute in any order: row blocks, or attention heads. Each value is
//! kept in parts, behind locks that are never contended: a part has one writer, and is read in later stages.

mod experts;
mod heads;
mod largest;
mod rows;
mod spans;
mod task;

use std::{
    fmt,
    num::NonZeroUsize,
    ops::Range,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{
    attention::Head,
    heads::spans::Spans,
    kernel::MAX_TILE_ROWS,
    linear::Quantized,
    numbers::Numbers,
    program::{Linear, Per, Program, RowOperation, Stage, Value, ValueId},
};

/// Rows per block; all operations in a stage process a block before the next. Its values fit into the second-level
/// cache, and the weights are read once per block.
const MAX_BLOCK_ROWS: usize = MAX_TILE_ROWS;
/// Tokens per attention task.
const TOKENS_PER_TASK: usize = 32;
/// Maximum number of tasks per text; enough for the thread counts on Lambda's largest functions.
const MAX_TASKS_PER_TEXT: usize = 16;

/// A token, as table rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Row in the word table.
    pub id: u32,
    /// Row in the token-type table.
    pub type_id: u32,
    /// Row in the position table.
    pub position: u32,
}

/// A text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Length of the prefix that all tokens attend to. Later tokens are computed, but no other token depends on them.
    pub attended: usize,
    /// Concatenated label vectors, in models that take them.
    pub labels: Arc<[f32]>,
}

/// Packed texts and their values.
#[derive(Debug)]
pub struct Run {
    tokens: Vec<Token>,
    /// Token range per text.
    texts: Vec<Range<usize>>,
    /// Attended token range per text.
    attended: Vec<Range<usize>>,
    /// Label vectors per text.
    labels: Vec<Arc<[f32]>>,
    /// Attention tasks: a text, and a range of its heads.
    heads: Vec<HeadTask>,
    block_rows: usize,
    values: Values,
}

/// Parts per slot: row blocks, for attention a part per text and head, and for experts a part per expert.
pub type Values = Vec<Vec<RwLock<Numbers>>>;

/// A stage's task in a run.
struct Work<'a> {
    run: &'a Run,
    program: &'a Program,
    task: usize,
    scratch: &'a mut Scratch,
}

#[derive(Clone, Copy, Debug)]
struct HeadTask {
    text: usize,
    part: usize,
    parts: usize,
}

/// Per-thread buffers.
#[derive(Debug, Default)]
pub struct Scratch {
    /// A block's values, by slot.
    values: Vec<Numbers>,
    quantized: Quantized,
    head: Head,
    spans: Spans,
    observer: Option<Observer>,
}

impl Scratch {
    /// Passes each int8 layer over tokens, and its input rows, to `observe` before the layer is executed. Layers with
    /// only a [per-text maximum](crate::program::Largest) are left out.
    pub fn with_observer(observe: impl FnMut(&Linear, &[f32]) + Send + 'static) -> Self {
        Self {
            observer: Some(Observer(Box::new(observe))),
            ..Self::default()
        }
    }
}

type Observe = dyn FnMut(&Linear, &[f32]) + Send;

struct Observer(Box<Observe>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl Program {
    /// Packs texts for a run on `threads` threads. Reuses memory from an earlier run's `values`.
    pub fn pack<'a>(
        &self,
        texts: impl Iterator<Item = &'a Text>,
        threads: NonZeroUsize,
        mut values: Values,
    ) -> Run {
        let (mut tokens, mut ranges, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        let (mut attended, mut labels) = (Vec::new(), Vec::new());
        for Text {
            tokens: text,
            attended: count,
            labels: vectors,
        } in texts
        {
            // A text without tokens has contexts, too: zeros.
            let parts = text
                .len()
                .div_ceil(TOKENS_PER_TASK)
                .max(1)
                .next_multiple_of(threads.get());
            let parts = parts.min(MAX_TASKS_PER_TEXT);
            heads.extend((0..parts).map(|part| HeadTask {
                text: ranges.len(),
                part,
                parts,
            }));
            labels.push(Arc::clone(vectors));
            attended.push(tokens.len()..tokens.len() + text.len().min(*count));
            ranges.push(tokens.len()..tokens.len() + text.len());
            tokens.extend_from_slice(text);
        }
        // Every thread gets the same number of blocks.
        let blocks = tokens
            .len()
            .div_ceil(MAX_BLOCK_ROWS)
            .next_multiple_of(threads.get());
        let block_rows = tokens.len().div_ceil(blocks.max(1)).max(1);
        values.resize_with(self.slots, Vec::new);
        let mut reserve = |value: ValueId, wanted: usize| {
            let parts = &mut values[self.values[value].slot];
            parts.resize_with(wanted.max(parts.len()), RwLock::default);
        };
        for stage in &self.stages {
            match stage {
                Stage::Attention(attention) => {
                    reserve(attention.out, ranges.len() * attention.heads)
                }
                Stage::Largest(largest) => reserve(largest.out, largest.tasks()),
                Stage::Spans(spans) => reserve(spans.out, ranges.len()),
                Stage::Experts(experts) => reserve(experts.out, experts.layers.len()),
                Stage::Rows(stage) => {
                    let rows = if stage.per == Per::Token {
                        tokens.len()
                    } else {
                        ranges.len()
                    };
                    stage
                        .stores
                        .iter()
                        .for_each(|value| reserve(*value, rows.div_ceil(block_rows)));
                }
            }
        }
        Run {
            tokens,
            texts: ranges,
            attended,
            labels,
            heads,
            block_rows,
            values,
        }
    }

    /// Memory for values, scratch buffers and rotary tables in a run with one text of `tokens` tokens, in bytes.
    pub fn bytes(&self, tokens: usize, threads: NonZeroUsize) -> usize {
        // Numbers per slot: exchanged between stages, and per row.
        let (mut exchanged, mut row, mut head) = (vec![0; self.slots], vec![0; self.slots], 0);
        for stage in &self.stages {
            let stores = match stage {
                Stage::Rows(stage) => {
                    let outputs = stage.operations.iter().map(RowOperation::output);
                    outputs
                        .for_each(|value| row[self.values[value].slot] = self.values[value].width);
                    &stage.stores[..]
                }
                Stage::Attention(attention) => {
                    let size = attention.queries.width / attention.heads;
                    head = head.max(Head::numbers(size, tokens, &attention.bias));
                    &[attention.out]
                }
                Stage::Largest(largest) => &[largest.out],
                Stage::Spans(spans) => {
                    // Words, and each one's part in spans, with buffers.
                    head = head.max(16 * spans.width * tokens);
                    &[spans.out]
                }
                Stage::Experts(experts) => {
                    // A block's rows, before and between the layers.
                    let layers = experts.layers.first().into_iter().flatten();
                    let row = layers
                        .map(|layer| layer.inputs() + layer.outputs())
                        .sum::<usize>();
                    head = head.max(MAX_BLOCK_ROWS * row);
                    &[experts.out]
                }
            };
            for value in stores {
                let Value { per, width, slot } = self.values[*value];
                let rows = if per == Per::Token { tokens } else { 1 };
                exchanged[slot] = rows * width;
            }
        }
        let block = row.iter().sum::<usize>() * MAX_BLOCK_ROWS.min(tokens);
        let values = exchanged.iter().sum::<usize>() + threads.get() * (block + head);
        let rotaries: usize = self
            .rotaries
            .iter()
            .map(|rotary| rotary.bytes(tokens))
            .sum();
        values * size_of::<f32>() + rotaries
    }
}

impl Run {
    /// Number of tasks in a stage.
    pub fn tasks(&self, stage: &Stage) -> usize {
        match stage {
            Stage::Rows(stage) => self.rows(stage.per).div_ceil(self.block_rows),
            Stage::Attention(_) => self.heads.len(),
            Stage::Largest(largest) => largest.tasks(),
            Stage::Spans(_) => self.texts.len(),
            Stage::Experts(experts) => experts.layers.len(),
        }
    }

    fn rows(&self, per: Per) -> usize {
        match per {
            Per::Token => self.tokens.len(),
            Per::Text => self.texts.len(),
        }
    }

    /// Rows per output for one text.
    pub fn outputs(&self, program: &Program, text: usize) -> Vec<Vec<f32>> {
        program
            .outputs
            .iter()
            .map(|output| self.output(program, *output, text))
            .collect()
    }

    fn output(&self, program: &Program, output: ValueId, text: usize) -> Vec<f32> {
        let value = program.values[output];
        let largest = program.stages.iter().find_map(|stage| match stage {
            Stage::Largest(largest) if largest.out == output => Some(largest),
            _ => None,
        });
        if let Some(largest) = largest {
            let mut out = Vec::with_capacity(largest.layer.outputs());
            for task in 0..largest.tasks() {
                let width = largest.outputs(task).len();
                out.extend_from_slice(
                    &self.part(value.slot, task)[text * width..(text + 1) * width],
                );
            }
            out.truncate(value.width);
            return out;
        }
        if program.spans(output).is_some() {
            return self.part(value.slot, text).to_vec();
        }
        let rows = match value.per {
            Per::Token => self.texts[text].clone(),
            Per::Text => text..text + 1,
        };
        let mut out = Vec::with_capacity(rows.len() * value.width);
        self.each_part(value, rows, |part| out.extend_from_slice(part));
        out
    }

    /// Returns the values' memory for reuse.
    pub fn into_values(self) -> Values {
        self.values
    }

    /// Calls `read` with a value's `rows`, which may be in several blocks.
    #[inline(always)]
    fn each_part(&self, value: Value, rows: Range<usize>, mut read: impl FnMut(&[f32])) {
        let Value { slot, width, .. } = value;
        let mut start = rows.start;
        while start < rows.end {
            let (block, first) = (start / self.block_rows, start % self.block_rows);
            let count = (rows.end - start).min(self.block_rows - first);
            read(&self.part(slot, block)[first * width..(first + count) * width]);
            start += count;
        }
    }

    fn part(&self, slot: usize, part: usize) -> RwLockReadGuard<'_, Numbers> {
        self.values[slot][part]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn part_mut(&self, slot: usize, part: usize) -> RwLockWriteGuard<'_, Numbers> {
        self.values[slot][part]
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
