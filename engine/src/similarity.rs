//! Maximum vector products, for late interaction.

use crate::{
    heads::spans::pack,
    kernel::{COLUMNS, InstructionSet, Kernel, KernelFn, LANES, Lanes, MAX_ROWS, Rows},
};

/// Query vectors, in the order in which products read them.
#[derive(Clone, Debug)]
pub struct Query {
    /// Transposed vectors, in panels of 32; zeros pad the last one.
    panels: Vec<f32>,
    count: usize,
    width: usize,
    instructions: InstructionSet,
}

impl Query {
    /// Creates a query from concatenated vectors with `width` numbers each.
    ///
    /// # Panics
    /// Panics if `width` is zero.
    pub fn new(vectors: &[f32], width: usize) -> Self {
        let count = vectors.len() / width;
        let mut panels = Vec::new();
        pack(vectors, width, &mut panels);
        Self {
            panels,
            count,
            width,
            instructions: InstructionSet::current(),
        }
    }

    /// Each query vector's maximum product with a document vector; 0 if there are none.
    pub fn largest_products(&self, document: &[f32]) -> Vec<f32> {
        self.instructions.call_in_fp32(LargestProducts {
            query: self,
            document,
        })
    }
}

struct LargestProducts<'a> {
    query: &'a Query,
    document: &'a [f32],
}

impl KernelFn for LargestProducts<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
        let Self {
            query:
                Query {
                    panels,
                    count,
                    width,
                    ..
                },
            document,
        } = self;
        let mut out = Vec::with_capacity(count.next_multiple_of(COLUMNS));
        let mut sums: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
        for panel in panels.chunks_exact(COLUMNS * width) {
            let columns = Rows::new(panel, COLUMNS);
            let mut largest: [Lanes; 2] = [[f32::MIN; LANES]; 2];
            for vectors in document.chunks(MAX_ROWS * width) {
                let sums = &mut sums[..vectors.len() / width];
                kernel.product(*width, Rows::new(vectors, *width), columns, sums);
                for sums in sums.iter() {
                    for (sums, largest) in sums.iter().zip(&mut largest) {
                        kernel.store(kernel.max(kernel.load(sums), kernel.load(largest)), largest);
                    }
                }
            }
            out.extend_from_slice(largest.as_flattened());
        }
        out.truncate(*count);
        if document.is_empty() {
            out.fill(0.0);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_products_are_those_of_plain_loops() {
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count)
                .map(|at| (((at + seed) * 7919) % 1000) as f32 / 500.0 - 1.0)
                .collect()
        };
        for (queries, documents, width) in [(1, 1, 2), (32, 25, 16), (33, 12, 24), (70, 40, 5)] {
            let (query, document) = (numbers(queries * width, 3), numbers(documents * width, 500));
            let product = |left: &[f32], right: &[f32]| -> f32 {
                left.iter()
                    .zip(right)
                    .fold(0.0, |sum, (left, right)| left.mul_add(*right, sum))
            };
            let largest = |vector: &[f32]| {
                document
                    .chunks_exact(width)
                    .map(|other| product(vector, other))
                    .fold(f32::MIN, f32::max)
            };
            let expected: Vec<f32> = query.chunks_exact(width).map(largest).collect();
            for instructions in InstructionSet::available() {
                let query = Query {
                    instructions,
                    ..Query::new(&query, width)
                };
                assert_eq!(
                    query.largest_products(&document),
                    expected,
                    "{instructions}"
                );
                assert_eq!(query.largest_products(&[]), vec![0.0; queries]);
            }
        }
    }
}
