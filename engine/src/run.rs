//! One run: packed texts, and the values that the program's stages exchange.
//!
//! A stage consists of tasks, which any threads can execute in any order: row blocks, or attention heads. Each value is
//! kept in parts, behind locks that are never contended: a part has one writer, and is read in later stages.

use std::{
    num::NonZeroUsize,
    ops::Range,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{
    attention::{Head, Scores},
    kernel::{InstructionSet, Kernel, KernelFn, LANES, MAX_ROWS},
    linear::{Quantized, dense, linear},
    math::{activate, gate, normalize},
    program::{
        Attention, Index, Largest, Load, Per, Pooling, Program, RowOperation, RowStage, Stage, Table, Value,
        ValueId, View,
    },
};

/// Rows per block; all operations in a stage process a block before the next. Its values fit into the second-level
/// cache, and the weights are read once per block.
const MAX_BLOCK_ROWS: usize = 4 * MAX_ROWS;
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Length of the prefix that all tokens attend to. Tokens beyond are computed, and nothing else depends on them.
    pub attended: usize,
}

/// Packed texts and their values.
#[derive(Debug)]
pub struct Run {
    tokens: Vec<Token>,
    /// Token range per text.
    texts: Vec<Range<usize>>,
    /// Attended token range per text.
    attended: Vec<Range<usize>>,
    /// Attention tasks: a text, and a range of its heads.
    heads: Vec<HeadTask>,
    block_rows: usize,
    values: Values,
}

/// Parts per slot: row blocks, or for attention, a part per text and head.
pub type Values = Vec<Vec<RwLock<Vec<f32>>>>;

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
    values: Vec<Vec<f32>>,
    quantized: Quantized,
    head: Head,
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
        let mut attended = Vec::new();
        for Text { tokens: text, attended: count } in texts {
            let parts = text.len().div_ceil(TOKENS_PER_TASK).next_multiple_of(threads.get());
            let parts = parts.min(MAX_TASKS_PER_TEXT);
            heads.extend((0..parts).map(|part| HeadTask { text: ranges.len(), part, parts }));
            attended.push(tokens.len()..tokens.len() + text.len().min(*count));
            ranges.push(tokens.len()..tokens.len() + text.len());
            tokens.extend_from_slice(text);
        }
        // Every thread gets the same number of blocks.
        let blocks = tokens.len().div_ceil(MAX_BLOCK_ROWS).next_multiple_of(threads.get());
        let block_rows = tokens.len().div_ceil(blocks.max(1)).max(1);
        values.resize_with(self.slots, Vec::new);
        let mut reserve = |value: ValueId, wanted: usize| {
            let parts = &mut values[self.values[value].slot];
            parts.resize_with(wanted.max(parts.len()), RwLock::default);
        };
        for stage in &self.stages {
            match stage {
                Stage::Attention(attention) => reserve(attention.out, ranges.len() * attention.heads),
                Stage::Largest(largest) => reserve(largest.out, largest.tasks()),
                Stage::Rows(stage) => {
                    let rows = if stage.per == Per::Token { tokens.len() } else { ranges.len() };
                    stage.stores.iter().for_each(|value| reserve(*value, rows.div_ceil(block_rows)));
                }
            }
        }
        Run { tokens, texts: ranges, attended, heads, block_rows, values }
    }

    /// Memory for values, scratch buffers and rotary tables in a run with one text of `tokens` tokens, in bytes.
    pub fn bytes(&self, tokens: usize, threads: NonZeroUsize) -> usize {
        // Numbers per slot: exchanged between stages, and per row.
        let (mut exchanged, mut row, mut head) = (vec![0; self.slots], vec![0; self.slots], 0);
        for stage in &self.stages {
            let stores = match stage {
                Stage::Rows(stage) => {
                    let outputs = stage.operations.iter().map(RowOperation::output);
                    outputs.for_each(|value| row[self.values[value].slot] = self.values[value].width);
                    &stage.stores[..]
                }
                Stage::Attention(attention) => {
                    let size = attention.queries.width / attention.heads;
                    head = head.max(Head::numbers(size, tokens));
                    &[attention.out]
                }
                Stage::Largest(largest) => &[largest.out],
            };
            for value in stores {
                let Value { per, width, slot } = self.values[*value];
                let rows = if per == Per::Token { tokens } else { 1 };
                exchanged[slot] = rows * width;
            }
        }
        let block = row.iter().sum::<usize>() * MAX_BLOCK_ROWS.min(tokens);
        let values = exchanged.iter().sum::<usize>() + threads.get() * (block + head);
        let rotaries: usize = self.rotaries.iter().map(|rotary| rotary.bytes(tokens)).sum();
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
        }
    }

    fn rows(&self, per: Per) -> usize {
        match per {
            Per::Token => self.tokens.len(),
            Per::Text => self.texts.len(),
        }
    }

    /// Executes one task in a stage, after all tasks in earlier stages.
    pub fn execute(
        &self,
        program: &Program,
        instructions: InstructionSet,
        stage: &Stage,
        task: usize,
        scratch: &mut Scratch,
    ) {
        instructions.call(Task { run: self, program, stage, task, scratch });
    }

    /// Rows per output for one text.
    pub fn outputs(&self, program: &Program, text: usize) -> Vec<Vec<f32>> {
        program.outputs.iter().map(|output| self.output(program, *output, text)).collect()
    }

    fn output(&self, program: &Program, output: ValueId, text: usize) -> Vec<f32> {
        let value = program.values[output];
        let largest = program.stages.iter().find_map(|stage| match stage {
            Stage::Largest(largest) if largest.out == output => Some(largest),
            _ => None,
        });
        if let Some(largest) = largest {
            let mut out = Vec::with_capacity(largest.layer.outputs);
            for task in 0..largest.tasks() {
                let width = largest.panels(task).len() * LANES;
                out.extend_from_slice(&self.part(value.slot, task)[text * width..(text + 1) * width]);
            }
            out.truncate(value.width);
            return out;
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

    fn part(&self, slot: usize, part: usize) -> RwLockReadGuard<'_, Vec<f32>> {
        self.values[slot][part].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn part_mut(&self, slot: usize, part: usize) -> RwLockWriteGuard<'_, Vec<f32>> {
        self.values[slot][part].write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task, to be called with a kernel.
struct Task<'a> {
    run: &'a Run,
    program: &'a Program,
    stage: &'a Stage,
    task: usize,
    scratch: &'a mut Scratch,
}

impl KernelFn for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self { run, program, stage, task, scratch } = self;
        match stage {
            Stage::Rows(stage) => rows(kernel, run, program, stage, task, scratch),
            Stage::Attention(attention) => {
                let HeadTask { text, part, parts } = run.heads[task];
                let heads = part * attention.heads / parts..(part + 1) * attention.heads / parts;
                for head in heads {
                    attend(kernel, run, program, attention, (text, head), &mut scratch.head);
                }
            }
            Stage::Largest(largest) => largest_outputs(kernel, run, program, (largest, task), scratch),
        }
    }
}

