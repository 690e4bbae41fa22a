//! Executes row stages.

use std::ops::Range;

use super::{Observer, Run, Scratch, Token, Work, experts::combine};
use crate::{
    adapters::adapt,
    experts::route,
    kernel::{COLUMNS, Kernel, LANES, Rows, RowsMut},
    linear::{dense_columns, linear},
    math::{activate, gate, normalize},
    numbers::Numbers,
    program::{
        Adapters, Convolution, Index, Load, Per, Pooling, RowOperation, RowStage, Table, Value,
        ValueId,
    },
};

/// Executes a row stage for one block.
#[expect(clippy::too_many_lines, reason = "one arm for each operation")]
#[inline(always)]
pub fn rows<K: Kernel>(kernel: K, stage: &RowStage, work: Work<'_>) {
    let Work {
        run,
        program,
        task: block,
        scratch,
    } = work;
    let Scratch {
        values,
        quantized,
        observer,
        ..
    } = scratch;
    values.resize_with(program.slots, Numbers::default);
    let slot = |value: &ValueId| program.values[*value].slot;
    let first = block * run.block_rows;
    let rows = first..run.rows(stage.per).min(first + run.block_rows);
    for load in &stage.loads {
        load_block(
            run,
            program.values[load.value],
            load,
            block,
            &rows,
            &mut values[slot(&load.value)],
        );
    }
    for operation in &stage.operations {
        let id = operation.output();
        let width = program.values[id].width;
        let mut out = std::mem::take(&mut values[slot(&id)]);
        out.resize(rows.len() * width, 0.0);
        match operation {
            RowOperation::Lookup { table, index, .. } => {
                for (token, out) in run.tokens[rows.clone()]
                    .iter()
                    .zip(out.chunks_exact_mut(width))
                {
                    look_up(kernel, table, index.of(token), out);
                }
            }
            RowOperation::Pool { pooling, input, .. } => {
                pool(
                    run,
                    *pooling,
                    program.values[*input],
                    &run.attended[rows.clone()],
                    &mut out,
                );
            }
            RowOperation::Neighbours { input, before, .. } => {
                join_neighbours(
                    run,
                    program.values[*input],
                    *before,
                    &rows,
                    RowsMut::new(&mut out, width),
                );
            }
            RowOperation::GatedConvolution {
                input, convolution, ..
            } => {
                convolve(
                    run,
                    program.values[*input],
                    convolution,
                    &rows,
                    RowsMut::new(&mut out, width),
                );
            }
            RowOperation::Linear { input, layer, .. } => {
                if let (Per::Token, Some(Observer(observe))) = (stage.per, &mut *observer) {
                    observe(layer, &values[slot(input)]);
                }
                let panels = 0..layer.outputs / LANES;
                linear(
                    kernel,
                    &values[slot(input)],
                    layer,
                    panels,
                    quantized,
                    &mut out,
                );
            }
            RowOperation::Dense { input, layer, .. } => {
                let columns = 0..layer.outputs;
                dense_columns(
                    kernel,
                    &values[slot(input)],
                    layer,
                    columns,
                    quantized,
                    &mut out,
                );
            }
            RowOperation::Activation {
                function, input, ..
            } => {
                let input = values[slot(input)].as_chunks::<LANES>().0;
                for (lanes, out) in input.iter().zip(out.as_chunks_mut().0) {
                    kernel.store(activate(kernel, *function, kernel.load(lanes)), out);
                }
            }
            RowOperation::Gate {
                function,
                activates_second,
                input,
                ..
            } => {
                let rows = values[slot(input)]
                    .chunks_exact(2 * width)
                    .zip(out.chunks_exact_mut(width));
                for (row, out) in rows {
                    let (first, second) = row.split_at(width);
                    let halves = if *activates_second {
                        [second, first]
                    } else {
                        [first, second]
                    };
                    gate(
                        kernel,
                        *function,
                        halves.map(|half| half.as_chunks().0),
                        out.as_chunks_mut().0,
                    );
                }
            }
            RowOperation::Add {
                inputs: [left, right],
                ..
            } => add(&values[slot(left)], &values[slot(right)], &mut out),
            RowOperation::Multiply {
                inputs: [left, right],
                ..
            } => {
                let factors = values[slot(left)].iter().zip(&values[slot(right)][..]);
                for ((left, right), out) in factors.zip(&mut out[..]) {
                    *out = left * right;
                }
            }
            RowOperation::Scale { input, factor, .. } => {
                for (value, out) in values[slot(input)].iter().zip(&mut out[..]) {
                    *out = value * factor;
                }
            }
            RowOperation::Adapt {
                inputs: [base, input],
                adapters,
                ..
            } => {
                out.copy_from_slice(&values[slot(base)]);
                let input = Rows::new(&values[slot(input)], program.values[*input].width);
                adapt_block(
                    kernel,
                    &run.tokens[rows.clone()],
                    adapters,
                    input,
                    RowsMut::new(&mut out, width),
                );
            }
            RowOperation::Route { input, router, .. } => {
                route(
                    kernel,
                    &values[slot(input)],
                    router,
                    RowsMut::new(&mut out, width),
                );
            }
            RowOperation::Combine {
                choices,
                top,
                results,
                bias,
                ..
            } => {
                let values = [choices, results].map(|value| program.values[*value]);
                out.as_chunks_mut()
                    .0
                    .chunks_exact_mut(bias.len())
                    .for_each(|row| row.copy_from_slice(bias));
                combine(kernel, run, values, *top, block, &mut out);
            }
            RowOperation::Norm {
                input,
                residual,
                norm,
                ..
            } => {
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
                normalize(kernel, out.as_chunks_mut().0, norm);
            }
        }
        values[slot(&id)] = out;
    }
    for value in &stage.stores {
        std::mem::swap(
            &mut *run.part_mut(slot(value), block),
            &mut values[slot(value)],
        );
    }
}

