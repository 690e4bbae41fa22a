//! Rounds a layer's weights to integers whose errors cancel.
//!
//! Rounding each weight to the nearest integer minimizes the weights' error, but not the outputs': inputs are correlated,
//! so one weight's error can make up for another's. [`round`] minimizes the variance of the outputs' errors over sample
//! inputs by coordinate descent, one weight at a time; their mean becomes part of the bias. Results have the same bits on all processors, with any number of threads.

use std::{num::NonZeroUsize, thread};

use crate::{
    array::Array,
    kernel::{GROUP, InstructionSet, Kernel, KernelFn, LANES, MAX_QUAD_SUM, MAX_ROWS},
    linear::dense,
    program::Dense,
};

/// Passes over all weights; later ones change hardly any.
const PASSES: usize = 4;
/// Share of the mean variance that is added to each input's own, since the inputs are a sample.
const DAMPING: f32 = 0.5;
/// Maximum magnitude of an integer.
pub const MAX_INTEGER: f32 = 127.0;
/// Multiplications that are worth a thread.
const THREAD_PRODUCTS: usize = 1 << 24;

/// A layer's weights.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// A row of `inputs` weights per output.
    pub values: &'a [f32],
    /// Weights per output.
    pub inputs: usize,
    /// Inputs that share a scale, a multiple of 8.
    pub block: usize,
    /// The values that weights are rounded to.
    pub permitted: Permitted,
}

/// Which integers are permitted, between −127 and 127.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permitted {
    /// Any.
    Any,
    /// Values in [small quads](crate::kernel#small-quads). Scales are larger.
    SmallQuads,
}

impl Permitted {
    /// Maximum magnitude for a quad's positive and negative sum.
    fn max_sum(self) -> f32 {
        match self {
            Self::Any => f32::INFINITY,
            Self::SmallQuads => f32::from(MAX_QUAD_SUM),
        }
    }
}

/// Integers and their scales.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// In the weights' order.
    pub integers: Vec<i8>,
    /// Per output and block.
    pub scales: Vec<f32>,
    /// The mean error per output, to be added to its bias.
    pub offsets: Vec<f32>,
}

/// Means and covariances of sample inputs.
#[derive(Clone, Debug)]
pub struct Moments {
    means: Vec<f32>,
    /// Summed over the rows: `inputs` × `inputs` values.
    covariances: Vec<f32>,
}

