//! Shifts and factors of a layer's input columns before they are quantized.

use super::rounding::{self, Scale, Weights};

/// Tokens for the choice of factors.
const SAMPLE: usize = 512;
/// Share of a column's range, rather than its weights', in its factor.
const EXPONENTS: [f32; 6] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7];
/// Smallest range of a column or its weights, as a share of the mean over all columns.
const MIN_RANGE: f32 = 0.05;
/// Squared error of rounded weights, as a share of the error with the nearest integers; as measured.
const ROUNDED: f64 = 0.35;
/// Steps of the descent; later ones change hardly anything.
const STEPS: usize = 24;
/// Change of a factor's logarithm in the first step, as a quadratic mean.
const RATE: f64 = 0.2;
/// Factor for the rate after a step that made the error larger.
const SLOWER: f64 = 0.7;
/// Maximum change of a factor's logarithm, in rates.
const MAX_CHANGE: f64 = 3.0;

/// The map of each input column: `(value − shift) × factor`.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Subtracted from each column.
    pub shifts: Vec<f32>,
    /// Multiplied with each column.
    pub factors: Vec<f32>,
}

impl Columns {
    /// The shifts and factors with a small expected error, unless it is smaller without: the best of twelve candidates,
    /// whose factors are then improved by subgradient descent.
    pub fn choose(weights: Weights<'_>, rows: &[f32]) -> Option<Self> {
        let inputs = weights.inputs;
        let count = rows.len() / inputs;
        let stride = count.div_ceil(SAMPLE).max(1);
        let sample: Vec<f32> = rows
            .chunks_exact(inputs)
            .step_by(stride)
            .flatten()
            .copied()
            .collect();
        let of_weights = column_maximum(weights.values, &vec![0.0; inputs]);
        let identity = Self {
            shifts: vec![0.0; inputs],
            factors: vec![1.0; inputs],
        };
        let mut best = Expected::new(weights, &sample, &identity).error;
        let mut chosen = None;
        for shifts in [vec![0.0; inputs], means(rows, inputs)] {
            let ranges = column_maximum(rows, &shifts);
            for exponent in EXPONENTS {
                let columns = Self {
                    shifts: shifts.clone(),
                    factors: factors(&ranges, &of_weights, exponent),
                };
                let error = Expected::new(weights, &sample, &columns).error;
                if error < best {
                    (best, chosen) = (error, Some(columns));
                }
            }
        }
        chosen.map(|columns| columns.improve(weights, &sample))
    }

    /// Gradient descent on the factors' logarithms, with a lower rate after a step that makes the error larger.
    fn improve(self, weights: Weights<'_>, rows: &[f32]) -> Self {
        let (mut best, mut rate) = (self, RATE);
        let mut expected = Expected::new(weights, rows, &best);
        for _ in 0..STEPS {
            let squares = expected.slopes.iter().map(|slope| slope * slope);
            let norm = (squares.sum::<f64>() / best.factors.len() as f64).sqrt();
            if norm <= 0.0 {
                break;
            }
            let mut next = best.clone();
            for (factor, slope) in next.factors.iter_mut().zip(&expected.slopes) {
                let change = (slope / norm).clamp(-MAX_CHANGE, MAX_CHANGE);
                *factor *= libm::exp(-rate * change) as f32;
            }
            let found = Expected::new(weights, rows, &next);
            if found.error < expected.error {
                (best, expected) = (next, found);
            } else {
                rate *= SLOWER;
            }
        }
        best
    }

    /// Applies shifts and factors to rows.
    pub fn apply(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.shifts.len()) {
            for ((value, shift), factor) in row.iter_mut().zip(&self.shifts).zip(&self.factors) {
                *value = (*value - shift) * factor;
            }
        }
    }
}

/// A block's minimum, at most 0, and its quantization step.
pub fn step(block: &[f32]) -> [f32; 2] {
    let (least, most) = block.iter().fold((0.0_f32, 0.0_f32), |(a, b), value| {
        (a.min(*value), b.max(*value))
    });
    [least, (most - least) / 255.0]
}

