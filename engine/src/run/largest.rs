//! Computes a linear layer's per-output maxima over each text's tokens.

use super::{MAX_BLOCK_ROWS, Scratch, Work};
use crate::{
    kernel::{Kernel, LANES},
    linear::layer,
    numbers::Numbers,
    program::Largest,
};

/// Computes the per-output maximum over each text, for one output range.
#[inline(always)]
pub fn largest_outputs<K: Kernel>(kernel: K, largest: &Largest, work: Work<'_>) {
    let Work {
        run,
        program,
        task,
        scratch,
    } = work;
    let Scratch {
        values, quantized, ..
    } = scratch;
    values.resize_with(values.len().max(2), Numbers::default);
    let [rows, outputs, ..] = &mut values[..] else {
        return;
    };
    let (input, columns) = (program.values[largest.input], largest.outputs(task));
    let width = columns.len();
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
            layer(
                kernel,
                rows,
                &largest.layer,
                columns.clone(),
                quantized,
                outputs,
            );
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
