//! Linear layers. Activations are quantized to u8, with a scale and a minimum per row and block.

use std::ops::Range;

use crate::{
    kernel::{GROUP, Kernel, LANES, Lanes, MAX_ROWS, MAX_TILE_ROWS, Panel, Rows, Sums, row_size},
    math::{activate, largest, smallest, sum},
    program::{Dense, InputScaling, Linear},
};

/// Quantized rows. Tiles of [`Kernel::TILE_ROWS`] rows follow each other; within a tile, rows are grouped by input block.
#[derive(Debug, Default)]
pub(crate) struct Quantized {
    ranges: Vec<BlockRange>,
    /// In the kernel's format.
    activations: Vec<u8>,
    /// A row's block after its layer's factors and offsets.
    scaled: Vec<Lanes>,
    tile: Box<Tile>,
}

/// A tile's results, aligned so that a register never spans two cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Tile {
    sums: [[Sums; 2]; MAX_TILE_ROWS],
    totals: [[Lanes; 2]; MAX_TILE_ROWS],
}

impl Default for Tile {
    fn default() -> Self {
        Self { sums: [[[0; LANES]; 2]; MAX_TILE_ROWS], totals: [[[0.0; LANES]; 2]; MAX_TILE_ROWS] }
    }
}

/// Quantization range per row and block: `value ≈ least + scale × integer`.
#[derive(Clone, Copy, Debug, Default)]
struct BlockRange {
    scale: f32,
    least: f32,
}

/// Multiplies rows by `layer`'s weights in `panels`, 16 outputs each, with bias and activation.
#[inline(always)]
pub(crate) fn linear<K: Kernel>(
    kernel: K,
    input: &[f32],
    (layer, panels): (&Linear, Range<usize>),
    scratch: &mut Quantized,
    out: &mut [f32],
) {
    quantize(kernel, input, layer, scratch);
    let blocks = layer.blocks();
    let width = panels.len() * LANES;
    let Quantized { ranges, activations, tile, .. } = scratch;
    let Tile { sums, totals } = &mut **tile;
    // All rows in a block are multiplied by a pair of panels before the next pair, so that each pair is read once.
    for first in panels.clone().step_by(2) {
        // The last panel has no partner if their number is odd.
        let pair = [first, (first + 1).min(panels.end - 1)];
        let halves = 1 + pair[1] - first;
        let tiles = ranges.chunks(K::TILE_ROWS * blocks);
        let activations = activations.chunks(K::TILE_ROWS * blocks * row_size::<K>(layer.block));
        for ((ranges, activations), out) in tiles.zip(activations).zip(out.chunks_mut(K::TILE_ROWS * width)) {
            let rows = ranges.len() / blocks;
            let by_block =
                ranges.chunks_exact(rows).zip(activations.chunks_exact(activations.len() / blocks));
            for (block, (ranges, activations)) in by_block.enumerate() {
                let sums = &mut sums[..rows];
                let weights = [weights(layer, pair[0], block), weights(layer, pair[1], block)];
                kernel.tile(activations, weights, sums);
                for (half, panel) in pair.into_iter().enumerate().take(halves) {
                    let columns = (first - panels.start + half) * LANES..width;
                    let place = (layer, panel, block);
                    add_block(kernel, place, half, (ranges, sums), totals, (columns, &mut *out));
                }
            }
        }
    }
}

/// One block within one panel.
#[inline(always)]
fn weights(layer: &Linear, panel: usize, block: usize) -> Panel<'_> {
    let (place, depth) = (panel * layer.blocks() + block, layer.block / GROUP);
    Panel { blocks: &layer.panels[place * depth..(place + 1) * depth], column_sums: &layer.sums[place] }
}

/// Adds the products of an input block and a panel to a tile's totals, which begin with the bias. After the last block,
/// applies the activation and writes the outputs. Rows in `out` are `columns.end` long, written from `columns.start` on.
#[inline(always)]
fn add_block<K: Kernel>(
    kernel: K,
    (layer, panel, block): (&Linear, usize, usize),
    half: usize,
    (ranges, sums): (&[BlockRange], &[[Sums; 2]]),
    totals: &mut [[Lanes; 2]],
    (columns, out): (Range<usize>, &mut [f32]),
) {
    let place = panel * layer.blocks() + block;
    let scales = kernel.load(&layer.scales[place]);
    let column_sums = kernel.mul(kernel.load_i32(&layer.sums[place]), scales);
    let bias = kernel.load(&layer.bias[panel]);
    let is_last = block + 1 == layer.blocks();
    let rows = ranges.iter().zip(sums).zip(totals).zip(out.chunks_exact_mut(columns.end));
    for (((range, sums), totals), out) in rows {
        let total = if block == 0 { bias } else { kernel.load(&totals[half]) };
        let base = kernel.mul_add(kernel.splat(range.least), column_sums, total);
        let scale = kernel.mul(kernel.splat(range.scale), scales);
        let mut total = kernel.mul_add(kernel.load_i32(&sums[half]), scale, base);
        if !is_last {
            kernel.store(total, &mut totals[half]);
            continue;
        }
        if let Some(function) = layer.activation {
            total = activate(kernel, function, total);
        }
        if let Some(out) = out[columns.start..].first_chunk_mut() {
            kernel.store(total, out);
        }
    }
}