impl Moments {
    /// The moments of rows with `inputs` quantized values each.
    pub fn new(mut rows: Vec<f32>, inputs: usize) -> Self {
        let count = rows.len() / inputs;
        let mut sums = vec![0.0_f64; inputs];
        for row in rows.chunks_exact(inputs) {
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let means: Vec<f32> = sums
            .into_iter()
            .map(|sum| (sum / count.max(1) as f64) as f32)
            .collect();
        for row in rows.chunks_exact_mut(inputs) {
            row.iter_mut()
                .zip(&means)
                .for_each(|(value, mean)| *value -= mean);
        }
        let columns: Vec<f32> = (0..inputs)
            .flat_map(|column| rows.iter().skip(column).step_by(inputs).copied())
            .collect();
        Self {
            means,
            covariances: multiply(&columns, count, rows.into()),
        }
    }
}

/// Rounds weights for inputs with these moments.
pub fn round(weights: Weights<'_>, moments: Moments) -> Rounded {
    let Weights {
        values,
        inputs,
        permitted,
        ..
    } = weights;
    let Moments {
        means,
        mut covariances,
    } = moments;
    let diagonal = || (0..inputs).map(|input| input * (inputs + 1));
    let damping = DAMPING * diagonal().map(|place| covariances[place]).sum::<f32>() / inputs as f32;
    diagonal().for_each(|place| covariances[place] += damping);
    let variances: Vec<f32> = diagonal().map(|place| covariances[place]).collect();
    let covariances = Array::from(covariances);
    let Nearest {
        mut integers,
        scales,
        steps,
    } = Nearest::new(weights);
    let errors = |integers: &[f32]| -> Vec<f32> {
        let stored = integers
            .iter()
            .zip(&steps)
            .map(|(integer, step)| integer * step);
        values
            .iter()
            .zip(stored)
            .map(|(weight, stored)| weight - stored)
            .collect()
    };
    let mut gradients = multiply(&errors(&integers), inputs, covariances.clone());
    // Inputs with the largest variances first: what their weights cannot make up for, later ones can.
    let mut order: Vec<usize> = (0..inputs).collect();
    order.sort_by(|a, b| variances[*b].total_cmp(&variances[*a]));
    let size = inputs * rows_per_thread(values.len() / inputs, inputs * inputs);
    let parts = integers
        .chunks_mut(size)
        .zip(gradients.chunks_mut(size))
        .zip(steps.chunks(size));
    each(parts, |((integers, gradients), steps)| {
        let rows = integers
            .chunks_exact_mut(inputs)
            .zip(gradients.chunks_exact_mut(inputs));
        for ((integers, gradients), steps) in rows.zip(steps.chunks_exact(inputs)) {
            let max_sum = permitted.max_sum();
            let row = Row {
                max_sum,
                integers,
                gradients,
                steps,
                covariances: &covariances,
                order: &order,
            };
            InstructionSet::current().call_in_fp32(row);
        }
    });
    let mean_error = |errors: &[f32]| {
        errors
            .iter()
            .zip(&means)
            .map(|(error, mean)| f64::from(error * mean))
            .sum::<f64>() as f32
    };
    let offsets = errors(&integers)
        .chunks_exact(inputs)
        .map(mean_error)
        .collect();
    Rounded {
        integers: integers.into_iter().map(|integer| integer as i8).collect(),
        scales,
        offsets,
    }
}

/// The permitted integers that are nearest to the weights, or nearly so where a quad's sum would be too large.
pub struct Nearest {
    /// In the weights' order.
    pub integers: Vec<f32>,
    /// Per output and block.
    pub scales: Vec<f32>,
    /// Each weight's scale.
    steps: Vec<f32>,
}

impl Nearest {
    /// Rounds each block's weights in steps of its [`scale`].
    pub fn new(weights: Weights<'_>) -> Self {
        let Weights {
            values,
            block,
            permitted,
            ..
        } = weights;
        // Any scale represents zeros.
        let positive = |scale| if scale > 0.0 { scale } else { 1.0 };
        let scales: Vec<f32> = values
            .chunks_exact(block)
            .map(|block| positive(scale(block, permitted).value))
            .collect();
        let steps: Vec<f32> = scales
            .iter()
            .flat_map(|scale| std::iter::repeat_n(*scale, block))
            .collect();
        let mut integers: Vec<f32> = values
            .iter()
            .zip(&steps)
            .map(|(weight, step)| nearest(weight / step))
            .collect();
        limit_sums(&mut integers, values, &steps, permitted.max_sum());
        Self {
            integers,
            scales,
            steps,
        }
    }
}

/// A block's scale for an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// 0 if all weights are.
    pub value: f32,
    /// The inputs from whose weights it follows, which have one sign.
    pub inputs: Vec<usize>,
}

/// The smallest scale of a block's weights with which neither an integer nor a quad's sum is too large. A smaller one would
/// lose more by the few weights that it limits than it gains for all others.
pub fn scale(weights: &[f32], permitted: Permitted) -> Scale {
    let mut largest = 0;
    for (input, weight) in weights.iter().enumerate() {
        if weight.abs() > weights[largest].abs() {
            largest = input;
        }
    }
    let mut value = weights[largest].abs() / MAX_INTEGER;
    let mut deciding = None;
    for quad in quads(weights.len()) {
        let of_quad = sums(quad.map(|input| weights[input]));
        for (sum, sign) in of_quad.into_iter().zip([1.0, -1.0]) {
            if sum / permitted.max_sum() > value {
                (value, deciding) = (sum / permitted.max_sum(), Some((quad, sign)));
            }
        }
    }
    let inputs = match deciding {
        Some((quad, sign)) => quad
            .into_iter()
            .filter(|input| weights[*input] * sign > 0.0)
            .collect(),
        None if value > 0.0 => vec![largest],
        None => Vec::new(),
    };
    Scale { value, inputs }
}

