//! DeBERTa's terms in attention scores: products of queries, and of keys, with vectors for the distance between them.
//!
//! A few rows are multiplied by the vectors for a range of distances. A query's products are in the order of its score
//! row, read backwards. A key's products belong to a score column: they are computed for a block of queries, and
//! transposed. Far distances share vectors, whose products are computed once.

use std::ops::Range;

use crate::{
    kernel::{COLUMNS, Kernel, LANES, Lanes, MAX_ROWS, Rows},
    program::DistanceVectors,
};

/// Queries in a group, which attention computes together.
pub(crate) const QUERIES: usize = 8;
/// Queries whose products with keys are computed together. With the rows of a product, their distances fill whole
/// columns.
const BLOCK: usize = 4 * COLUMNS - 2 * QUERIES;
/// Keys that are multiplied together.
const KEYS: usize = MAX_ROWS;

const _: () = assert!(BLOCK + KEYS <= 4 * COLUMNS + 1 && BLOCK.is_multiple_of(QUERIES));

/// Buffers for the terms of one head. Other heads reuse them.
#[derive(Debug, Default)]
pub(crate) struct DistanceTerms {
    /// Products of rows with a window's columns, before far distances are told apart.
    shared: Vec<f32>,
    /// The same, with a column per distance.
    products: Vec<f32>,
    /// The keys' terms, a row per query of a block.
    of_keys: Vec<f32>,
    /// All terms, a row per query of a group.
    sums: Vec<f32>,
}

/// One head's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadVectors<'a> {
    vectors: &'a DistanceVectors,
    keys: Option<&'a [f32]>,
    queries: Option<&'a [f32]>,
}

impl<'a> HeadVectors<'a> {
    pub(crate) fn new(vectors: &'a DistanceVectors, head: usize) -> Self {
        let of_head = |table: &'a [f32]| {
            let size = table.len() / vectors.heads;
            &table[head * size..(head + 1) * size]
        };
        Self {
            vectors,
            keys: vectors.keys.as_deref().map(of_head),
            queries: vectors.queries.as_deref().map(of_head),
        }
    }
}

impl DistanceTerms {
    /// Buffer size for a text with `tokens` tokens, as a count of numbers.
    pub(crate) fn numbers(tokens: usize) -> usize {
        let products = 2 * MAX_ROWS * (tokens + MAX_ROWS + COLUMNS).max(BLOCK + 2 * COLUMNS);
        products + BLOCK * stride(tokens) + QUERIES * tokens
    }

    /// Computes the terms for a group of queries and all keys, with `size` numbers each. The group begins with the
    /// query at position `first`; groups follow each other from position 0.
    #[inline(always)]
    pub(crate) fn compute<K: Kernel>(
        &mut self,
        kernel: K,
        head: HeadVectors<'_>,
        (queries, keys, size): (&[f32], &[f32], usize),
        (first, query_count): (usize, usize),
    ) {
        let (rows, count) = (queries.len() / size, keys.len() / size);
        let stride = stride(count);
        self.sums.clear();
        self.sums.resize(QUERIES * count, 0.0);
        if let Some(table) = head.queries {
            if first.is_multiple_of(BLOCK) {
                let block = first..query_count.min(first + BLOCK);
                self.multiply_keys(kernel, head.vectors, table, (keys, size), block);
            }
            let of_keys = self.of_keys[first % BLOCK * stride..].chunks_exact(stride);
            for (sums, terms) in self.sums.chunks_exact_mut(count).zip(of_keys).take(rows) {
                sums.copy_from_slice(&terms[..count]);
            }
        }
        if let Some(table) = head.keys {
            let distances = first as isize - count as isize + 1..(first + rows) as isize;
            let width = self.multiply(kernel, head.vectors, table, (queries, size), distances);
            let products = self.products.chunks_exact(width);
            for (row, (sums, products)) in self.sums.chunks_exact_mut(count).zip(products).enumerate() {
                // From the first key on, distances fall.
                for (sum, product) in sums.iter_mut().zip(products[row..row + count].iter().rev()) {
                    *sum += product;
                }
            }
        }
    }