/// Executes a stage for one block.
#[inline(always)]
fn rows<K: Kernel>(
    kernel: K,
    run: &Run,
    program: &Program,
    stage: &RowStage,
    block: usize,
    scratch: &mut Scratch,
) {
    let Scratch { values, quantized, .. } = scratch;
    values.resize_with(program.slots, Vec::new);
    let slot = |value: &ValueId| program.values[*value].slot;
    let first = block * run.block_rows;
    let rows = first..run.rows(stage.per).min(first + run.block_rows);
    for load in &stage.loads {
        load_block(run, program.values[load.value], load, (block, &rows), &mut values[slot(&load.value)]);
    }
    for operation in &stage.operations {
        let id = operation.output();
        let width = program.values[id].width;
        let mut out = std::mem::take(&mut values[slot(&id)]);
        out.resize(rows.len() * width, 0.0);
        match operation {
            RowOperation::Lookup { table, index, .. } => {
                for (token, out) in run.tokens[rows.clone()].iter().zip(out.chunks_exact_mut(width)) {
                    look_up(kernel, table, index.of(token), out);
                }
            }
            RowOperation::Pool { pooling, input, .. } => {
                for (text, out) in run.attended[rows.clone()].iter().zip(out.chunks_exact_mut(width)) {
                    let tokens = match pooling {
                        Pooling::First => text.start..text.end.min(text.start + 1),
                        Pooling::Last => text.start.max(text.end.saturating_sub(1))..text.end,
                        Pooling::Mean => text.clone(),
                    };
                    let count = tokens.len().max(1) as f32;
                    out.fill(0.0);
                    run.each_part(program.values[*input], tokens, |part| {
                        part.chunks_exact(width).for_each(|row| add_to(out, row));
                    });
                    out.iter_mut().for_each(|value| *value /= count);
                }
            }
            RowOperation::Linear { input, layer, .. } => {
                let panels = 0..layer.outputs / LANES;
                linear(kernel, &values[slot(input)], (layer, panels), quantized, &mut out);
            }
            RowOperation::Dense { input, layer, .. } => {
                dense(kernel, &values[slot(input)], program.values[*input].width, layer, &mut out);
            }
            RowOperation::Activation { function, input, .. } => {
                let input = values[slot(input)].as_chunks::<LANES>().0;
                for (lanes, out) in input.iter().zip(out.as_chunks_mut().0) {
                    kernel.store(activate(kernel, *function, kernel.load(lanes)), out);
                }
            }
            RowOperation::Gate { function, activates_second, input, .. } => {
                let rows = values[slot(input)].chunks_exact(2 * width).zip(out.chunks_exact_mut(width));
                for (row, out) in rows {
                    let (first, second) = row.split_at(width);
                    let halves = if *activates_second { [second, first] } else { [first, second] };
                    gate(kernel, *function, halves.map(|half| half.as_chunks().0), out.as_chunks_mut().0);
                }
            }
            RowOperation::Add { inputs: [left, right], .. } => {
                add(&values[slot(left)], &values[slot(right)], &mut out)
            }
            RowOperation::Norm { input, residual, norm, .. } => {
                let stride = program.values[input.value].width;
                let columns = values[slot(&input.value)].chunks_exact(stride);
                let columns = columns.map(|row| &row[input.offset..input.offset + width]);
                match residual {
                    Some(residual) => {
                        let residuals = values[slot(residual)].chunks_exact(width);
                        for ((input, residual), out) in
                            columns.zip(residuals).zip(out.chunks_exact_mut(width))
                        {
                            add(input, residual, out);
                        }
                    }
                    None => {
                        for (input, out) in columns.zip(out.chunks_exact_mut(width)) {
                            out.copy_from_slice(input);
                        }
                    }
                }
                for part in out.chunks_exact_mut(norm.gain.len() * LANES) {
                    normalize(kernel, part.as_chunks_mut().0, norm);
                }
            }
        }
        values[slot(&id)] = out;
    }
    for value in &stage.stores {
        std::mem::swap(&mut *run.part_mut(slot(value), block), &mut values[slot(value)]);
    }
}