/// The bits in an input's number in which a quad's inputs differ: its place in a pair, and the block.
const WITHIN_QUAD: usize = 1 | GROUP;

/// The inputs in an input's [quad](crate::kernel#small-quads).
fn quad(input: usize) -> [usize; 4] {
    let first = input & !WITHIN_QUAD;
    [first, first | 1, first | GROUP, first | WITHIN_QUAD]
}

/// All quads.
fn quads(inputs: usize) -> impl Iterator<Item = [usize; 4]> {
    (0..inputs)
        .filter(|input| input & WITHIN_QUAD == 0)
        .map(quad)
}

/// A quad's positive and negative sum, in magnitude.
fn sums(quad: [f32; 4]) -> [f32; 2] {
    quad.iter().fold([0.0; 2], |[positive, negative], value| {
        [positive + value.max(0.0), negative - value.min(0.0)]
    })
}

/// Multiplies a row-major matrix, `width` values per row, by a row-major matrix with `width` rows.
fn multiply(rows: &[f32], width: usize, weights: Array<f32>) -> Vec<f32> {
    let outputs = weights.len() / width.max(1);
    let layer = Dense {
        outputs,
        panel: outputs,
        weights: weights.into(),
        bias: None,
    };
    let count = rows.len() / width.max(1);
    let mut out = vec![0.0; count * outputs];
    let part = rows_per_thread(count, width * outputs);
    let parts = rows
        .chunks(part * width.max(1))
        .zip(out.chunks_mut(part * outputs.max(1)));
    each(parts, |(rows, out)| {
        InstructionSet::current().call_in_fp32(Multiply {
            rows,
            layer: &layer,
            out,
        })
    });
    out
}

struct Multiply<'a> {
    rows: &'a [f32],
    layer: &'a Dense,
    out: &'a mut [f32],
}

impl KernelFn for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        dense(kernel, self.rows, self.layer, self.out);
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
    /// Per quad and sign.
    max_sum: f32,
    integers: &'a mut [f32],
    /// Half of the squared output error's derivative for each weight, with the opposite sign.
    gradients: &'a mut [f32],
    steps: &'a [f32],
    covariances: &'a [f32],
    order: &'a [usize],
}

