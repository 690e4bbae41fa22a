//! Linear layers. Activations are quantized to u8, each row with a scale and a minimum of its own.

use std::ops::Range;

use crate::{
    kernel::{Kernel, LANES, Lanes, MAX_ROWS, Panel, Rows, Sums},
    math::{activate, largest, smallest, sum},
    program::{Dense, Linear},
};

/// Quantized rows, and buffers to quantize them.
#[derive(Debug, Default)]
pub(crate) struct Quantized {
    ranges: Vec<RowRange>,
    /// In the format of the kernel.
    activations: Vec<u8>,
}

/// The range of a row: `value ≈ least + scale × integer`.
#[derive(Clone, Copy, Debug)]
struct RowRange {
    scale: f32,
    least: f32,
}

/// The product of rows and the weights of `panels` of `layer`, of 16 outputs each, with their bias and activation.
#[inline(always)]
pub(crate) fn linear<K: Kernel>(
    kernel: K,
    input: &[f32],
    (layer, panels): (&Linear, Range<usize>),
    scratch: &mut Quantized,
    out: &mut [f32],
) {
    quantize(kernel, input, layer.inputs, scratch);
    let steps = layer.inputs / 4;
    let (first, width) = (panels.start, panels.len() * LANES);
    let tile_bytes = MAX_ROWS * layer.inputs * K::ACTIVATION_SIZE;
    let mut sums = [[[0; LANES]; 2]; MAX_ROWS];
    // All rows of a block are multiplied by a pair of panels before the next pair, so that each pair is read once.
    for (pair, blocks) in layer.panels[panels.start * steps..panels.end * steps].chunks(2 * steps).enumerate()
    {
        let (left, right) = blocks.split_at(steps);
        let has_right = !right.is_empty();
        let panel = |blocks, index: usize| Panel { blocks, column_sums: &layer.sums[first + index] };
        let right = if has_right { panel(right, 2 * pair + 1) } else { panel(left, 2 * pair) };
        let panels = [panel(left, 2 * pair), right];
        let tiles = scratch.activations.chunks(tile_bytes).zip(scratch.ranges.chunks(MAX_ROWS));
        for ((activations, ranges), out) in tiles.zip(out.chunks_mut(MAX_ROWS * width)) {
            let sums = &mut sums[..ranges.len()];
            kernel.tile(activations, panels, sums);
            for half in 0..1 + usize::from(has_right) {
                let columns = (2 * pair + half) * LANES..width;
                finish(kernel, (layer, first + 2 * pair + half, half), columns, ranges, sums, out);
            }
        }
    }
}

/// The results of a tile for one panel: sums of integers → scaled sums with bias and activation. Of rows as long as the
/// end of `columns`, those from its start on are written.
#[inline(always)]
fn finish<K: Kernel>(
    kernel: K,
    (layer, panel, half): (&Linear, usize, usize),
    columns: Range<usize>,
    ranges: &[RowRange],
    sums: &[[Sums; 2]],
    out: &mut [f32],
) {
    let scales = kernel.load(&layer.scales[panel]);
    let column_sums = kernel.mul(kernel.load_i32(&layer.sums[panel]), scales);
    let bias = kernel.load(&layer.bias[panel]);
    for ((range, sums), out) in ranges.iter().zip(sums).zip(out.chunks_exact_mut(columns.end)) {
        let base = kernel.mul_add(kernel.splat(range.least), column_sums, bias);
        let scale = kernel.mul(kernel.splat(range.scale), scales);
        let mut values = kernel.mul_add(kernel.load_i32(&sums[half]), scale, base);
        if let Some(function) = layer.activation {
            values = activate(kernel, function, values);
        }
        if let Some(out) = out[columns.start..].first_chunk_mut() {
            kernel.store(values, out);
        }
    }
}

/// Quantizes rows of `width` values.
#[inline(always)]
fn quantize<K: Kernel>(kernel: K, input: &[f32], width: usize, scratch: &mut Quantized) {
    let Quantized { ranges, activations } = scratch;
    ranges.clear();
    activations.resize(input.len() * K::ACTIVATION_SIZE, 0);
    let rows = activations.chunks_exact_mut(width * K::ACTIVATION_SIZE);
    // A loop: what iterator adapters call in the standard library is not compiled for the kernel.
    for (row, out) in input.chunks_exact(width).zip(rows) {
        ranges.push(quantize_row(kernel, row, out));
    }
}

/// Quantizes a row. The minimum is a float, not a whole number of steps, so that nothing is lost to the rounding of a
/// zero point. A row with NaN or infinite values gets the scale NaN, and so do its results.
#[inline(always)]
fn quantize_row<K: Kernel>(kernel: K, row: &[f32], out: &mut [u8]) -> RowRange {
    let row = row.as_chunks::<LANES>().0;
    let zero = kernel.splat(0.0);
    let (mut least, mut most, mut invalid) = (zero, zero, zero);
    for lanes in row {
        let lanes = kernel.load(lanes);
        least = kernel.min(lanes, least);
        most = kernel.max(lanes, most);
        // NaN if a value is NaN or infinite.
        invalid = kernel.mul_add(lanes, zero, invalid);
    }
    let (least, most) = (smallest(kernel, least), largest(kernel, most));
    let scale = (most - least) / 255.0;
    let inverse = kernel.splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    // Adding 2^23 rounds to an integer, which is then in the lowest byte.
    let (magic, start) = (kernel.splat(8_388_608.0), kernel.splat(least));
    for (lanes, out) in row.iter().zip(out.chunks_exact_mut(LANES * K::ACTIVATION_SIZE)) {
        let shifted = kernel.sub(kernel.load(lanes), start);
        kernel.store_activations(kernel.mul_add(shifted, inverse, magic), out);
    }
    RowRange { scale: scale + sum(kernel, invalid), least }
}