/// Quantizes rows into [`Quantized`] order.
#[inline(always)]
fn quantize<K: Kernel>(kernel: K, input: &[f32], layer: &Linear, scratch: &mut Quantized) {
    let Quantized { ranges, activations, scaled, .. } = scratch;
    let (blocks, bytes) = (layer.blocks(), row_size::<K>(layer.block));
    ranges.resize(input.len() / layer.block, BlockRange::default());
    activations.resize(ranges.len() * bytes, 0);
    for (tile, input) in input.chunks(K::TILE_ROWS * layer.inputs).enumerate() {
        let rows = input.len() / layer.inputs;
        // A loop: what iterator adapters call in the standard library is not compiled for the kernel.
        for (index, values) in input.chunks_exact(layer.block).enumerate() {
            let (row, block) = (index / blocks, index % blocks);
            let place = tile * K::TILE_ROWS * blocks + block * rows + row;
            let out = &mut activations[place * bytes..(place + 1) * bytes];
            let values = values.as_chunks().0;
            ranges[place] = match &layer.scaling {
                None => quantize_block(kernel, extent(kernel, values), values, out),
                Some(scaling) => {
                    scaled.resize(values.len(), [0.0; LANES]);
                    let extent = scale(kernel, values, scaling, (block * values.len(), &mut scaled[..]));
                    quantize_block(kernel, extent, scaled, out)
                }
            };
        }
    }
}

/// A block's smallest and largest value, zero included, and NaN if a value is NaN or infinite; per lane.
#[derive(Clone, Copy)]
struct Extent<K: Kernel> {
    least: K::F32x16,
    most: K::F32x16,
    invalid: K::F32x16,
}

impl<K: Kernel> Extent<K> {
    #[inline(always)]
    fn new(kernel: K) -> Self {
        let zero = kernel.splat(0.0);
        Self { least: zero, most: zero, invalid: zero }
    }

    #[inline(always)]
    fn include(&mut self, kernel: K, lanes: K::F32x16) {
        self.least = kernel.min(lanes, self.least);
        self.most = kernel.max(lanes, self.most);
        self.invalid = kernel.mul_add(lanes, kernel.splat(0.0), self.invalid);
    }
}

#[inline(always)]
fn extent<K: Kernel>(kernel: K, values: &[Lanes]) -> Extent<K> {
    let mut extent = Extent::new(kernel);
    for lanes in values {
        extent.include(kernel, kernel.load(lanes));
    }
    extent
}

/// Applies a layer's factors and offsets, from `first` on, to a row's block.
#[inline(always)]
fn scale<K: Kernel>(
    kernel: K,
    values: &[Lanes],
    scaling: &InputScaling,
    (first, out): (usize, &mut [Lanes]),
) -> Extent<K> {
    let columns = scaling.factors[first..].iter().zip(&scaling.offsets[first..]);
    let mut extent = Extent::new(kernel);
    for ((lanes, out), (factor, offset)) in values.iter().zip(out).zip(columns) {
        let scaled = kernel.mul_add(kernel.load(lanes), kernel.load(factor), kernel.load(offset));
        extent.include(kernel, scaled);
        kernel.store(scaled, out);
    }
    extent
}

/// Quantizes one row's block. The minimum is a float, not a whole number of steps, so that nothing is lost to
/// zero-point rounding. A block with NaN or infinite values gets the scale NaN, and so do its row's results.
#[inline(always)]
fn quantize_block<K: Kernel>(kernel: K, extent: Extent<K>, values: &[Lanes], out: &mut [u8]) -> BlockRange {
    let Extent { least, most, invalid } = extent;
    let (least, most) = (smallest(kernel, least), largest(kernel, most));
    let scale = (most - least) / 255.0;
    let inverse = kernel.splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    // Adding 2^23 rounds to an integer, which is then in the lowest byte.
    let (magic, start) = (kernel.splat(8_388_608.0), kernel.splat(least));
    for (lanes, out) in values.iter().zip(out.chunks_exact_mut(LANES * K::ACTIVATION_SIZE)) {
        let shifted = kernel.sub(kernel.load(lanes), start);
        kernel.store_activations(kernel.mul_add(shifted, inverse, magic), out);
    }
    kernel.finish_row(out);
    BlockRange { scale: scale + sum(kernel, invalid), least }
}