impl KernelFn for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self {
            max_sum,
            integers,
            gradients,
            steps,
            covariances,
            order,
        } = self;
        let inputs = integers.len();
        for _ in 0..PASSES {
            let mut is_changed = false;
            for &input in order {
                let covariances = &covariances[input * inputs..(input + 1) * inputs];
                let step = steps[input] * covariances[input];
                let others =
                    quad(input).map(|other| if other == input { 0.0 } else { integers[other] });
                let [most, least] = sums(others).map(|sum| max_sum - sum);
                let best = nearest(integers[input] + gradients[input] / step).clamp(-least, most);
                // A constant column has no step.
                if step <= 0.0 || best == integers[input] {
                    continue;
                }
                let change = kernel.splat((integers[input] - best) * steps[input]);
                (integers[input], is_changed) = (best, true);
                let lanes = gradients
                    .as_chunks_mut::<LANES>()
                    .0
                    .iter_mut()
                    .zip(covariances.as_chunks().0);
                for (gradients, covariances) in lanes {
                    let moved =
                        kernel.mul_add(change, kernel.load(covariances), kernel.load(gradients));
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

/// Makes integers smaller in magnitude in quads whose sum is too large: one at a time, that which exceeds its weight most.
fn limit_sums(integers: &mut [f32], weights: &[f32], steps: &[f32], max_sum: f32) {
    for (quad, sign) in quads(integers.len()).flat_map(|quad| [(quad, 1.0), (quad, -1.0)]) {
        while quad
            .iter()
            .map(|input| (sign * integers[*input]).max(0.0))
            .sum::<f32>()
            > max_sum
        {
            let excess = |input: usize| sign * (integers[input] - weights[input] / steps[input]);
            let of_sign = quad
                .into_iter()
                .filter(|input| sign * integers[*input] > 0.0);
            let Some(input) = of_sign.max_by(|a, b| excess(*a).total_cmp(&excess(*b))) else {
                break;
            };
            integers[input] -= sign;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::tests::numbers;

    const INPUTS: usize = 48;
    const OUTPUTS: usize = 5;

    /// Squared output error over the rows.
    fn error(rows: &[f32], weights: &[f32], rounded: &Rounded, block: usize) -> f64 {
        let Rounded {
            integers,
            scales,
            offsets,
        } = rounded;
        let errors: Vec<f32> = (0..weights.len())
            .map(|place| weights[place] - f32::from(integers[place]) * scales[place / block])
            .collect();
        let square = |row: &[f32], (errors, offset): (&[f32], &f32)| {
            let error = row
                .iter()
                .zip(errors)
                .map(|(value, error)| f64::from(value * error))
                .sum::<f64>();
            (error - f64::from(*offset)).powi(2)
        };
        let outputs = |row| {
            errors
                .chunks_exact(INPUTS)
                .zip(offsets)
                .map(move |it| square(row, it))
                .sum::<f64>()
        };
        rows.chunks_exact(INPUTS).map(outputs).sum()
    }

    #[test]
    fn rounding_halves_the_output_error_on_correlated_inputs() {
        // Each row is a mixture of a few patterns, far from zero.
        let mut rows = multiply(&numbers(1, 400 * 8), 8, numbers(2, 8 * INPUTS).into());
        rows.iter_mut().for_each(|value| *value += 2.0);
        let weights = numbers(3, OUTPUTS * INPUTS);
        for block in [INPUTS, INPUTS / 3] {
            let round = |permitted| {
                let layer = Weights {
                    values: &weights,
                    inputs: INPUTS,
                    block,
                    permitted,
                };
                round(layer, Moments::new(rows.clone(), INPUTS))
            };
            let rounded = round(Permitted::SmallQuads);
            let nearest = |(place, weight): (usize, &f32)| {
                nearest(weight / rounded.scales[place / block]) as i8
            };
            let nearest = weights.iter().enumerate().map(nearest).collect();
            let plain = Rounded {
                integers: nearest,
                offsets: vec![0.0; OUTPUTS],
                ..rounded.clone()
            };
            let without_offsets = Rounded {
                offsets: vec![0.0; OUTPUTS],
                ..rounded.clone()
            };
            let [plain, without_offsets, after] =
                [&plain, &without_offsets, &rounded].map(|it| error(&rows, &weights, it, block));
            assert!(
                after < plain / 4.0 && after < without_offsets,
                "{block}: {after}, {plain}, {without_offsets}"
            );
            assert!(
                rounded
                    .integers
                    .iter()
                    .all(|integer| f32::from(*integer).abs() <= MAX_INTEGER)
            );
            let sums = quads(rounded.integers.len())
                .flat_map(|quad| sums(quad.map(|place| f32::from(rounded.integers[place]))));
            assert!(sums.fold(0.0, f32::max) <= Permitted::SmallQuads.max_sum());
            // Scales are smaller without this limit.
            let any = error(&rows, &weights, &round(Permitted::Any), block);
            assert!(any < 0.8 * after, "{block}: {any}, {after}");
        }
    }

    #[test]
    fn weights_are_rounded_to_the_nearest_integer_without_inputs() {
        let weights = numbers(4, OUTPUTS * INPUTS);
        let permitted = Permitted::SmallQuads;
        let layer = Weights {
            values: &weights,
            inputs: INPUTS,
            block: INPUTS,
            permitted,
        };
        let Rounded {
            integers,
            scales,
            offsets,
        } = round(layer, Moments::new(vec![0.0; 9 * INPUTS], INPUTS));
        assert_eq!(offsets, [0.0; OUTPUTS]);
        for (place, (weight, integer)) in weights.iter().zip(integers).enumerate() {
            let nearest = nearest(weight / scales[place / INPUTS]);
            // Except some of the largest quad, if they are rounded up.
            let is_in_large_quad =
                sums(quad(place).map(|place| weights[place] / scales[place / INPUTS]))
                    .iter()
                    .any(|sum| *sum > permitted.max_sum() - 2.0);
            let distance = if is_in_large_quad { 1.0 } else { 0.0 };
            assert!(
                (f32::from(integer) - nearest).abs() <= distance,
                "{integer}, {nearest}"
            );
        }
    }

    #[test]
    fn scales_are_those_of_the_largest_weight_or_quad() {
        for (weights, expected) in [
            ([0.0; 8], 0.0),
            ([1.0, -1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0], 2.0 / 128.0),
            ([1.0, -0.5, 0.0, 0.0, 0.0, -0.25, 0.0, 0.0], 1.0 / 127.0),
            ([0.0, 0.0, 0.5, 0.25, 0.0, 0.0, 0.125, 0.75], 1.625 / 128.0),
            // Neighbours that are not in one quad.
            ([0.0, 1.0, 1.0, 0.0, -1.0, 0.0, 0.0, -1.0], 1.0 / 127.0),
        ] {
            assert_eq!(
                scale(&weights, Permitted::SmallQuads).value,
                expected,
                "{weights:?}"
            );
            let largest = weights
                .iter()
                .fold(0.0_f32, |most, weight| most.max(weight.abs()));
            assert_eq!(
                scale(&weights, Permitted::Any).value,
                largest / 127.0,
                "{weights:?}"
            );
        }
    }

    #[test]
    fn quads_are_rounded_to_integers_whose_sum_is_not_too_large() {
        for (weights, expected) in [
            ([127.4, -127.4, 0.4, -0.4], [127.0, -127.0, 0.0, -0.0]),
            ([32.4, 31.6, 32.0, 32.0], [32.0, 32.0, 32.0, 32.0]),
            ([126.6, 1.6, -3.0, -60.0], [126.0, 2.0, -3.0, -60.0]),
            ([-28.6, -40.7, -58.7, -0.3], [-28.0, -41.0, -59.0, -0.0]),
            ([60.5, 64.9, 1.5, 1.8], [60.0, 65.0, 1.0, 2.0]),
        ] {
            // The other quad of the same inputs stays as it is.
            let place = |[a, b, c, d]: [f32; 4]| [a, b, 127.0, 1.0, c, d, -100.0, -28.0];
            let (weights, expected) = (place(weights), place(expected));
            let mut integers = weights.map(nearest);
            limit_sums(&mut integers, &weights, &[1.0; 8], 128.0);
            assert_eq!(integers, expected, "{weights:?}");
        }
    }

    #[test]
    fn covariances_are_sums_of_products_of_deviations() {
        let rows = numbers(5, 7 * INPUTS);
        let Moments { means, covariances } = Moments::new(rows.clone(), INPUTS);
        let column = |at: usize| rows.iter().skip(at).step_by(INPUTS);
        for (left, right) in [(0, 0), (3, 40), (47, 2)] {
            let [first, second] = [left, right].map(|at| column(at).sum::<f32>() / 7.0);
            assert!((means[left] - first).abs() < 1e-6);
            let products = column(left)
                .zip(column(right))
                .map(|(a, b)| (a - first) * (b - second));
            assert!((covariances[left * INPUTS + right] - products.sum::<f32>()).abs() < 1e-5);
        }
    }
}
