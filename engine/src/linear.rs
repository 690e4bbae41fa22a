//! Linear layers. Activations are quantized to u8, with a scale and a minimum per row and block.

use std::ops::Range;

use crate::{
    floats::Floats,
    kernel::{
        COLUMNS, GROUP, Kernel, KernelFn, LANES, Lanes, MAX_ROWS, MAX_TILE_ROWS, Panel, RowRange,
        Rows, RowsMut, ScaledTile, Sums, row_size,
    },
    math::{activate, largest, smallest, sum},
    numbers::Numbers,
    program::{Activation, Dense, InputScaling, Layer, Linear},
};

/// Quantized rows. Tiles of [`Kernel::TILE_ROWS`] rows follow each other; within a tile, rows are grouped by input block.
#[derive(Debug, Default)]
pub struct Quantized {
    ranges: Vec<RowRange>,
    /// In the kernel's format.
    activations: Vec<u8>,
    /// A block of one row's activations, with the layer's factors and offsets applied.
    scaled: Numbers,
    part: Box<Part>,
    /// A panel in fp32.
    panel: Vec<f32>,
}

/// Blocks of a panel between weights and prefetched ones: 8 KiB.
const PREFETCH_DISTANCE: usize = 128;

/// Results of [`MAX_TILE_ROWS`] rows and a pair of panels, aligned so that a register never spans two cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Part {
    sums: [[Sums; 2]; MAX_TILE_ROWS],
    totals: [[Lanes; 2]; MAX_TILE_ROWS],
}

impl Default for Part {
    fn default() -> Self {
        Self {
            sums: [[[0; LANES]; 2]; MAX_TILE_ROWS],
            totals: [[[0.0; LANES]; 2]; MAX_TILE_ROWS],
        }
    }
}

/// Multiplies rows by `layer`'s weights in `panels`, 16 outputs each, with bias and activation.
#[inline(always)]
pub fn linear<K: Kernel>(
    kernel: K,
    input: &[f32],
    layer: &Linear,
    panels: Range<usize>,
    scratch: &mut Quantized,
    out: &mut [f32],
) {
    kernel.call(Product {
        input,
        layer,
        panels,
        scratch,
        out,
    });
}

/// The arguments of [`linear`], which is compiled once for a kernel, and not at each place that calls it.
struct Product<'a> {
    input: &'a [f32],
    layer: &'a Linear,
    panels: Range<usize>,
    scratch: &'a mut Quantized,
    out: &'a mut [f32],
}

impl KernelFn for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let product = TileProduct(self);
        if K::HAS_SMALL_QUADS && product.0.layer.panels.have_small_quads() {
            kernel.call_for_small_quads(product);
        } else {
            product.call(kernel);
        }
    }
}

/// A product by the kernel's tiles.
struct TileProduct<'a>(Product<'a>);

impl KernelFn for TileProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Product {
            input,
            layer,
            panels,
            scratch,
            out,
        } = self.0;
        const { assert!(MAX_TILE_ROWS.is_multiple_of(K::TILE_ROWS)) };
        quantize(kernel, input, layer, scratch);
        let (blocks, size) = (layer.blocks(), row_size::<K>(layer.block));
        let prefetch = Prefetch::new(blocks, layer.block / GROUP);
        let width = panels.len() * LANES;
        let Quantized {
            ranges,
            activations,
            part,
            ..
        } = scratch;
        let Part { sums, totals } = &mut **part;
        // All rows are multiplied by a pair of panels before the next pair, and many rows by a block of it before the
        // next block, so that weights are read once.
        for left in panels.clone().step_by(2) {
            // The last panel has no partner if their number is odd.
            let right = (left + 1).min(panels.end - 1);
            let columns = (left - panels.start) * LANES..(right + 1 - panels.start) * LANES;
            for (part, out) in out.chunks_mut(MAX_TILE_ROWS * width).enumerate() {
                let totals = &mut totals[..out.len() / width];
                let is_written_later = layer.activation.is_some() || left == right;
                for block in 0..blocks {
                    let places = [left * blocks + block, right * blocks + block];
                    let mut tile = ScaledTile {
                        rows: &[],
                        ranges: &[],
                        panels: [weights(layer, places[0]), weights(layer, places[1])],
                        prefetch_distance: prefetch.distance(block),
                        scales: [&layer.scales[places[0]], &layer.scales[places[1]]],
                        bias: (block == 0).then(|| [&layer.bias[left], &layer.bias[right]]),
                    };
                    for (index, totals) in totals.chunks_mut(K::TILE_ROWS).enumerate() {
                        let first = index * K::TILE_ROWS;
                        let start = (part * MAX_TILE_ROWS + first) * blocks + block * totals.len();
                        tile.ranges = &ranges[start..start + totals.len()];
                        tile.rows = &activations[start * size..(start + totals.len()) * size];
                        let out = (block + 1 == blocks && !is_written_later).then(|| {
                            RowsMut::new(&mut out[first * width + columns.start..], width)
                        });
                        kernel.add_tile(&tile, &mut sums[..totals.len()], totals, out);
                    }
                }
                if is_written_later {
                    for (totals, out) in totals.iter().zip(out.chunks_exact_mut(width)) {
                        finish(
                            kernel,
                            layer.activation,
                            totals,
                            out[columns.clone()].as_chunks_mut().0,
                        );
                    }
                }
            }
        }
    }
}

