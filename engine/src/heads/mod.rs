//! Heads that score labels in a request: GLiNER, GLiNER2 and GLiClass.

mod counted_labels;
pub mod spans;
mod text_scores;
mod word_scores;

/// Layers of numbers, and their results in plain loops.
#[cfg(test)]
mod plain {
    use crate::program::Dense;

    /// Numbers from -0.5 to 0.5.
    pub fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|at| ((at + seed) * 7919 % 1000) as f32 / 1000.0 - 0.5)
            .collect()
    }

    pub fn layer(inputs: usize, outputs: usize, seed: usize) -> Dense {
        Dense {
            outputs,
            panel: outputs,
            weights: numbers(inputs * outputs, seed).into(),
            bias: Some(numbers(outputs, seed + 1).into()),
        }
    }

    pub fn without_bias(layer: Dense) -> Dense {
        Dense {
            bias: None,
            ..layer
        }
    }

    pub fn applied(layer: &Dense, row: &[f64]) -> Vec<f64> {
        let output = |column: usize| {
            let weights = layer.weights.in_32_bits()[column..]
                .iter()
                .step_by(layer.outputs);
            let bias = layer.bias.as_ref().map_or(0.0, |bias| bias[column]);
            dot(row, weights.map(|weight| f64::from(*weight))) + f64::from(bias)
        };
        (0..layer.outputs).map(output).collect()
    }

    pub fn dot(left: &[f64], right: impl IntoIterator<Item = f64>) -> f64 {
        left.iter()
            .zip(right)
            .map(|(left, right)| left * right)
            .sum()
    }

    pub fn products(left: &[f64], right: &[f64]) -> Vec<f64> {
        left.iter()
            .zip(right)
            .map(|(left, right)| left * right)
            .collect()
    }

    pub fn sum(left: &[f64], right: &[f64]) -> Vec<f64> {
        left.iter()
            .zip(right)
            .map(|(left, right)| left + right)
            .collect()
    }

    pub fn positives(row: Vec<f64>) -> Vec<f64> {
        row.into_iter().map(|value| value.max(0.0)).collect()
    }

    pub fn exact(row: &[f32]) -> Vec<f64> {
        row.iter().copied().map(f64::from).collect()
    }

    /// All instruction sets have the same result, which is close to the expected one.
    pub fn assert_close<T: AsRef<[f32]>>(found: &[T], expected: &[f64]) {
        for one in found {
            let one = one.as_ref();
            assert_eq!(one, found[0].as_ref());
            assert_eq!(one.len(), expected.len());
            for (found, expected) in one.iter().zip(expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-4,
                    "{found} {expected}"
                );
            }
        }
    }
}