/// Computes the per-output maximum over each text, for one output range.
#[inline(always)]
fn largest_outputs<K: Kernel>(
    kernel: K,
    run: &Run,
    program: &Program,
    (largest, task): (&Largest, usize),
    scratch: &mut Scratch,
) {
    let Scratch { values, quantized, .. } = scratch;
    values.resize_with(values.len().max(2), Vec::new);
    let [rows, outputs, ..] = &mut values[..] else { return };
    let (input, panels) = (program.values[largest.input], largest.panels(task));
    let width = panels.len() * LANES;
    let mut out = run.part_mut(program.values[largest.out].slot, task);
    out.clear();
    out.resize(run.texts.len() * width, f32::MIN);
    for (text, out) in run.attended.iter().zip(out.chunks_exact_mut(width)) {
        // Comparisons ignore NaN.
        let out = out.as_chunks_mut::<LANES>().0;
        let (mut start, mut is_valid) = (text.start, true);
        while start < text.end {
            let end = text.end.min(start + MAX_BLOCK_ROWS);
            rows.clear();
            run.each_part(input, start..end, |part| rows.extend_from_slice(part));
            is_valid &= rows.iter().all(|value| value.is_finite());
            outputs.resize((end - start) * width, 0.0);
            linear(kernel, rows, (&largest.layer, panels.clone()), quantized, outputs);
            for row in outputs.chunks_exact(width) {
                for (row, out) in row.as_chunks().0.iter().zip(out.iter_mut()) {
                    kernel.store(kernel.max(kernel.load(row), kernel.load(out)), out);
                }
            }
            start = end;
        }
        if !is_valid {
            out.as_flattened_mut().fill(f32::NAN);
        }
    }
}