/// Prefetches an input block about [`PREFETCH_DISTANCE`] later, in the order in which products read the weights. Two panels
/// are multiplied together, so what follows a panel is two panels later in memory.
struct Prefetch {
    /// Input blocks per panel.
    blocks: usize,
    /// Blocks of weights per input block.
    depth: usize,
    /// Whole pairs between weights and prefetched ones.
    pairs: usize,
    /// Input blocks in addition to the pairs.
    rest: usize,
}

impl Prefetch {
    #[inline(always)]
    fn new(blocks: usize, depth: usize) -> Self {
        let later = ((PREFETCH_DISTANCE + depth / 2) / depth).max(1);
        Self {
            blocks,
            depth,
            pairs: later / blocks,
            rest: later % blocks,
        }
    }

    /// [`ScaledTile::prefetch_distance`] for an input block.
    #[inline(always)]
    fn distance(&self, block: usize) -> usize {
        let Self {
            blocks,
            depth,
            pairs,
            rest,
        } = *self;
        let skipped = if block + rest < blocks {
            2 * pairs
        } else {
            2 * pairs + 1
        };
        (skipped * blocks + rest) * depth
    }
}

/// One block within one panel.
#[inline(always)]
fn weights(layer: &Linear, place: usize) -> Panel<'_> {
    let depth = layer.block / GROUP;
    Panel {
        blocks: &layer.panels.blocks()[place * depth..(place + 1) * depth],
        column_sums: &layer.sums[place],
    }
}

/// Applies the activation function, and writes as many outputs as `out` has.
#[inline(always)]
fn finish<K: Kernel>(
    kernel: K,
    activation: Option<Activation>,
    totals: &[Lanes; 2],
    out: &mut [Lanes],
) {
    for (totals, out) in totals.iter().zip(out) {
        let total = kernel.load(totals);
        let value = match activation {
            Some(function) => activate(kernel, function, total),
            None => total,
        };
        kernel.store(value, out);
    }
}

/// Quantizes rows into [`Quantized`] order.
#[inline(always)]
fn quantize<K: Kernel>(kernel: K, input: &[f32], layer: &Linear, scratch: &mut Quantized) {
    let Quantized {
        ranges,
        activations,
        scaled,
        ..
    } = scratch;
    let (blocks, size) = (layer.blocks(), row_size::<K>(layer.block));
    ranges.resize(input.len() / layer.block, RowRange::default());
    activations.resize(ranges.len() * size, 0);
    scaled.resize(layer.block, 0.0);
    let scaled = scaled.as_chunks_mut().0;
    for (tile, input) in input.chunks(K::TILE_ROWS * layer.inputs).enumerate() {
        let rows = input.len() / layer.inputs;
        // Loops: what iterator adapters call in the standard library is not compiled for the kernel.
        for row in 0..rows {
            let mut invalid = kernel.splat(0.0);
            for block in 0..blocks {
                let place = tile * K::TILE_ROWS * blocks + block * rows + row;
                let values = &input[row * layer.inputs + block * layer.block..][..layer.block];
                let values = values.as_chunks().0;
                let out = &mut activations[place * size..(place + 1) * size];
                let mut extent = Extent::new(kernel, invalid);
                ranges[place] = match &layer.scaling {
                    None => {
                        extent.include_all(kernel, values);
                        quantize_block(kernel, &extent, values, out)
                    }
                    Some(scaling) => {
                        let columns = block * values.len();
                        extent.include_scaled(kernel, values, scaling, columns, scaled);
                        quantize_block(kernel, &extent, scaled, out)
                    }
                };
                invalid = extent.invalid;
            }
            // A row with NaN or infinite values gets the scale NaN, and so do its results.
            let last = tile * K::TILE_ROWS * blocks + (blocks - 1) * rows + row;
            ranges[last].scale += sum(kernel, invalid);
        }
    }
}