/// The product of rows of `width` values and the weights of `layer` in fp32, with its bias.
#[inline(always)]
pub(crate) fn dense<K: Kernel>(kernel: K, input: &[f32], width: usize, layer: &Dense, out: &mut [f32]) {
    let outputs = layer.outputs;
    let whole = outputs - outputs % (2 * LANES);
    let mut sums: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
    // Rows are processed in groups, so that the weights are read once per group.
    for (rows, out) in input.chunks(MAX_ROWS * width).zip(out.chunks_mut(MAX_ROWS * outputs)) {
        let sums = &mut sums[..rows.len() / width];
        for first in (0..whole).step_by(2 * LANES) {
            let weights = Rows { values: &layer.weights[first..], stride: outputs };
            kernel.product(width, Rows { values: rows, stride: width }, weights, sums);
            for (sums, out) in sums.iter().zip(out.chunks_exact_mut(outputs)) {
                out[first..first + 2 * LANES].copy_from_slice(sums.as_flattened());
            }
        }
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(outputs)) {
            for (column, out) in out.iter_mut().enumerate().skip(whole) {
                let weights = layer.weights[column..].iter().step_by(outputs);
                *out = row.iter().zip(weights).fold(0.0, |sum, (value, weight)| value.mul_add(*weight, sum));
            }
            if let Some(bias) = &layer.bias {
                out.iter_mut().zip(bias.iter()).for_each(|(out, bias)| *out += bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Block, InstructionSet, KernelFn};

    const INPUTS: usize = 32;
    /// An odd number of panels.
    const PANELS: usize = 3;

    struct Call<'a>(&'a [f32], &'a Linear);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let mut out = vec![0.0; self.0.len() / INPUTS * PANELS * LANES];
            linear(kernel, self.0, (self.1, 0..PANELS), &mut Quantized::default(), &mut out);
            out
        }
    }

    /// The weight of an input for an output.
    fn weight(input: usize, output: usize) -> i8 {
        ((input * 37 + output * 11) % 255) as u8 as i8
    }

    fn layer() -> Linear {
        let block = |panel: usize, step: usize| -> Block {
            std::array::from_fn(|lane| {
                std::array::from_fn(|input| weight(step * 4 + input, panel * LANES + lane))
            })
        };
        let blocks: Vec<Block> =
            (0..PANELS).flat_map(|panel| (0..INPUTS / 4).map(move |step| block(panel, step))).collect();
        let by_output = |f: &dyn Fn(usize) -> f32| -> Vec<Lanes> {
            (0..PANELS).map(|panel| std::array::from_fn(|lane| f(panel * LANES + lane))).collect()
        };
        let sum = |output| (0..INPUTS).map(|input| i32::from(weight(input, output))).sum();
        let sums: Vec<Sums> =
            (0..PANELS).map(|panel| std::array::from_fn(|lane| sum(panel * LANES + lane))).collect();
        Linear {
            inputs: INPUTS,
            outputs: PANELS * LANES,
            panels: blocks.into(),
            scales: by_output(&|output| 0.01 + output as f32 / 1000.0).into(),
            sums: sums.into(),
            bias: by_output(&|output| output as f32 - 20.0).into(),
            activation: None,
        }
    }

    #[test]
    fn outputs_are_those_of_the_quantized_row() {
        let rows = 2 * MAX_ROWS + 1;
        let input: Vec<f32> =
            (0..rows * INPUTS).map(|at| ((at * 7919) % 1000) as f32 / 100.0 - 3.0).collect();
        let layer = layer();
        for instructions in InstructionSet::available() {
            let out = instructions.call(Call(&input, &layer));
            for (row, out) in input.chunks_exact(INPUTS).zip(out.chunks_exact(PANELS * LANES)) {
                let least = row.iter().fold(0.0_f32, |a, b| a.min(*b));
                let scale = (row.iter().fold(0.0_f32, |a, b| a.max(*b)) - least) / 255.0;
                for (output, found) in out.iter().enumerate() {
                    let quantized = |value: f32| ((value - least) / scale).round_ties_even() * scale + least;
                    let product =
                        |(input, value): (usize, &f32)| quantized(*value) * f32::from(weight(input, output));
                    let sum: f32 = row.iter().enumerate().map(product).sum();
                    let expected = sum * (0.01 + output as f32 / 1000.0) + output as f32 - 20.0;
                    // At most one value may be rounded to the other side.
                    assert!(
                        (found - expected).abs() < 0.05 + scale * 128.0 * 0.06,
                        "{instructions}: {found}, {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_spoil_their_own_row_alone() {
        for invalid in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut input = vec![1.0; 3 * INPUTS];
            input[INPUTS + 5] = invalid;
            for instructions in InstructionSet::available() {
                let out = instructions.call(Call(&input, &layer()));
                let rows: Vec<bool> = out
                    .chunks_exact(PANELS * LANES)
                    .map(|row| row.iter().all(|value| value.is_finite()))
                    .collect();
                assert_eq!(rows, [true, false, true], "{invalid}, {instructions}");
                assert!(out[PANELS * LANES..2 * PANELS * LANES].iter().all(|value| value.is_nan()));
            }
        }
    }
}