/// Pools the rows of each text's tokens.
#[inline(always)]
fn pool(run: &Run, pooling: Pooling, value: Value, texts: &[Range<usize>], out: &mut [f32]) {
    for (text, out) in texts.iter().zip(out.chunks_exact_mut(value.width)) {
        let tokens = match pooling {
            Pooling::First => text.start..text.end.min(text.start + 1),
            Pooling::Last => text.start.max(text.end.saturating_sub(1))..text.end,
            Pooling::Mean => text.clone(),
        };
        let count = tokens.len().max(1) as f32;
        out.fill(0.0);
        run.each_part(value, tokens, |part| {
            part.chunks_exact(value.width)
                .for_each(|row| add_to(out, row));
        });
        out.iter_mut().for_each(|value| *value /= count);
    }
}

/// Adds the products of adapters for each token's task.
#[inline(always)]
fn adapt_block<K: Kernel>(
    kernel: K,
    tokens: &[Token],
    adapters: &Adapters,
    input: Rows<'_>,
    out: RowsMut<'_>,
) {
    let inputs = input.values.chunks_exact(input.stride);
    let RowsMut { values, stride } = out;
    let rows = inputs.zip(values.chunks_exact_mut(stride));
    for (token, (input, out)) in tokens.iter().zip(rows) {
        if let Some(task) = (token.type_id as usize).checked_sub(1) {
            adapt(
                kernel,
                adapters,
                task,
                input.as_chunks().0,
                out.as_chunks_mut().0,
            );
        }
    }
}

