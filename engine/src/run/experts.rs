//! Executes expert stages, and sums their results.

use super::{MAX_BLOCK_ROWS, Run, Scratch, Work};
use crate::{
    kernel::Kernel,
    linear::layer,
    math::{activate, gate_with_limits},
    numbers::Numbers,
    program::{Activation, ExpertStage, Value},
};

/// Passes the rows that chose an expert through its layers.
#[inline(always)]
pub fn pass_expert<K: Kernel>(kernel: K, stage: &ExpertStage, work: Work<'_>) {
    let Work {
        run,
        program,
        task: expert,
        scratch,
    } = work;
    let Scratch {
        values, quantized, ..
    } = scratch;
    values.resize_with(values.len().max(3), Numbers::default);
    let [inputs, inner, gated, ..] = &mut values[..] else {
        return;
    };
    let [input, choices] = [stage.input, stage.choices].map(|value| program.values[value]);
    let (mut chosen, mut row) = (Vec::new(), 0);
    run.each_part(choices, 0..run.rows(input.per), |part| {
        for choice in part.chunks_exact(choices.width) {
            if choice[..stage.top].contains(&(expert as f32)) {
                chosen.push(row);
            }
            row += 1;
        }
    });
    let [first, second] = &stage.layers[expert];
    let (raised, width) = (first.outputs(), second.outputs());
    let mut out = run.part_mut(program.values[stage.out].slot, expert);
    out.resize(chosen.len() * (width + 1), 0.0);
    let (results, numbers) = out.split_at_mut(chosen.len() * width);
    for (number, row) in numbers.iter_mut().zip(&chosen) {
        *number = *row as f32;
    }
    let blocks = chosen.chunks(MAX_BLOCK_ROWS);
    for (rows, out) in blocks.zip(results.chunks_mut(MAX_BLOCK_ROWS * width)) {
        inputs.clear();
        for row in rows {
            run.each_part(input, *row..row + 1, |part| inputs.extend_from_slice(part));
        }
        inner.resize(rows.len() * raised, 0.0);
        layer(kernel, inputs, first, 0..raised, quantized, inner);
        let inner = match stage.gate {
            None => {
                for lanes in inner.as_chunks_mut().0 {
                    kernel.store(
                        activate(kernel, Activation::Gelu, kernel.load(lanes)),
                        lanes,
                    );
                }
                &*inner
            }
            Some(gate) => {
                let half = raised / 2;
                gated.resize(rows.len() * half, 0.0);
                for (row, out) in inner.chunks_exact(raised).zip(gated.chunks_exact_mut(half)) {
                    let (gates, others) = row.split_at(half);
                    let halves = [gates.as_chunks().0, others.as_chunks().0];
                    gate_with_limits(kernel, gate, halves, out.as_chunks_mut().0);
                }
                &*gated
            }
        };
        layer(kernel, inner, second, 0..width, quantized, out);
    }
}

/// Adds the chosen experts' results for a block's rows, each times its weight.
#[inline(always)]
pub fn combine<K: Kernel>(
    kernel: K,
    run: &Run,
    [choices, results]: [Value; 2],
    top: usize,
    block: usize,
    out: &mut [f32],
) {
    let first = block * run.block_rows;
    let rows = run.part(choices.slot, block);
    let rows = rows.chunks_exact(choices.width);
    let width = out.len() / rows.len().max(1);
    for ((row, choice), out) in rows.enumerate().zip(out.chunks_exact_mut(width.max(1))) {
        let (experts, weights) = choice.split_at(top);
        for (expert, weight) in experts.iter().zip(weights) {
            let part = run.part(results.slot, *expert as usize);
            let count = part.len() / (width + 1);
            let (results, numbers) = part.split_at(count * width);
            let place = numbers.partition_point(|number| *number < (first + row) as f32);
            let weight = kernel.splat(*weight);
            let result = results[place * width..][..width].as_chunks().0;
            for (out, result) in out.as_chunks_mut().0.iter_mut().zip(result) {
                let total = kernel.mul_add(weight, kernel.load(result), kernel.load(out));
                kernel.store(total, out);
            }
        }
    }
}
