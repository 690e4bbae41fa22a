//! Attention within one text, for one head at a time. The matrix of scores is never held: queries pass in groups of
//! eight.

use crate::{
    kernel::{Kernel, LANES, Lanes, Rows},
    math::{exp, largest, sum},
};

/// Queries that are computed together.
const QUERIES: usize = 8;
/// Columns of a product.
const COLUMNS: usize = 2 * LANES;

/// One head of one text. The buffers are used again for other heads.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// The width of a query, key or value.
    pub(crate) size: usize,
    /// Rows of queries.
    pub(crate) queries: Vec<f32>,
    /// Rows of keys.
    pub(crate) keys: Vec<f32>,
    /// Rows of values, of [`Head::value_stride`] numbers.
    pub(crate) values: Vec<f32>,
    /// Keys as columns, in panels of 32 keys.
    panels: Vec<f32>,
    scores: Vec<f32>,
}

impl Head {
    /// The length of a row of values: the size of the head, padded to whole columns of a product.
    pub(crate) fn value_stride(size: usize) -> usize {
        size.next_multiple_of(COLUMNS)
    }

    /// Writes the context of each query, of `size` numbers, to `out`: values, weighted by softmax(scale × query · key).
    #[inline(always)]
    pub(crate) fn attend<K: Kernel>(&mut self, kernel: K, scale: f32, out: &mut [f32]) {
        self.transpose_keys(scale);
        let size = self.size;
        for (queries, out) in self.queries.chunks(QUERIES * size).zip(out.chunks_mut(QUERIES * size)) {
            let (keys, padded) = (self.keys.len() / size, self.panels.len() / size);
            let rows = queries.len() / size;
            self.scores.resize(QUERIES * padded, 0.0);
            let scores = &mut self.scores[..rows * padded];
            score(kernel, (size, keys), queries, &self.panels, scores);
            let mut inverse = [0.0; QUERIES];
            for (inverse, scores) in inverse.iter_mut().zip(scores.chunks_exact_mut(padded)) {
                *inverse = softmax(kernel, scores.as_chunks_mut().0);
            }
            let stride = Self::value_stride(size);
            let mut sums: [[Lanes; 2]; QUERIES] = [[[0.0; LANES]; 2]; QUERIES];
            for first in (0..size).step_by(COLUMNS) {
                let values = Rows { values: &self.values[first..], stride };
                kernel.product(keys, Rows { values: scores, stride: padded }, values, &mut sums[..rows]);
                for ((sums, inverse), out) in sums.iter().zip(inverse).zip(out.chunks_exact_mut(size)) {
                    let out = &mut out[first..];
                    for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
                        *out = sum * inverse;
                    }
                }
            }
        }
    }

    /// Scales the keys and transposes them in groups of 32.
    #[inline(always)]
    fn transpose_keys(&mut self, scale: f32) {
        let keys = self.keys.len() / self.size;
        self.panels.resize(keys.next_multiple_of(COLUMNS) * self.size, 0.0);
        let panels = self.panels.chunks_exact_mut(COLUMNS * self.size);
        for (keys, panel) in self.keys.chunks(COLUMNS * self.size).zip(panels) {
            for (column, key) in keys.chunks_exact(self.size).enumerate() {
                for (value, row) in key.iter().zip(panel.as_chunks_mut::<COLUMNS>().0) {
                    row[column] = value * scale;
                }
            }
        }
    }
}

/// Products of queries and all keys. Scores beyond the last key are the lowest number.
#[inline(always)]
fn score<K: Kernel>(
    kernel: K,
    (size, keys): (usize, usize),
    queries: &[f32],
    panels: &[f32],
    scores: &mut [f32],
) {
    let rows = queries.len() / size;
    let padded = panels.len() / size;
    let mut sums: [[Lanes; 2]; QUERIES] = [[[0.0; LANES]; 2]; QUERIES];
    for (panel, first) in panels.chunks_exact(COLUMNS * size).zip((0..).step_by(COLUMNS)) {
        let columns = Rows { values: panel, stride: COLUMNS };
        kernel.product(size, Rows { values: queries, stride: size }, columns, &mut sums[..rows]);
        for (sums, scores) in sums.iter_mut().zip(scores.chunks_exact_mut(padded)) {
            if first + COLUMNS > keys {
                sums.as_flattened_mut()[keys - first..].fill(f32::MIN);
            }
            scores[first..first + COLUMNS].copy_from_slice(sums.as_flattened());
        }
    }
}

/// Replaces scores by the powers of e of their distance to the largest, and returns the inverse of their sum.
#[inline(always)]
fn softmax<K: Kernel>(kernel: K, scores: &mut [Lanes]) -> f32 {
    let mut most = kernel.splat(f32::MIN);
    for lanes in scores.iter() {
        most = kernel.max(kernel.load(lanes), most);
    }
    let most = kernel.splat(largest(kernel, most));
    let mut total = kernel.splat(0.0);
    for lanes in scores {
        let power = exp(kernel, kernel.sub(kernel.load(lanes), most));
        total = kernel.add(total, power);
        kernel.store(power, lanes);
    }
    1.0 / sum(kernel, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{InstructionSet, KernelFn};

    struct Call<'a>(&'a mut Head, f32, usize);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let mut out = vec![0.0; self.2];
            self.0.attend(kernel, self.1, &mut out);
            out
        }
    }

    /// Lengths and sizes around those of panels and groups of queries; the buffers of the head are used again.
    #[test]
    fn contexts_are_those_of_the_definition() {
        let mut head = Head::default();
        for (size, length) in [(32, 70), (8, 33), (64, 32), (8, 1), (40, 9)] {
            let number = |seed: usize, at: usize| ((at * 7919 + seed * 104_729) % 1000) as f32 / 250.0 - 2.0;
            let stride = Head::value_stride(size);
            head.size = size;
            head.queries = (0..length * size).map(|at| number(1, at)).collect();
            head.keys = (0..length * size).map(|at| number(2, at)).collect();
            head.values = (0..length * stride).map(|at| number(3, at)).collect();
            let scale = 1.0 / (size as f32).sqrt();
            for instructions in InstructionSet::available() {
                let out = instructions.call(Call(&mut head, scale, length * size));
                for (query, context) in head.queries.chunks_exact(size).zip(out.chunks_exact(size)) {
                    let score = |key: &[f32]| {
                        let product: f64 = query.iter().zip(key).map(|(a, b)| f64::from(a * b)).sum();
                        (product * f64::from(scale)).exp()
                    };
                    let weights: Vec<f64> = head.keys.chunks_exact(size).map(score).collect();
                    let total: f64 = weights.iter().sum();
                    for (column, found) in context.iter().enumerate() {
                        let values = head.values.chunks_exact(stride).map(|row| f64::from(row[column]));
                        let expected: f64 =
                            values.zip(&weights).map(|(value, weight)| value * weight / total).sum();
                        assert!(
                            (f64::from(*found) - expected).abs() < 1e-5,
                            "{instructions}, {size}, {length}"
                        );
                    }
                }
            }
        }
    }
}