/// A block's smallest and largest value, zero included; NaN if a value up to this block is NaN or infinite. Per lane.
#[derive(Clone, Copy)]
struct Extent<K: Kernel> {
    least: K::F32x16,
    most: K::F32x16,
    invalid: K::F32x16,
}

impl<K: Kernel> Extent<K> {
    #[inline(always)]
    fn new(kernel: K, invalid: K::F32x16) -> Self {
        let zero = kernel.splat(0.0);
        Self {
            least: zero,
            most: zero,
            invalid,
        }
    }

    #[inline(always)]
    fn include(&mut self, kernel: K, lanes: K::F32x16) {
        self.least = kernel.min(lanes, self.least);
        self.most = kernel.max(lanes, self.most);
        self.invalid = kernel.mul_add(lanes, kernel.splat(0.0), self.invalid);
    }

    #[inline(always)]
    fn include_all(&mut self, kernel: K, values: &[Lanes]) {
        for lanes in values {
            self.include(kernel, kernel.load(lanes));
        }
    }

    /// Applies a layer's factors and offsets, from `first` on, to a row's block.
    #[inline(always)]
    fn include_scaled(
        &mut self,
        kernel: K,
        values: &[Lanes],
        scaling: &InputScaling,
        first: usize,
        out: &mut [Lanes],
    ) {
        let columns = scaling.factors[first..]
            .iter()
            .zip(&scaling.offsets[first..]);
        for ((lanes, out), (factor, offset)) in values.iter().zip(out).zip(columns) {
            let scaled =
                kernel.mul_add(kernel.load(lanes), kernel.load(factor), kernel.load(offset));
            self.include(kernel, scaled);
            kernel.store(scaled, out);
        }
    }
}

/// Quantizes one row's block. The minimum is a float, not a whole number of steps, so that nothing is lost to
/// zero-point rounding.
#[inline(always)]
fn quantize_block<K: Kernel>(
    kernel: K,
    extent: &Extent<K>,
    values: &[Lanes],
    out: &mut [u8],
) -> RowRange {
    let (least, most) = (smallest(kernel, extent.least), largest(kernel, extent.most));
    let scale = (most - least) / 255.0;
    let inverse = kernel.splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    // Adding 2^23 rounds to an integer, which is then in the lowest byte.
    let (magic, start) = (kernel.splat(8_388_608.0), kernel.splat(least));
    for (lanes, out) in values
        .iter()
        .zip(out.chunks_exact_mut(LANES * K::ACTIVATION_SIZE))
    {
        let shifted = kernel.sub(kernel.load(lanes), start);
        kernel.store_activations(kernel.mul_add(shifted, inverse, magic), out);
    }
    kernel.finish_row(out);
    RowRange { scale, least }
}

/// Multiplies rows by `layer`'s weights for the outputs in `columns`, which are whole panels, with bias.
#[inline(always)]
pub fn layer<K: Kernel>(
    kernel: K,
    input: &[f32],
    layer: &Layer,
    columns: Range<usize>,
    scratch: &mut Quantized,
    out: &mut [f32],
) {
    match layer {
        Layer::Int8(layer) => {
            let panels = columns.start / LANES..columns.end / LANES;
            linear(kernel, input, layer, panels, scratch, out);
        }
        Layer::Fp32(layer) => dense_columns(kernel, input, layer, columns, scratch, out),
    }
}

/// Multiplies rows by `layer`'s fp32 weights, which have 32 bits, with bias.
#[inline(always)]
pub fn dense<K: Kernel>(kernel: K, input: &[f32], layer: &Dense, out: &mut [f32]) {
    let mut scratch = Vec::new();
    kernel.call(DenseProduct {
        input,
        layer,
        columns: 0..layer.outputs,
        scratch: &mut scratch,
        out,
    });
}

