//! Rounds a layer's weights to integers whose errors cancel.
//!
//! Rounding each weight to the nearest integer minimizes the weights' error, but not the outputs': inputs are correlated,
//! so one weight's error can make up for another's. [`round`] minimizes the outputs' squared error over sample inputs by
//! coordinate descent, one weight at a time. Results have the same bits on all processors, with any number of threads.

use std::{num::NonZeroUsize, thread};

use crate::{
    array::Array,
    kernel::{InstructionSet, Kernel, KernelFn, LANES, MAX_ROWS},
    linear::dense,
    program::Dense,
};

/// Passes over all weights; later ones change hardly any.
const PASSES: usize = 4;
/// Share of the mean square input that is added to each input's own, since the inputs are a sample.
const DAMPING: f32 = 0.01;
/// Maximum magnitude of an integer.
pub const MAX_INTEGER: f32 = 127.0;
/// Multiplications that are worth a thread.
const THREAD_PRODUCTS: usize = 1 << 24;

/// A layer's weights and the steps in which they are rounded.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// A row of `inputs` weights per output.
    pub values: &'a [f32],
    /// A scale per output and `block` inputs.
    pub scales: &'a [f32],
    /// Weights per output.
    pub inputs: usize,
    /// Inputs that share a scale.
    pub block: usize,
}

/// Sums of products of any two input columns over all rows: `inputs` × `inputs` values.
pub fn moments(rows: &[f32], inputs: usize) -> Vec<f32> {
    let count = rows.len() / inputs;
    let columns: Vec<f32> =
        (0..inputs).flat_map(|column| rows.iter().skip(column).step_by(inputs).copied()).collect();
    multiply(&columns, count, rows.to_vec().into())
}

/// Rounds weights to integers from −127 to 127. `moments` come from quantized inputs.
pub fn round(weights: Weights<'_>, mut moments: Vec<f32>) -> Vec<i8> {
    let Weights { values, scales, inputs, block } = weights;
    let diagonal = || (0..inputs).map(|input| input * (inputs + 1));
    let damping = DAMPING * diagonal().map(|place| moments[place]).sum::<f32>() / inputs as f32;
    diagonal().for_each(|place| moments[place] += damping);
    let moments = Array::from(moments);
    let scales: Vec<f32> = scales.iter().flat_map(|scale| std::iter::repeat_n(*scale, block)).collect();
    let steps = || values.iter().zip(&scales);
    let mut integers: Vec<f32> = steps().map(|(weight, scale)| nearest(weight / scale)).collect();
    let errors: Vec<f32> =
        steps().zip(&integers).map(|((weight, scale), integer)| weight - integer * scale).collect();
    let mut gradients = multiply(&errors, inputs, moments.clone());
    // Inputs with the largest squares first: what their weights cannot make up for, later ones can.
    let mut order: Vec<usize> = (0..inputs).collect();
    order.sort_by(|a, b| moments[b * (inputs + 1)].total_cmp(&moments[a * (inputs + 1)]));
    let size = inputs * rows_per_thread(values.len() / inputs, inputs * inputs);
    let parts = integers.chunks_mut(size).zip(gradients.chunks_mut(size)).zip(scales.chunks(size));
    each(parts, |((integers, gradients), scales)| {
        let rows = integers.chunks_exact_mut(inputs).zip(gradients.chunks_exact_mut(inputs));
        for ((integers, gradients), scales) in rows.zip(scales.chunks_exact(inputs)) {
            let row = Row { integers, gradients, scales, moments: &moments, order: &order };
            InstructionSet::current().call(row);
        }
    });
    integers.into_iter().map(|integer| integer as i8).collect()
}

/// Multiplies a row-major matrix, `width` values per row, by a row-major matrix with `width` rows.
fn multiply(rows: &[f32], width: usize, weights: Array<f32>) -> Vec<f32> {
    let outputs = weights.len() / width.max(1);
    let layer = Dense { outputs, weights, bias: None };
    let count = rows.len() / width.max(1);
    let mut out = vec![0.0; count * outputs];
    let part = rows_per_thread(count, width * outputs);
    let parts = rows.chunks(part * width.max(1)).zip(out.chunks_mut(part * outputs.max(1)));
    each(parts, |(rows, out)| InstructionSet::current().call(Multiply { rows, width, layer: &layer, out }));
    out
}

struct Multiply<'a> {
    rows: &'a [f32],
    width: usize,
    layer: &'a Dense,
    out: &'a mut [f32],
}

impl KernelFn for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self { rows, width, layer, out } = self;
        dense(kernel, rows, width, layer, out);
    }
}

/// Rows for each thread, from the row count and the multiplications per row.
fn rows_per_thread(rows: usize, products: usize) -> usize {
    let worthwhile = THREAD_PRODUCTS.div_ceil(products.max(1));
    let even = rows.div_ceil(thread::available_parallelism().map_or(1, NonZeroUsize::get));
    even.max(worthwhile).next_multiple_of(MAX_ROWS)
}

