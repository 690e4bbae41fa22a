//! DeBERTa's terms in attention scores: products of queries, and of keys, with vectors for the distance between them.
//!
//! A few rows are multiplied by the vectors for a range of distances. A query's products are in the order of its score
//! row, read backwards. A key's products belong to a score column: they are computed for a block of queries, and
//! transposed. Far distances share vectors, whose products are computed once.
//!
//! Tables are stored in panels of 32 columns, which a product reads from beginning to end.

use std::ops::Range;

use crate::{
    kernel::{COLUMNS, Kernel, LANES, Lanes, Rows, RowsMut},
    numbers::Numbers,
    program::DistanceVectors,
};

/// Queries in a group, which attention computes together; also keys that are multiplied together.
pub const QUERIES: usize = 8;
/// Queries whose products with keys are computed together. With those of a group's other rows, their distances fill
/// panels nearly, wherever they begin.
const BLOCK: usize = 4 * COLUMNS;

const _: () = assert!(BLOCK.is_multiple_of(QUERIES) && COLUMNS.is_multiple_of(QUERIES));

/// Buffers for the terms of one head. Other heads reuse them.
#[derive(Debug, Default)]
pub struct DistanceTerms {
    /// Products of rows with a range of panels, before far distances are told apart.
    shared: Numbers,
    /// The same, with a column per distance.
    products: Numbers,
    /// The keys' terms, a row per query of a block.
    of_keys: Numbers,
}

/// Products in rows: the first is at `offset` in each row of `width` numbers.
#[derive(Clone, Copy)]
struct Products {
    width: usize,
    offset: usize,
}

/// One head's tables.
#[derive(Clone, Copy, Debug)]
pub struct HeadVectors<'a> {
    vectors: &'a DistanceVectors,
    keys: Option<&'a [f32]>,
    queries: Option<&'a [f32]>,
}