    /// The terms for the query in `row` of the group, by key.
    pub(crate) fn row(&self, row: usize, keys: usize) -> &[f32] {
        &self.sums[row * keys..(row + 1) * keys]
    }

    /// Multiplies keys by the vectors for their distances to a block of queries.
    #[inline(always)]
    fn multiply_keys<K: Kernel>(
        &mut self,
        kernel: K,
        vectors: &DistanceVectors,
        table: &[f32],
        (keys, size): (&[f32], usize),
        block: Range<usize>,
    ) {
        let stride = stride(keys.len() / size);
        self.of_keys.resize(BLOCK * stride, 0.0);
        for (keys, first_key) in keys.chunks(KEYS * size).zip((0..).step_by(KEYS)) {
            let rows = keys.len() / size;
            let nearest = block.start as isize - (first_key + rows - 1) as isize;
            let distances = nearest..block.end as isize - first_key as isize;
            let width = self.multiply(kernel, vectors, table, (keys, size), distances);
            let out = self.of_keys.chunks_exact_mut(stride).take(block.len()).enumerate();
            match rows {
                KEYS => {
                    for (query, out) in out {
                        let Some(out) = out[first_key..].first_chunk_mut::<KEYS>() else { return };
                        let products = &self.products[query..(KEYS - 1) * width + query + KEYS];
                        for (row, out) in out.iter_mut().enumerate() {
                            *out = products[row * width + KEYS - 1 - row];
                        }
                    }
                }
                _ => {
                    for (query, out) in out {
                        for (row, out) in out[first_key..first_key + rows].iter_mut().enumerate() {
                            *out = self.products[row * width + query + rows - 1 - row];
                        }
                    }
                }
            }
        }
    }

    /// Multiplies rows by the vectors for a range of distances, into rows of `products`. Returns their length.
    #[inline(always)]
    fn multiply<K: Kernel>(
        &mut self,
        kernel: K,
        vectors: &DistanceVectors,
        table: &[f32],
        (rows, size): (&[f32], usize),
        distances: Range<isize>,
    ) -> usize {
        let columns = vectors.columns_of(distances);
        let (Some(&first), Some(&last)) = (columns.first(), columns.last()) else { return 1 };
        let count = (last - first) as usize + 1;
        let width = count.next_multiple_of(COLUMNS);
        let is_shared = count < columns.len();
        let out = if is_shared { &mut self.shared } else { &mut self.products };
        let row_count = rows.len() / size;
        out.resize(row_count * width, 0.0);
        let mut sums: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
        let sums = &mut sums[..row_count];
        for column in (0..width).step_by(COLUMNS) {
            let part = Rows { values: &table[first as usize + column..], stride: vectors.width };
            kernel.product(size, Rows { values: rows, stride: size }, part, sums);
            for (sums, out) in sums.iter().zip(out.chunks_exact_mut(width)) {
                out[column..column + COLUMNS].copy_from_slice(sums.as_flattened());
            }
        }
        if !is_shared {
            return width;
        }
        self.products.resize(row_count * columns.len(), 0.0);
        let rows = self.shared.chunks_exact(width).zip(self.products.chunks_exact_mut(columns.len()));
        for (shared, out) in rows {
            for (out, column) in out.iter_mut().zip(columns) {
                *out = shared[(column - first) as usize];
            }
        }
        columns.len()
    }
}