/// Multiplies rows with `width` values each by `layer`'s fp32 weights, with bias.
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
                let products = row.iter().zip(weights);
                *out = products.fold(0.0, |sum, (value, weight)| kernel.mul_add_one(*value, *weight, sum));
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
    /// An odd panel count.
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

    /// Test weight for an input-output pair.
    fn weight(input: usize, output: usize) -> i8 {
        ((input * 37 + output * 11) % 255) as u8 as i8
    }

    /// Weight scale for an output and input block.
    fn scale(output: usize, block: usize) -> f32 {
        0.01 + output as f32 / 1000.0 + block as f32 / 200.0
    }

    fn layer(block: usize) -> Linear {
        let group = |panel: usize, step: usize| -> Block {
            std::array::from_fn(|lane| {
                std::array::from_fn(|input| weight(step * 4 + input, panel * LANES + lane))
            })
        };
        let groups: Vec<Block> =
            (0..PANELS).flat_map(|panel| (0..INPUTS / 4).map(move |step| group(panel, step))).collect();
        let blocks = INPUTS / block;
        let lanes =
            |place: usize| (0..LANES).map(move |lane| (place / blocks * LANES + lane, place % blocks));
        let scales = |place| lanes(place).map(|(output, block)| scale(output, block)).collect::<Vec<_>>();
        let sum = |(output, at): (usize, usize)| {
            (at * block..(at + 1) * block).map(|input| i32::from(weight(input, output))).sum()
        };
        let sums = |place| lanes(place).map(sum).collect::<Vec<i32>>();
        let bias: Vec<f32> = (0..PANELS * LANES).map(|output| output as f32 - 20.0).collect();
        Linear {
            name: "layer".to_owned(),
            scaling: None,
            inputs: INPUTS,
            block,
            outputs: PANELS * LANES,
            panels: groups.into(),
            scales: (0..PANELS * blocks).flat_map(scales).collect::<Vec<_>>().as_chunks().0.to_vec().into(),
            sums: (0..PANELS * blocks).flat_map(sums).collect::<Vec<_>>().as_chunks().0.to_vec().into(),
            bias: bias.as_chunks().0.to_vec().into(),
            activation: None,
        }
    }

    /// Factor and offset for an input column.
    fn column(input: usize) -> [f32; 2] {
        [0.5 + (input % 5) as f32 / 4.0, input as f32 / 10.0 - 1.0]
    }

    fn scaled(block: usize) -> Linear {
        let lanes = |part: usize| {
            let values: Vec<f32> = (0..INPUTS).map(|input| column(input)[part]).collect();
            values.as_chunks().0.to_vec().into()
        };
        Linear { scaling: Some(InputScaling { factors: lanes(0), offsets: lanes(1) }), ..layer(block) }
    }

    #[test]
    fn outputs_are_those_of_the_quantized_blocks() {
        let rows = 2 * MAX_TILE_ROWS + 1;
        let input: Vec<f32> =
            (0..rows * INPUTS).map(|at| ((at * 7919) % 1000) as f32 / 100.0 - 3.0).collect();
        let layers = || [layer(INPUTS), layer(INPUTS / 2), scaled(INPUTS), scaled(INPUTS / 2)];
        for (layer, instructions) in
            InstructionSet::available().flat_map(|it| layers().map(move |layer| (layer, it)))
        {
            let block = layer.block;
            let out = instructions.call(Call(&input, &layer));
            for (row, out) in input.chunks_exact(INPUTS).zip(out.chunks_exact(PANELS * LANES)) {
                let scaled = row.iter().enumerate().map(|(input, value)| match layer.scaling {
                    Some(_) => value.mul_add(column(input)[0], column(input)[1]),
                    None => *value,
                });
                let row: Vec<f32> = scaled.collect();
                for (output, found) in out.iter().enumerate() {
                    let (mut expected, mut step) = (output as f32 - 20.0, 0.0_f32);
                    for (at, values) in row.chunks_exact(block).enumerate() {
                        let least = values.iter().fold(0.0_f32, |a, b| a.min(*b));
                        let range = (values.iter().fold(0.0_f32, |a, b| a.max(*b)) - least) / 255.0;
                        let quantized =
                            |value: f32| ((value - least) / range).round_ties_even() * range + least;
                        for (input, value) in values.iter().enumerate() {
                            let weight = f32::from(weight(at * block + input, output));
                            expected += quantized(*value) * weight * scale(output, at);
                        }
                        step = step.max(range);
                    }
                    // Allows for one value that is rounded in the other direction.
                    assert!(
                        (found - expected).abs() < 0.05 + step * 128.0 * 0.07,
                        "{instructions}: {found}, {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_spoil_their_own_row_alone() {
        for (invalid, block) in [(f32::NAN, INPUTS), (f32::INFINITY, INPUTS / 2), (f32::NEG_INFINITY, INPUTS)]
        {
            let mut input = vec![1.0; 3 * INPUTS];
            input[INPUTS + 5] = invalid;
            for instructions in InstructionSet::available() {
                let out = instructions.call(Call(&input, &layer(block)));
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