impl<'a> HeadVectors<'a> {
    pub fn new(vectors: &'a DistanceVectors, head: usize) -> Self {
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
    pub fn numbers(tokens: usize) -> usize {
        2 * QUERIES * (tokens + BLOCK + 2 * COLUMNS) + BLOCK * stride(tokens)
    }

    /// Adds the terms of a group of queries to their scores for all keys. Groups follow each other from position 0.
    #[inline(always)]
    pub fn add<K: Kernel>(
        &mut self,
        kernel: K,
        head: HeadVectors<'_>,
        queries: Rows<'_>,
        group: Range<usize>,
        keys: Rows<'_>,
        scores: RowsMut<'_>,
    ) {
        let (size, first, count) = (keys.stride, group.start, keys.values.len() / keys.stride);
        let RowsMut {
            values,
            stride: apart,
        } = scores;
        let (stride, rows) = (stride(count), values.chunks_exact_mut(apart));
        if let Some(table) = head.queries
            && first.is_multiple_of(BLOCK)
        {
            let block = first..(queries.values.len() / size).min(first + BLOCK);
            self.multiply_keys(kernel, head.vectors, table, keys, block);
        }
        if let Some(table) = head.keys {
            let distances = first as isize - count as isize + 1..group.end as isize;
            let queries = Rows::new(&queries.values[first * size..group.end * size], size);
            let Products { width, offset } =
                self.multiply(kernel, head.vectors, table, queries, distances);
            for (row, scores) in rows.enumerate() {
                // From the first key on, distances fall.
                let start = row * width + offset + row;
                let products = self.products[start..start + count].iter().rev();
                let scores = scores[..count].iter_mut();
                if head.queries.is_some() {
                    let terms = &self.of_keys[(first % BLOCK + row) * stride..][..count];
                    for ((score, term), product) in scores.zip(terms).zip(products) {
                        *score += term + product;
                    }
                } else {
                    scores
                        .zip(products)
                        .for_each(|(score, product)| *score += product);
                }
            }
        } else if head.queries.is_some() {
            for (row, scores) in rows.enumerate() {
                let terms = &self.of_keys[(first % BLOCK + row) * stride..][..count];
                scores[..count]
                    .iter_mut()
                    .zip(terms)
                    .for_each(|(score, term)| *score += term);
            }
        }
    }

    /// Multiplies keys by the vectors for their distances to a block of queries.
    #[inline(always)]
    fn multiply_keys<K: Kernel>(
        &mut self,
        kernel: K,
        vectors: &DistanceVectors,
        table: &[f32],
        keys: Rows<'_>,
        block: Range<usize>,
    ) {
        let (size, count) = (keys.stride, keys.values.len() / keys.stride);
        let stride = stride(count);
        self.of_keys.resize(BLOCK * stride, 0.0);
        // Counted from the last key, groups are whole.
        let mut start = 0;
        while start < count {
            let end = start + (count - start - 1) % QUERIES + 1;
            let rows = end - start;
            let distances =
                block.start as isize - (end - 1) as isize..block.end as isize - start as isize;
            let keys = Rows::new(&keys.values[start * size..end * size], size);
            let Products { width, offset } = self.multiply(kernel, vectors, table, keys, distances);
            for (query, out) in self
                .of_keys
                .chunks_exact_mut(stride)
                .take(block.len())
                .enumerate()
            {
                let products = &self.products[offset + query..];
                let out = &mut out[start..end];
                match out.first_chunk_mut::<QUERIES>() {
                    Some(out) => {
                        let products = &products[..(QUERIES - 1) * width + QUERIES];
                        for (row, out) in out.iter_mut().enumerate() {
                            *out = products[row * width + QUERIES - 1 - row];
                        }
                    }
                    None => {
                        for (row, out) in out.iter_mut().enumerate() {
                            *out = products[row * width + rows - 1 - row];
                        }
                    }
                }
            }
            start = end;
        }
    }

    /// Multiplies up to [`QUERIES`] rows by the vectors for a range of distances, into rows of `products`.
    #[inline(always)]
    fn multiply<K: Kernel>(
        &mut self,
        kernel: K,
        vectors: &DistanceVectors,
        table: &[f32],
        rows: Rows<'_>,
        distances: Range<isize>,
    ) -> Products {
        let columns = vectors.columns_of(distances);
        let (Some(&first), Some(&last)) = (columns.first(), columns.last()) else {
            return Products {
                width: 1,
                offset: 0,
            };
        };
        let is_shared = ((last - first) as usize) + 1 < columns.len();
        let [first, last] = [first as usize, last as usize];
        let panels = first / COLUMNS..last / COLUMNS + 1;
        let (width, offset) = (panels.len() * COLUMNS, first % COLUMNS);
        let out = if is_shared {
            &mut self.shared
        } else {
            &mut self.products
        };
        let size = rows.stride;
        let row_count = rows.values.len() / size;
        out.resize(row_count * width, 0.0);
        let mut sums: [[Lanes; 2]; QUERIES] = [[[0.0; LANES]; 2]; QUERIES];
        let sums = &mut sums[..row_count];
        let values = &table[panels.start * COLUMNS * size..];
        for (panel, column) in values
            .chunks_exact(COLUMNS * size)
            .zip((0..width).step_by(COLUMNS))
        {
            let part = Rows::new(panel, COLUMNS);
            kernel.product(size, rows, part, sums);
            for (sums, out) in sums.iter().zip(out.chunks_exact_mut(width)) {
                out[column..column + COLUMNS].copy_from_slice(sums.as_flattened());
            }
        }
        if !is_shared {
            return Products { width, offset };
        }
        self.products.resize(row_count * columns.len(), 0.0);
        let rows = self
            .shared
            .chunks_exact(width)
            .zip(self.products.chunks_exact_mut(columns.len()));
        for (shared, out) in rows {
            for (out, column) in out.iter_mut().zip(columns) {
                *out = shared[offset + (column - columns[0]) as usize];
            }
        }
        Products {
            width: columns.len(),
            offset: 0,
        }
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
            let (queries, keys) = (Rows::new(queries, SIZE), Rows::new(keys, SIZE));
            let mut out = vec![0.0; query_count * key_count];
            let groups = out.chunks_mut(QUERIES * key_count);
            for (scores, first) in groups.zip((0..).step_by(QUERIES)) {
                let group = first..query_count.min(first + QUERIES);
                let scores = RowsMut::new(scores, key_count);
                terms.add(kernel, head, queries, group, keys, scores);
            }
            out
        }
    }

    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        (0..count)
            .map(|at| ((at * 7919 + seed * 104_729) % 1000) as f32 / 250.0 - 2.0)
            .collect()
    }

    /// Vectors for up to 300 tokens; distances from `near` on share a column with the next `shared - 1`.
    fn vectors(near: i64, shared: i64, sides: [bool; 2]) -> DistanceVectors {
        let bucket = |distance: i64| match distance.abs() - near {
            ..=0 => distance,
            far => distance.signum() * (near + (far - 1) / shared + 1),
        };
        let columns: Vec<u32> = (-299..=299)
            .map(|distance| (bucket(distance) + 300) as u32)
            .collect();
        let panels = 600_usize.div_ceil(COLUMNS);
        let table = |seed| numbers(seed, HEADS * panels * SIZE * COLUMNS).into();
        let [keys, queries] = sides;
        let tables = DistanceTables {
            shape: [HEADS, panels, SIZE],
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
            let panel = &table[column / COLUMNS * SIZE * COLUMNS..][..SIZE * COLUMNS];
            let factors = panel[column % COLUMNS..]
                .iter()
                .step_by(COLUMNS)
                .zip(vector);
            factors.map(|(left, right)| f64::from(left * right)).sum()
        };
        product(head.keys, query) + product(head.queries, key)
    }

    /// Text lengths around the boundaries of groups, products and blocks; one query, or one for each key.
    #[test]
    fn terms_are_those_of_the_definition() {
        let mut terms = DistanceTerms::default();
        for (near, shared, sides) in [
            (300, 1, [true, true]),
            (16, 5, [true, true]),
            (20, 2, [true, false]),
            (9, 30, [false, true]),
        ] {
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
            DistanceVectors::new(
                columns.to_vec(),
                DistanceTables {
                    shape,
                    keys,
                    queries: None,
                },
            )
            .is_some()
        };
        assert!(new(&[0, 1, 1], [1, 1, 1], 32));
        assert!(!new(&[0, 1, 1], [1, 1, 1], 31));
        assert!(!new(&[0, 2, 2], [1, 1, 1], 32));
        assert!(!new(&[1, 0, 0], [1, 1, 1], 32));
        assert!(!new(&[0, 1], [1, 1, 1], 32));
        assert!(!new(&[], [1, 1, 1], 32));
        assert!(new(&[31, 31, 32], [1, 2, 1], 64));
        assert!(
            !new(&[31, 31, 32], [1, 1, 1], 32),
            "the last column is in the second panel"
        );
        assert!(!new(&[0, 1, u32::MAX], [1, usize::MAX, 2], 64));
    }
}