/// Key term row stride: an odd number of cache lines, since powers of two would share few sets of
/// the cache.
fn stride(keys: usize) -> usize {
    (keys.div_ceil(LANES) | 1) * LANES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::{InstructionSet, KernelFn},
        program::DistanceTables,
    };

    const SIZE: usize = 8;
    const HEADS: usize = 2;

    struct Call<'a>(&'a mut DistanceTerms, HeadVectors<'a>, &'a [f32], &'a [f32]);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let Self(terms, head, queries, keys) = self;
            let (query_count, key_count) = (queries.len() / SIZE, keys.len() / SIZE);
            let mut out = Vec::new();
            for (queries, first) in queries.chunks(QUERIES * SIZE).zip((0..).step_by(QUERIES)) {
                terms.compute(kernel, head, (queries, keys, SIZE), (first, query_count));
                let rows = queries.len() / SIZE;
                (0..rows).for_each(|row| out.extend_from_slice(terms.row(row, key_count)));
            }
            out
        }
    }

    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1000) as f32 / 250.0 - 2.0).collect()
    }

    /// Vectors for up to 300 tokens; distances from `near` on share a column with the next `shared - 1`.
    fn vectors(near: i64, shared: i64, sides: [bool; 2]) -> DistanceVectors {
        let bucket = |distance: i64| match distance.abs() - near {
            ..=0 => distance,
            far => distance.signum() * (near + (far - 1) / shared + 1),
        };
        let columns: Vec<u32> = (-299..=299).map(|distance| (bucket(distance) + 300) as u32).collect();
        let width = 600 + COLUMNS;
        let table = |seed| numbers(seed, HEADS * SIZE * width).into();
        let [keys, queries] = sides;
        let tables = DistanceTables {
            shape: [HEADS, SIZE, width],
            keys: keys.then(|| table(5)),
            queries: queries.then(|| table(6)),
        };
        DistanceVectors::new(columns, tables).unwrap()
    }

    /// The terms of one query and one key, in `f64`.
    fn definition(head: &HeadVectors<'_>, [query, key]: [&[f32]; 2], distance: isize) -> f64 {
        let column = head.vectors.columns_of(distance..distance + 1)[0] as usize;
        let product = |table: Option<&[f32]>, vector: &[f32]| -> f64 {
            let Some(table) = table else { return 0.0 };
            let factors = table[column..].iter().step_by(head.vectors.width).zip(vector);
            factors.map(|(left, right)| f64::from(left * right)).sum()
        };
        product(head.keys, query) + product(head.queries, key)
    }

    /// Text lengths around the boundaries of groups, products and blocks; one query, or one for each key.
    #[test]
    fn terms_are_those_of_the_definition() {
        let mut terms = DistanceTerms::default();
        for (near, shared, sides) in
            [(300, 1, [true, true]), (16, 5, [true, true]), (20, 2, [true, false]), (9, 30, [false, true])]
        {
            let vectors = vectors(near, shared, sides);
            for (queries, keys) in [(1, 1), (1, 40), (9, 9), (33, 33), (130, 130), (251, 251)] {
                let (queries, keys) = (numbers(1, queries * SIZE), numbers(2, keys * SIZE));
                let head = HeadVectors::new(&vectors, 1);
                let expected: Vec<f64> = queries
                    .chunks_exact(SIZE)
                    .zip(0_isize..)
                    .flat_map(|(query, i)| {
                        let keys = keys.chunks_exact(SIZE).zip(0_isize..);
                        keys.map(move |(key, j)| definition(&head, [query, key], i - j))
                    })
                    .collect();
                for instructions in InstructionSet::available() {
                    let found = instructions.call(Call(&mut terms, head, &queries, &keys));
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!(
                            (f64::from(*found) - expected).abs() < 1e-4,
                            "{instructions}, {near}, {sides:?}, {}: {found}, {expected}",
                            keys.len() / SIZE
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn tables_that_products_would_leave_are_refused() {
        let new = |columns: &[u32], shape: [usize; 3], length: usize| {
            let keys = Some(numbers(1, length).into());
            DistanceVectors::new(columns.to_vec(), DistanceTables { shape, keys, queries: None }).is_some()
        };
        assert!(new(&[0, 1, 1], [1, 1, 33], 33));
        assert!(!new(&[0, 1, 1], [1, 1, 32], 32), "a product reads 32 columns from any on");
        assert!(!new(&[0, 1, 1], [1, 1, 33], 32));
        assert!(!new(&[0, 2, 2], [1, 1, 40], 40));
        assert!(!new(&[1, 0, 0], [1, 1, 40], 40));
        assert!(!new(&[0, 1], [1, 1, 40], 40));
        assert!(!new(&[], [1, 1, 40], 40));
        assert!(!new(&[0, 1, u32::MAX], [1, usize::MAX, 40], 40));
    }
}