/// Loads a block from a value that another stage has computed.
#[inline(always)]
fn load_block(
    run: &Run,
    value: Value,
    load: &Load,
    block: usize,
    rows: &Range<usize>,
    out: &mut Numbers,
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
fn join_heads(run: &Run, value: Value, heads: usize, rows: &Range<usize>, out: &mut Numbers) {
    let Value { per, width, slot } = value;
    out.resize(rows.len() * width, 0.0);
    let size = width / heads;
    let first = match per {
        Per::Token => run.texts.partition_point(|text| text.end <= rows.start),
        Per::Text => rows.start,
    };
    for (text, range) in run.texts.iter().enumerate().skip(first) {
        let range = if per == Per::Token {
            range.clone()
        } else {
            text..text + 1
        };
        if range.start >= rows.end {
            break;
        }
        let part = range.start.max(rows.start)..range.end.min(rows.end);
        for head in 0..heads {
            let contexts = run.part(slot, text * heads + head);
            let contexts = &contexts[(part.start - range.start) * size..];
            let out = &mut out[(part.start - rows.start) * width + head * size..];
            copy_rows(
                [part.len(), size],
                Rows::new(contexts, size),
                RowsMut::new(out, width),
            );
        }
    }
}

/// Copies `width` numbers of each row between rows that are apart.
///
/// By columns, with arrays: compilers replace loops along a row by a call per row, which takes longer than short rows.
#[inline(always)]
pub fn copy_rows([count, width]: [usize; 2], from: Rows<'_>, to: RowsMut<'_>) {
    let RowsMut { values, stride } = to;
    let whole = width - width % COLUMNS;
    for first in (0..whole).step_by(COLUMNS) {
        for row in 0..count {
            let from = from.values[row * from.stride + first..].first_chunk::<COLUMNS>();
            let to = values[row * stride + first..].first_chunk_mut();
            if let (Some(from), Some(to)) = (from, to) {
                *to = *from;
            }
        }
    }
    if whole < width {
        for row in 0..count {
            let from = &from.values[row * from.stride..][whole..width];
            values[row * stride..][whole..width].copy_from_slice(from);
        }
    }
}

/// Joins consecutive rows into one; the first is `before` rows before each token's own.
#[inline(always)]
fn join_neighbours(run: &Run, value: Value, before: usize, rows: &Range<usize>, out: RowsMut<'_>) {
    let RowsMut {
        values: out,
        stride: width,
    } = out;
    out.fill(0.0);
    let neighbourhood = Neighbourhood {
        count: width / value.width,
        before,
    };
    each_neighbour(run, value, &neighbourhood, rows, |place, index, row| {
        let start = index * width + place * value.width;
        out[start..start + value.width].copy_from_slice(row);
    });
}

/// See [`RowOperation::GatedConvolution`].
#[inline(always)]
fn convolve(
    run: &Run,
    value: Value,
    convolution: &Convolution,
    rows: &Range<usize>,
    out: RowsMut<'_>,
) {
    let RowsMut {
        values: out,
        stride: width,
    } = out;
    out.fill(0.0);
    let neighbourhood = Neighbourhood {
        count: convolution.taps.len() / width,
        before: convolution.before,
    };
    each_neighbour(run, value, &neighbourhood, rows, |place, index, row| {
        let (gates, inputs) = (&row[..width], &row[2 * width..]);
        let taps = &convolution.taps[place * width..][..width];
        let products = taps.iter().zip(gates).zip(inputs);
        for (out, ((tap, gate), input)) in out[index * width..][..width].iter_mut().zip(products) {
            *out += tap * (gate * input);
        }
    });
    each_neighbour(run, value, &Neighbourhood::OWN, rows, |_, index, row| {
        let out = &mut out[index * width..][..width];
        if let Some(bias) = &convolution.bias {
            add_to(out, bias);
        }
        let gates = &row[width..2 * width];
        out.iter_mut()
            .zip(gates)
            .for_each(|(out, gate)| *out *= gate);
    });
}

/// Consecutive rows around a token's own.
struct Neighbourhood {
    count: usize,
    /// Rows before the token's own.
    before: usize,
}

impl Neighbourhood {
    /// The token's own row.
    const OWN: Self = Self {
        count: 1,
        before: 0,
    };
}

/// Calls `read` for each of the tokens' neighbours within its text, with its place, the token's index in `rows`, and its row.
#[inline(always)]
fn each_neighbour(
    run: &Run,
    value: Value,
    neighbourhood: &Neighbourhood,
    rows: &Range<usize>,
    mut read: impl FnMut(usize, usize, &[f32]),
) {
    let Neighbourhood { count, before } = *neighbourhood;
    let first = run.texts.partition_point(|text| text.end <= rows.start);
    let texts = run.texts.iter().zip(&run.attended).skip(first);
    for (text, attended) in texts.take_while(|(text, _)| text.start < rows.end) {
        let tokens = text.start.max(rows.start)..text.end.min(rows.end);
        for place in 0..count {
            // The neighbour's index plus `before` is the token's index plus `place`.
            let from = (tokens.start + place)
                .saturating_sub(before)
                .max(attended.start);
            let to = (tokens.end + place)
                .saturating_sub(before)
                .min(attended.end);
            let mut token = from + before;
            run.each_part(value, from..to, |part| {
                for row in part.chunks_exact(value.width) {
                    read(place, token - place - rows.start, row);
                    token += 1;
                }
            });
        }
    }
}

#[inline(always)]
fn look_up<K: Kernel>(kernel: K, table: &Table, row: usize, out: &mut [f32]) {
    let part = row * out.len()..(row + 1) * out.len();
    match table {
        Table::Fp32(values) => values.read(part.start, out),
        Table::Int8(values, scales) => {
            let scale = kernel.splat(scales[row]);
            for (integers, out) in values[part]
                .as_chunks::<LANES>()
                .0
                .iter()
                .zip(out.as_chunks_mut().0)
            {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_width_are_copied_alone() {
        for width in [1, COLUMNS - 1, COLUMNS, COLUMNS + 8, 2 * COLUMNS] {
            let (count, from_stride, to_stride) = (3, width + 5, width + 2);
            let from: Vec<f32> = (1..=count * from_stride).map(|at| at as f32).collect();
            let mut to = vec![0.0; count * to_stride];
            copy_rows(
                [count, width],
                Rows::new(&from, from_stride),
                RowsMut::new(&mut to, to_stride),
            );
            for (row, (from, to)) in from
                .chunks(from_stride)
                .zip(to.chunks(to_stride))
                .enumerate()
            {
                assert_eq!(from[..width], to[..width], "row {row}, width {width}");
                assert_eq!(to[width..], [0.0, 0.0], "row {row}, width {width}");
            }
        }
    }
}