/// Loads a block from a value that another stage has computed.
#[inline(always)]
fn load_block(
    run: &Run,
    value: Value,
    load: &Load,
    (block, rows): (usize, &Range<usize>),
    out: &mut Vec<f32>,
) {
    match load.heads {
        Some(heads) => join_heads(run, value, heads, rows, out),
        None if load.is_last => std::mem::swap(&mut *run.part_mut(value.slot, block), out),
        None => {
            out.clear();
            out.extend_from_slice(&run.part(value.slot, block));
        }
    }
}

/// Joins all heads' contexts into rows.
#[inline(always)]
fn join_heads(run: &Run, value: Value, heads: usize, rows: &Range<usize>, out: &mut Vec<f32>) {
    let Value { per, width, slot } = value;
    out.resize(rows.len() * width, 0.0);
    let size = width / heads;
    let first = match per {
        Per::Token => run.texts.partition_point(|text| text.end <= rows.start),
        Per::Text => rows.start,
    };
    for (text, range) in run.texts.iter().enumerate().skip(first) {
        let range = if per == Per::Token { range.clone() } else { text..text + 1 };
        if range.start >= rows.end {
            break;
        }
        let part = range.start.max(rows.start)..range.end.min(rows.end);
        for head in 0..heads {
            let contexts = run.part(slot, text * heads + head);
            let contexts = contexts[(part.start - range.start) * size..].chunks_exact(size);
            let out = out[(part.start - rows.start) * width..(part.end - rows.start) * width]
                .chunks_exact_mut(width);
            for (out, context) in out.zip(contexts) {
                out[head * size..][..size].copy_from_slice(context);
            }
        }
    }
}

/// Attention for one text and head.
#[inline(always)]
fn attend<K: Kernel>(
    kernel: K,
    run: &Run,
    program: &Program,
    attention: &Attention,
    (text, head): (usize, usize),
    scratch: &mut Head,
) {
    let size = attention.queries.width / attention.heads;
    let key_head = head * attention.key_heads / attention.heads;
    let tokens = run.attended[text].clone();
    let queries = match program.values[attention.queries.value].per {
        Per::Token => run.texts[text].clone(),
        Per::Text => text..text + 1,
    };
    let copy = |view: View, head: usize, rows: Range<usize>, stride: usize, out: &mut Vec<f32>| {
        let value = program.values[view.value];
        let (width, first) = (value.width, view.offset + head * size);
        out.resize(rows.len() * stride, 0.0);
        let mut out = out.chunks_exact_mut(stride);
        run.each_part(value, rows, |part| {
            for (row, out) in part.chunks_exact(width).zip(&mut out) {
                out[..size].copy_from_slice(&row[first..first + size]);
                out[size..].fill(0.0);
            }
        });
    };
    let count = queries.len();
    scratch.size = size;
    copy(attention.queries, head, queries, size, &mut scratch.queries);
    copy(attention.keys, key_head, tokens.clone(), size, &mut scratch.keys);
    copy(attention.values, key_head, tokens, Head::value_stride(size), &mut scratch.values);
    if let Some(rotary) = attention.rotary.map(|rotary| &program.rotaries[rotary]) {
        for rows in [&mut scratch.queries, &mut scratch.keys] {
            for (position, row) in rows.chunks_exact_mut(size).enumerate() {
                rotary.rotate(row, position);
            }
        }
    }
    let mut out = run.part_mut(program.values[attention.out].slot, text * attention.heads + head);
    out.resize(count * size, 0.0);
    scratch.attend(kernel, &Scores::new(attention, head), &mut out);
}

#[inline(always)]
fn look_up<K: Kernel>(kernel: K, table: &Table, row: usize, out: &mut [f32]) {
    let part = row * out.len()..(row + 1) * out.len();
    match table {
        Table::Fp32(values) => out.copy_from_slice(&values[part]),
        Table::Int8(values, scales) => {
            let scale = kernel.splat(scales[row]);
            for (integers, out) in values[part].as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut().0) {
                let floats = kernel.load(&integers.map(f32::from));
                kernel.store(kernel.mul(floats, scale), out);
            }
        }
    }
}

#[inline(always)]
fn add_to(sums: &mut [f32], row: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum += value;
    }
}

#[inline(always)]
fn add(left: &[f32], right: &[f32], out: &mut [f32]) {
    for ((left, right), out) in left.iter().zip(right).zip(out) {
        *out = left + right;
    }
}

impl Index {
    fn of(self, token: &Token) -> usize {
        let number = match self {
            Self::Id => token.id,
            Self::Type => token.type_id,
            Self::Position => token.position,
        };
        number as usize
    }
}
