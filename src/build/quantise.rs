//! Symmetric 8-bit quantisation, one scale a row.

/// The largest magnitude of a symmetric 8-bit integer.
const LARGEST: f32 = 127.0;

/// A matrix in int8: `value ≈ scale of its row × integer`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The integers, row-major, in −127…127.
    pub values: Vec<i8>,
    /// One scale a row.
    pub scales: Vec<f32>,
}

/// Quantises each row of a row-major matrix of rows of `width` values on its own.
pub fn rows(values: &[f32], width: usize) -> Rows {
    let mut quantised = Rows { values: Vec::with_capacity(values.len()), scales: Vec::new() };
    for row in values.chunks_exact(width.max(1)) {
        let largest = row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        // A row of zeros needs some scale, and any will do.
        let scale = if largest > 0.0 { largest / LARGEST } else { 1.0 };
        quantised.scales.push(scale);
        quantised.values.extend(row.iter().map(|value| (value / scale).round_ties_even() as i8));
    }
    quantised
}

/// The transpose of a row-major matrix of rows of `width` values.
pub fn transpose<T: Copy>(values: &[T], width: usize) -> Vec<T> {
    let height = values.len() / width.max(1);
    (0..width).flat_map(|column| (0..height).map(move |row| values[row * width + column])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_to_half_a_step_of_its_own_row() {
        let matrix = [0.5, -1.0, 0.25, 100.0, -3.0, 7.0, 0.0, 0.0, 0.0];
        let quantised = rows(&matrix, 3);
        for (place, value) in matrix.iter().enumerate() {
            let scale = quantised.scales[place / 3];
            let back = f32::from(quantised.values[place]) * scale;
            assert!((back - value).abs() <= scale / 2.0 * 1.001, "{value} came back as {back}");
        }
        assert_eq!(quantised.values[1], -127, "the largest of its row takes the whole range");
    }

    #[test]
    fn transposing_turns_rows_into_columns() {
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6], 3), [1, 4, 2, 5, 3, 6]);
    }
}
