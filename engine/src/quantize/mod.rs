//! Symmetric 8-bit quantization with one scale per row.

pub mod columns;
pub mod fit;
pub mod rounding;

use self::rounding::MAX_INTEGER;
use crate::kernel::{COLUMNS, GROUP, LANES};

/// Tolerance for quotients of two rounded values to count as whole numbers.
const TOLERANCE: f32 = 1e-3;
/// Among previously quantized values, the smallest is assumed to be at most this many steps.
const MAX_STEPS: u8 = 8;

/// An int8 matrix: `value ≈ row scale × integer`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The integers, row-major, in −127…127.
    pub values: Vec<i8>,
    /// One scale per row.
    pub scales: Vec<f32>,
}

/// Quantizes each row, `width` values long, in a row-major matrix.
///
/// A previously quantized matrix, as a whole or by rows, keeps its integers: rounding it again would lose as much
/// again.
pub fn rows(values: &[f32], width: usize) -> Rows {
    let mut quantized = Rows {
        values: Vec::with_capacity(values.len()),
        scales: Vec::new(),
    };
    let common = step(values);
    for row in values.chunks_exact(width.max(1)) {
        let scale = common
            .or_else(|| step(row))
            .unwrap_or_else(|| match largest(row) {
                // Any scale represents an all-zero row.
                0.0 => 1.0,
                largest => largest / MAX_INTEGER,
            });
        quantized.scales.push(scale);
        quantized.values.extend(
            row.iter()
                .map(|value| (value / scale).round_ties_even() as i8),
        );
    }
    quantized
}

/// Whether a matrix consists of whole multiples of a step, as a whole or by rows.
pub fn was_quantized(values: &[f32], width: usize) -> bool {
    step(values).is_some()
        || values
            .chunks_exact(width.max(1))
            .all(|row| step(row).is_some())
}

/// Largest step for which all values are whole multiples that fit into 8 bits; `None` for most weights.
fn step(values: &[f32]) -> Option<f32> {
    let largest = largest(values);
    let magnitudes = values
        .iter()
        .map(|value| value.abs())
        .filter(|magnitude| *magnitude > 0.0);
    let smallest = magnitudes.fold(f32::INFINITY, f32::min);
    let is_whole = |value: &f32, step: f32| {
        let steps = value / step;
        (steps - steps.round_ties_even()).abs() <= TOLERANCE
    };
    (1..=MAX_STEPS)
        .map(|steps| smallest / f32::from(steps))
        .filter(|step| step.is_normal() && largest <= (MAX_INTEGER + TOLERANCE) * step)
        .find(|step| values.iter().all(|value| is_whole(value, *step)))
}

fn largest(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0.0, |largest, value| largest.max(value.abs()))
}

/// Transposes a row-major matrix with `width` values per row.
pub fn transpose<T: Copy>(values: &[T], width: usize) -> Vec<T> {
    let height = values.len() / width.max(1);
    (0..width)
        .flat_map(|column| (0..height).map(move |row| values[row * width + column]))
        .collect()
}

/// Rearranges a row-major matrix, with a row of `inputs` weights per output, into panels: 16 outputs each, in which
/// four inputs' weights are adjacent.
pub fn panels(rows: &[i8], inputs: usize) -> Vec<i8> {
    let mut panels = Vec::with_capacity(rows.len());
    for rows in rows.chunks_exact(inputs * LANES) {
        for first in (0..inputs).step_by(GROUP) {
            for row in rows.chunks_exact(inputs) {
                panels.extend_from_slice(&row[first..first + GROUP]);
            }
        }
    }
    panels
}

/// Rearranges a row-major matrix in fp32, with a row of `inputs` weights per output, into panels: 32 outputs each, with
/// a row per input.
pub fn panels_in_fp32(rows: &[f32], inputs: usize) -> Vec<f32> {
    let panels = rows.chunks_exact(inputs * COLUMNS);
    panels.flat_map(|rows| transpose(rows, inputs)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
    }

    #[test]
    fn values_are_rounded_to_half_a_step_of_their_row() {
        let matrix = [0.5, -1.0, 0.2718, 100.0, -3.1, 7.3, 0.0, 0.0, 0.0];
        let quantized = rows(&matrix, 3);
        for (place, value) in matrix.iter().enumerate() {
            let scale = quantized.scales[place / 3];
            let restored = f32::from(quantized.values[place]) * scale;
            assert!(
                (restored - value).abs() <= scale / 2.0 * 1.001,
                "{value} became {restored}"
            );
        }
        assert_eq!(
            quantized.values[1], -127,
            "the largest value of a row uses the whole range"
        );
    }

    #[test]
    fn quantized_values_keep_their_integers() {
        let step = 0.037_f32;
        let integers = [3_i8, -90, 0, 6, 0, 0, 127, -9, 5, 60, 2, -2];
        let matrix = integers.map(|integer| f32::from(integer) * step);
        let whole = rows(&matrix, 3);
        assert_eq!(
            (whole.values, whole.scales),
            (integers.to_vec(), vec![step; 4])
        );
        // Rows with different steps, as in joined matrices.
        let mixed: Vec<f32> = matrix
            .iter()
            .zip(0..)
            .map(|(value, place)| value * [1.0, 7.7][place / 6])
            .collect();
        let mixed = rows(&mixed, 6);
        assert_eq!(
            mixed.values,
            [1, -30, 0, 2, 0, 0, 127, -9, 5, 60, 2, -2],
            "the largest possible step"
        );
        assert!(
            (mixed.scales[0] - 3.0 * step).abs() < 1e-6
                && (mixed.scales[1] - 7.7 * step).abs() < 1e-6
        );
    }

    #[test]
    fn transposing_turns_rows_into_columns() {
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6], 3), [1, 4, 2, 5, 3, 6]);
    }
}