/// Calls `work` with each part: on a thread per part if there are several.
fn each<T: Send>(parts: impl ExactSizeIterator<Item = T>, work: impl Fn(T) + Sync) {
    if parts.len() == 1 {
        return parts.for_each(work);
    }
    let work = &work;
    thread::scope(|scope| parts.for_each(|part| drop(scope.spawn(move || work(part)))));
}

/// One output's weights.
struct Row<'a> {
    integers: &'a mut [f32],
    /// Half of the squared output error's derivative for each weight, with the opposite sign.
    gradients: &'a mut [f32],
    scales: &'a [f32],
    moments: &'a [f32],
    order: &'a [usize],
}

impl KernelFn for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self { integers, gradients, scales, moments, order } = self;
        let inputs = integers.len();
        for _ in 0..PASSES {
            let mut is_changed = false;
            for &input in order {
                let moments = &moments[input * inputs..(input + 1) * inputs];
                let step = scales[input] * moments[input];
                let best = nearest(integers[input] + gradients[input] / step);
                // A column of zeros has no step.
                if step <= 0.0 || best == integers[input] {
                    continue;
                }
                let change = kernel.splat((integers[input] - best) * scales[input]);
                (integers[input], is_changed) = (best, true);
                let lanes = gradients.as_chunks_mut::<LANES>().0.iter_mut().zip(moments.as_chunks().0);
                for (gradients, moments) in lanes {
                    let moved = kernel.mul_add(change, kernel.load(moments), kernel.load(gradients));
                    kernel.store(moved, gradients);
                }
            }
            if !is_changed {
                break;
            }
        }
    }
}

fn nearest(value: f32) -> f32 {
    value.round_ties_even().clamp(-MAX_INTEGER, MAX_INTEGER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: usize = 48;
    const OUTPUTS: usize = 5;

    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
    }

    /// Squared output error over the rows.
    fn error(rows: &[f32], weights: &[f32], integers: &[f32], scales: &[f32], block: usize) -> f64 {
        let errors: Vec<f32> = (0..weights.len())
            .map(|place| weights[place] - integers[place] * scales[place / block])
            .collect();
        let squares = |row: &[f32], errors: &[f32]| {
            row.iter().zip(errors).map(|(value, error)| f64::from(value * error)).sum::<f64>().powi(2)
        };
        let outputs = |row| errors.chunks_exact(INPUTS).map(move |errors| squares(row, errors)).sum::<f64>();
        rows.chunks_exact(INPUTS).map(outputs).sum()
    }

    #[test]
    fn rounding_halves_the_output_error_on_correlated_inputs() {
        // Each row is a mixture of a few patterns.
        let rows = multiply(&numbers(1, 400 * 8), 8, numbers(2, 8 * INPUTS).into());
        let weights = numbers(3, OUTPUTS * INPUTS);
        for block in [INPUTS, INPUTS / 3] {
            let scales: Vec<f32> = weights
                .chunks_exact(block)
                .map(|weights| {
                    weights.iter().fold(0.0_f32, |most, weight| most.max(weight.abs())) / MAX_INTEGER
                })
                .collect();
            let nearest: Vec<f32> = weights
                .iter()
                .enumerate()
                .map(|(place, weight)| nearest(weight / scales[place / block]))
                .collect();
            let layer = Weights { values: &weights, scales: &scales, inputs: INPUTS, block };
            let rounded = round(layer, moments(&rows, INPUTS));
            let rounded: Vec<f32> = rounded.into_iter().map(f32::from).collect();
            let [before, after] =
                [&nearest, &rounded].map(|integers| error(&rows, &weights, integers, &scales, block));
            assert!(after < before / 2.0, "{block}: {after}, {before}");
            assert!(rounded.iter().all(|integer| integer.abs() <= MAX_INTEGER));
        }
    }

    #[test]
    fn weights_are_rounded_to_the_nearest_integer_without_inputs() {
        let weights = numbers(4, OUTPUTS * INPUTS);
        let layer = Weights { values: &weights, scales: &[0.01; OUTPUTS], inputs: INPUTS, block: INPUTS };
        let rounded = round(layer, vec![0.0; INPUTS * INPUTS]);
        let expected: Vec<i8> = weights.iter().map(|weight| nearest(weight / 0.01) as i8).collect();
        assert_eq!(rounded, expected);
    }

    #[test]
    fn moments_are_sums_of_products() {
        let rows = numbers(5, 7 * INPUTS);
        let moments = moments(&rows, INPUTS);
        for (left, right) in [(0, 0), (3, 40), (47, 2)] {
            let expected: f32 = rows.chunks_exact(INPUTS).map(|row| row[left] * row[right]).sum();
            assert!((moments[left * INPUTS + right] - expected).abs() < 1e-5);
        }
    }
}