/// Per column.
fn means(rows: &[f32], inputs: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f64; inputs];
    for row in rows.chunks_exact(inputs) {
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let count = (rows.len() / inputs).max(1) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// Largest distance to `centers` in each column.
fn column_maximum(rows: &[f32], centers: &[f32]) -> Vec<f32> {
    let mut most = vec![0.0_f32; centers.len()];
    for row in rows.chunks_exact(centers.len()) {
        for ((most, value), center) in most.iter_mut().zip(row).zip(centers) {
            *most = most.max((value - center).abs());
        }
    }
    most
}

/// Factors that divide the quantization error between values and weights; their geometric mean is 1. The functions in the
/// crate `libm` give the same bits on every processor.
fn factors(ranges: &[f32], weights: &[f32], exponent: f32) -> Vec<f32> {
    // A constant column has no range.
    let logarithms = |values: &[f32]| -> Vec<f64> {
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
        let floor = (f64::from(MIN_RANGE) * mean).max(f64::from(f32::MIN_POSITIVE));
        values
            .iter()
            .map(|value| libm::log(f64::from(*value).max(floor)))
            .collect()
    };
    let exponent = f64::from(exponent);
    let logarithms: Vec<f64> = logarithms(weights)
        .into_iter()
        .zip(logarithms(ranges))
        .map(|(weight, range)| (1.0 - exponent) * weight - exponent * range)
        .collect();
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    logarithms
        .into_iter()
        .map(|logarithm| libm::exp(logarithm - mean) as f32)
        .collect()
}

/// Expected squared output error per token, up to a factor: of values that are rounded in steps of their block's range,
/// and of rounded weights.
struct Expected {
    error: f64,
    /// Derivatives with respect to the logarithms of the factors.
    slopes: Vec<f64>,
}

/// A block's squared steps and values, summed over the rows, and its squared scales and weights, summed over the outputs.
#[derive(Clone, Copy, Default)]
struct Squares {
    steps: f64,
    values: f64,
    scales: f64,
    weights: f64,
}

impl Expected {
    fn new(weights: Weights<'_>, rows: &[f32], columns: &Columns) -> Self {
        let Weights {
            inputs,
            block,
            permitted,
            ..
        } = weights;
        let mut rows = rows.to_vec();
        columns.apply(&mut rows);
        let mut blocks = vec![Squares::default(); inputs / block];
        // Per column, half of the derivatives of its block's sums.
        let mut slopes = vec![Squares::default(); inputs];
        for row in rows.chunks_exact(inputs) {
            let parts = row.chunks_exact(block).zip(slopes.chunks_exact_mut(block));
            for ((values, slopes), squares) in parts.zip(&mut blocks) {
                let step = f64::from(step(values)[1]);
                squares.steps += step * step;
                let (mut least, mut most) = (0, 0);
                for (column, (value, slopes)) in values.iter().zip(&mut *slopes).enumerate() {
                    if *value < values[least] {
                        least = column;
                    }
                    if *value > values[most] {
                        most = column;
                    }
                    let square = f64::from(value * value);
                    squares.values += square;
                    slopes.values += square;
                }
                // The step spans zero, and follows from the two extremes.
                slopes[least].steps -= step * f64::from(values[least].min(0.0)) / 255.0;
                slopes[most].steps += step * f64::from(values[most].max(0.0)) / 255.0;
            }
        }
        let mut scaled = vec![0.0; block];
        for row in weights.values.chunks_exact(inputs) {
            let parts = row
                .chunks_exact(block)
                .zip(columns.factors.chunks_exact(block));
            let sums = blocks.iter_mut().zip(slopes.chunks_exact_mut(block));
            for ((weights, factors), (squares, slopes)) in parts.zip(sums) {
                for ((weight, factor), scaled) in weights.iter().zip(factors).zip(&mut scaled) {
                    *scaled = weight / factor;
                }
                for (weight, slopes) in scaled.iter().zip(&mut *slopes) {
                    let square = f64::from(weight * weight);
                    squares.weights += square;
                    slopes.weights += square;
                }
                let Scale { value, inputs } = rounding::scale(&scaled, permitted);
                let (value, sum) = (
                    f64::from(value),
                    inputs
                        .iter()
                        .map(|input| f64::from(scaled[*input].abs()))
                        .sum::<f64>(),
                );
                squares.scales += value * value;
                for input in inputs {
                    slopes[input].scales += value * value * f64::from(scaled[input].abs()) / sum;
                }
            }
        }
        let slope = |(column, slope): (usize, &Squares)| {
            let of = &blocks[column / block];
            // A factor makes values larger and weights smaller.
            let of_values = slope.steps * of.weights - of.steps * slope.weights;
            let of_weights = slope.values * of.scales - of.values * slope.scales;
            2.0 * (of_values + ROUNDED * of_weights)
        };
        Self {
            error: blocks
                .iter()
                .map(|it| it.steps * it.weights + ROUNDED * it.scales * it.values)
                .sum(),
            slopes: slopes.iter().enumerate().map(slope).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::{rounding::Permitted, tests::numbers};

    const INPUTS: usize = 32;

    /// Weights and rows with a column that is far from zero.
    fn layer() -> [Vec<f32>; 2] {
        let mut rows = numbers(2, 64 * INPUTS);
        rows.iter_mut()
            .step_by(INPUTS)
            .for_each(|value| *value = 8.0 * *value + 9.0);
        [numbers(1, 16 * INPUTS), rows]
    }

    fn weights(values: &[f32], permitted: Permitted) -> Weights<'_> {
        Weights {
            values,
            inputs: INPUTS,
            block: INPUTS / 2,
            permitted,
        }
    }

    #[test]
    fn slopes_are_the_errors_derivatives() {
        let [values, rows] = layer();
        for permitted in [Permitted::Any, Permitted::SmallQuads] {
            let weights = weights(&values, permitted);
            let columns = Columns {
                shifts: vec![0.1; INPUTS],
                factors: numbers(3, INPUTS).iter().map(|value| value + 2.0).collect(),
            };
            let expected = Expected::new(weights, &rows, &columns);
            for column in 0..INPUTS {
                let error = |change: f32| {
                    let mut columns = columns.clone();
                    columns.factors[column] *= 1.0 + change;
                    Expected::new(weights, &rows, &columns).error
                };
                let slope = (error(1e-4) - error(-1e-4)) / 2e-4;
                let difference = (slope - expected.slopes[column]).abs();
                assert!(
                    difference < 0.01 * expected.error,
                    "{column}: {slope}, {}",
                    expected.slopes[column]
                );
            }
        }
    }

    #[test]
    fn the_descent_makes_the_error_smaller() {
        let [values, rows] = layer();
        let weights = weights(&values, Permitted::SmallQuads);
        let start = Columns {
            shifts: vec![0.0; INPUTS],
            factors: vec![1.0; INPUTS],
        };
        let before = Expected::new(weights, &rows, &start).error;
        let after = Expected::new(weights, &rows, &start.improve(weights, &rows)).error;
        assert!(after < 0.5 * before, "{before}, {after}");
    }
}