/// Multiplies rows by `layer`'s fp32 weights for the outputs in `columns`, with bias.
#[inline(always)]
pub fn dense_columns<K: Kernel>(
    kernel: K,
    input: &[f32],
    layer: &Dense,
    columns: Range<usize>,
    scratch: &mut Quantized,
    out: &mut [f32],
) {
    kernel.call(DenseProduct {
        input,
        layer,
        columns,
        scratch: &mut scratch.panel,
        out,
    });
}

/// The arguments of [`dense_columns`], which is compiled as [`linear`] is.
struct DenseProduct<'a> {
    input: &'a [f32],
    layer: &'a Dense,
    columns: Range<usize>,
    /// For a panel with weights in 16 bits.
    scratch: &'a mut Vec<f32>,
    out: &'a mut [f32],
}

impl KernelFn for DenseProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self {
            input,
            layer,
            columns,
            scratch,
            out,
        } = self;
        let (width, panel, outputs) = (layer.inputs(), layer.panel, columns.len());
        let whole = outputs - outputs % COLUMNS;
        let mut sums: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
        // All rows are multiplied by some columns before the next ones, so that the weights are read from memory once.
        for first in (0..whole).step_by(COLUMNS) {
            let column = columns.start + first;
            let weights = match &layer.weights {
                Floats::F32(weights) => &weights[column / panel * panel * width + column % panel..],
                weights => {
                    scratch.resize(width * COLUMNS, 0.0);
                    weights.read(column * width, scratch);
                    &*scratch
                }
            };
            let weights = Rows::new(weights, panel);
            for (rows, out) in input
                .chunks(MAX_ROWS * width)
                .zip(out.chunks_mut(MAX_ROWS * outputs))
            {
                let sums = &mut sums[..rows.len() / width];
                kernel.product(width, Rows::new(rows, width), weights, sums);
                for (sums, out) in sums.iter().zip(out.chunks_exact_mut(outputs)) {
                    out[first..first + COLUMNS].copy_from_slice(sums.as_flattened());
                }
            }
        }
        for (row, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(outputs)) {
            for (column, out) in out.iter_mut().enumerate().skip(whole) {
                let weights = layer.weights.in_32_bits()[columns.start + column..]
                    .iter()
                    .step_by(layer.outputs);
                let products = row.iter().zip(weights);
                *out = products.fold(0.0, |sum, (value, weight)| {
                    kernel.mul_add_one(*value, *weight, sum)
                });
            }
            if let Some(bias) = &layer.bias {
                out.iter_mut()
                    .zip(&bias[columns.clone()])
                    .for_each(|(out, bias)| *out += bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::{Block, InstructionSet},
        quantize::{panels_in_fp32, transpose},
    };

    const INPUTS: usize = 32;
    /// An odd panel count.
    const PANELS: usize = 3;

    struct Call<'a>(&'a [f32], &'a Linear);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let mut out = vec![0.0; self.0.len() / INPUTS * PANELS * LANES];
            linear(
                kernel,
                self.0,
                self.1,
                0..PANELS,
                &mut Quantized::default(),
                &mut out,
            );
            out
        }
    }

    /// Divisors of weights; pairs of divided ones are small.
    const DIVISORS: [i8; 2] = [1, 4];

    /// Test weight for an input-output pair.
    fn weight(input: usize, output: usize, divisor: i8) -> i8 {
        ((input * 37 + output * 11) % 255) as u8 as i8 / divisor
    }

    /// Weight scale for an output and input block.
    fn scale(output: usize, block: usize) -> f32 {
        0.01 + output as f32 / 1000.0 + block as f32 / 200.0
    }

    fn layer(block: usize, divisor: i8) -> Linear {
        let group = |panel: usize, step: usize| -> Block {
            std::array::from_fn(|lane| {
                std::array::from_fn(|input| weight(step * 4 + input, panel * LANES + lane, divisor))
            })
        };
        let groups: Vec<Block> = (0..PANELS)
            .flat_map(|panel| (0..INPUTS / 4).map(move |step| group(panel, step)))
            .collect();
        let blocks = INPUTS / block;
        let lanes = |place: usize| {
            (0..LANES).map(move |lane| (place / blocks * LANES + lane, place % blocks))
        };
        let scales = |place| {
            lanes(place)
                .map(|(output, block)| scale(output, block))
                .collect::<Vec<_>>()
        };
        let sum = |(output, at): (usize, usize)| {
            (at * block..(at + 1) * block)
                .map(|input| i32::from(weight(input, output, divisor)))
                .sum()
        };
        let sums = |place| lanes(place).map(sum).collect::<Vec<i32>>();
        let bias: Vec<f32> = (0..PANELS * LANES)
            .map(|output| output as f32 - 20.0)
            .collect();
        Linear {
            name: "layer".to_owned(),
            scaling: None,
            inputs: INPUTS,
            block,
            outputs: PANELS * LANES,
            panels: groups.into(),
            scales: (0..PANELS * blocks)
                .flat_map(scales)
                .collect::<Vec<_>>()
                .as_chunks()
                .0
                .to_vec()
                .into(),
            sums: (0..PANELS * blocks)
                .flat_map(sums)
                .collect::<Vec<_>>()
                .as_chunks()
                .0
                .to_vec()
                .into(),
            bias: bias.as_chunks().0.to_vec().into(),
            activation: None,
        }
    }

    /// Factor and offset for an input column.
    fn column(input: usize) -> [f32; 2] {
        [0.5 + (input % 5) as f32 / 4.0, input as f32 / 10.0 - 1.0]
    }

    fn scaled(block: usize, divisor: i8) -> Linear {
        let lanes = |part: usize| {
            let values: Vec<f32> = (0..INPUTS).map(|input| column(input)[part]).collect();
            values.as_chunks().0.to_vec().into()
        };
        Linear {
            scaling: Some(InputScaling {
                factors: lanes(0),
                offsets: lanes(1),
            }),
            ..layer(block, divisor)
        }
    }

    #[test]
    fn outputs_are_those_of_the_quantized_blocks() {
        let rows = 2 * MAX_TILE_ROWS + 1;
        let input: Vec<f32> = (0..rows * INPUTS)
            .map(|at| ((at * 7919) % 1000) as f32 / 100.0 - 3.0)
            .collect();
        let layers = || {
            let layers = DIVISORS.into_iter().flat_map(|divisor| {
                let blocks = [INPUTS, INPUTS / 2];
                let both = move |block| [layer(block, divisor), scaled(block, divisor)];
                blocks
                    .into_iter()
                    .flat_map(both)
                    .map(move |layer| (layer, divisor))
            });
            layers.inspect(|(layer, divisor)| {
                assert_eq!(layer.panels.have_small_quads(), *divisor > 1)
            })
        };
        for ((layer, divisor), instructions) in
            InstructionSet::available().flat_map(|it| layers().map(move |layer| (layer, it)))
        {
            let block = layer.block;
            let out = instructions.call(Call(&input, &layer));
            for (row, out) in input
                .chunks_exact(INPUTS)
                .zip(out.chunks_exact(PANELS * LANES))
            {
                let scaled = row
                    .iter()
                    .enumerate()
                    .map(|(input, value)| match layer.scaling {
                        Some(_) => value.mul_add(column(input)[0], column(input)[1]),
                        None => *value,
                    });
                let row: Vec<f32> = scaled.collect();
                for (output, found) in out.iter().enumerate() {
                    let (mut expected, mut step) = (output as f32 - 20.0, 0.0_f32);
                    for (at, values) in row.chunks_exact(block).enumerate() {
                        let least = values.iter().fold(0.0_f32, |a, b| a.min(*b));
                        let range = (values.iter().fold(0.0_f32, |a, b| a.max(*b)) - least) / 255.0;
                        let quantized = |value: f32| {
                            ((value - least) / range).round_ties_even() * range + least
                        };
                        for (input, value) in values.iter().enumerate() {
                            let weight = f32::from(weight(at * block + input, output, divisor));
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
        for (invalid, block) in [
            (f32::NAN, INPUTS),
            (f32::INFINITY, INPUTS / 2),
            (f32::NEG_INFINITY, INPUTS),
        ] {
            let mut input = vec![1.0; 3 * INPUTS];
            input[INPUTS + 5] = invalid;
            for instructions in InstructionSet::available() {
                let out = instructions.call(Call(&input, &layer(block, 1)));
                let rows: Vec<bool> = out
                    .chunks_exact(PANELS * LANES)
                    .map(|row| row.iter().all(|value| value.is_finite()))
                    .collect();
                assert_eq!(rows, [true, false, true], "{invalid}, {instructions}");
                assert!(
                    out[PANELS * LANES..2 * PANELS * LANES]
                        .iter()
                        .all(|value| value.is_nan())
                );
            }
        }
    }

    struct DenseCall<'a>(&'a [f32], &'a Dense, Range<usize>);

    impl KernelFn for DenseCall<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let Self(input, layer, columns) = self;
            let mut out = vec![0.0; input.len() / layer.inputs() * columns.len()];
            let mut scratch = Quantized::default();
            dense_columns(kernel, input, layer, columns, &mut scratch, &mut out);
            out
        }
    }

    #[test]
    fn panels_in_fp32_have_the_bits_of_the_matrix() {
        let outputs = 3 * COLUMNS;
        // With eight significant bits, which 16-bit numbers hold.
        let numbers = |count: usize| -> Vec<f32> {
            let number = |at: usize| ((at * 7919) % 509) as f32 / 16.0 - 15.9375;
            (0..count).map(number).collect()
        };
        // A row per output, as models have them.
        let rows = numbers(outputs * INPUTS);
        let values = panels_in_fp32(&rows, INPUTS);
        let shorten = |shorten: fn(u32) -> u32| -> Vec<u16> {
            let bits = values.iter().map(|value| value.to_bits());
            bits.map(|bits| (bits >> 16 & 0x8000 | shorten(bits & 0x7fff_ffff)) as u16)
                .collect()
        };
        let bf16 = shorten(|bits| bits >> 16);
        let f16 = shorten(|bits| (bits >> 13).saturating_sub(112 << 10));
        let layers = [
            (outputs, transpose(&rows, INPUTS).into()),
            (COLUMNS, values.clone().into()),
            (COLUMNS, Floats::Bf16(bf16.into())),
            (COLUMNS, Floats::F16(f16.into())),
        ];
        let [matrix, panels @ ..] = layers.map(|(panel, weights)| Dense {
            outputs,
            panel,
            weights,
            bias: Some(numbers(outputs).into()),
        });
        for count in [1, MAX_ROWS, 4 * MAX_ROWS + 1] {
            let input = numbers(count * INPUTS);
            for instructions in InstructionSet::available() {
                let found = instructions.call(DenseCall(&input, &matrix, 0..outputs));
                // The last panels, by themselves.
                let part = COLUMNS..outputs;
                let of_part: Vec<f32> = found
                    .chunks_exact(outputs)
                    .flat_map(|row| row[part.clone()].to_vec())
                    .collect();
                for layer in panels.iter().chain([&matrix]) {
                    let all = instructions.call(DenseCall(&input, layer, 0..outputs));
                    assert_eq!(all, found, "{instructions}, {count} rows");
                    let all = instructions.call(DenseCall(&input, layer, part.clone()));
                    assert_eq!(all, of_part, "{instructions}, {count} rows");
                }
                let products = input[..INPUTS].iter().zip(&rows[INPUTS..2 * INPUTS]);
                let sum: f32 = products.map(|(left, right)| left * right).sum();
                let second = sum + numbers(2)[1];
                assert!((found[1] - second).abs() < 1e-2, "{} {second}", found[1]);
            }
        }
    }

    #[test]
    fn prefetched_weights_are_those_used_next() {
        for (blocks, depth) in [
            (1, 8),
            (1, 96),
            (1, 600),
            (2, 48),
            (4, 48),
            (4, 96),
            (7, 20),
            (16, 8),
        ] {
            // The left panels' blocks in the order of use, as places in memory.
            let left = |at: usize| (at / blocks * 2 * blocks + at % blocks) * depth;
            let prefetch = Prefetch::new(blocks, depth);
            let later = (1..=PREFETCH_DISTANCE)
                .find(|later| left(*later) - left(0) == prefetch.distance(0))
                .unwrap();
            assert!(
                later == 1 || (later * depth).abs_diff(PREFETCH_DISTANCE) <= depth / 2,
                "{blocks} blocks of {depth}: {later}"
            );
            for at in 0..3 * blocks {
                let found = left(at) + prefetch.distance(at % blocks);
                assert_eq!(found, left(at + later), "{blocks} blocks of {depth}, {at}");
            }
        }
    }
}
