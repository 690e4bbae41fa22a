//! Rotary position embeddings: queries and keys are rotated by angles that grow with the position (Su et al., 2021).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Number of positions whose angles are computed together, on first use.
const BLOCK: usize = 256;
/// Maximum number of positions.
pub const MAX_POSITIONS: usize = 1 << 15;
/// Number of text lengths with a table, where frequencies grow with the length.
const LENGTHS: usize = 4;

/// Rotary embedding for heads: rotates each value in the first half of the rotated values with its counterpart in the
/// second half.
#[derive(Debug)]
pub struct Rotary {
    settings: Settings,
    table: Table,
    long: Long,
}

/// Angles of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The angle between neighbouring positions, by pair.
    pub frequencies: Vec<f32>,
    /// Factor for cosines and sines.
    pub amplitude: f32,
    /// How angles depend on the text's length.
    pub lengths: Lengths,
    /// Factors for rotated queries.
    pub growth: Option<QueryGrowth>,
}

/// A factor for queries that grows with their position (Llama 4): 1 + `slope` × ln(1 + ⌊position / `period`⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Growth with the logarithm.
    pub slope: f32,
    /// Positions with the same factor.
    pub period: usize,
}

/// How a text's angles depend on its length.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Not at all.
    Alike,
    /// Texts with more than `positions` tokens have other frequencies.
    Other {
        /// Frequencies for long texts.
        frequencies: Vec<f32>,
        /// Tokens in the longest short text.
        positions: usize,
    },
    /// The base grows with the number of tokens beyond `positions`, by `factor` (dynamic NTK scaling).
    Growing {
        /// Growth per `positions` tokens.
        factor: f32,
        /// Tokens in the longest text with the frequencies of the settings.
        positions: usize,
    },
}

/// Tables for long texts.
#[derive(Debug)]
enum Long {
    None,
    One(Table),
    /// The last few lengths' tables.
    ByLength(Mutex<Vec<(usize, Arc<Table>)>>),
}

/// Cosines and sines by position.
#[derive(Debug)]
pub struct Table {
    frequencies: Vec<f32>,
    amplitude: f32,
    /// Cosines, then sines, for each position.
    blocks: Box<[OnceLock<Vec<f32>>]>,
}

/// A text's table.
pub enum TextTable<'a> {
    /// One of the settings' tables, for all texts that use it.
    Shared(&'a Table),
    /// A table for the text's number of tokens.
    Own(Arc<Table>),
}

impl Rotary {
    /// Rotates texts with up to [`MAX_POSITIONS`] tokens.
    pub fn new(settings: Settings) -> Self {
        let table = |frequencies: &[f32]| Table::new(frequencies.to_vec(), settings.amplitude);
        let long = match &settings.lengths {
            Lengths::Alike => Long::None,
            Lengths::Other { frequencies, .. } => Long::One(table(frequencies)),
            Lengths::Growing { .. } => Long::ByLength(Mutex::default()),
        };
        Self {
            table: table(&settings.frequencies),
            long,
            settings,
        }
    }

    /// The settings that it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Memory for cosines and sines in a text with `tokens` tokens, in bytes.
    pub fn bytes(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(BLOCK) * 2 * self.settings.frequencies.len() * size_of::<f32>()
    }

    /// The table for a text with `tokens` tokens.
    pub fn table(&self, tokens: usize) -> TextTable<'_> {
        match (&self.long, &self.settings.lengths) {
            (Long::One(table), Lengths::Other { positions, .. }) if tokens > *positions => {
                TextTable::Shared(table)
            }
            (Long::ByLength(tables), Lengths::Growing { factor, positions })
                if tokens > *positions =>
            {
                let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((_, table)) = tables.iter().find(|(length, _)| *length == tokens) {
                    return TextTable::Own(Arc::clone(table));
                }
                let growth = factor * tokens as f32 / *positions as f32 - (factor - 1.0);
                let table = Arc::new(Table::new(self.grown(growth), self.settings.amplitude));
                if tables.len() == LENGTHS {
                    tables.remove(0);
                }
                tables.push((tokens, Arc::clone(&table)));
                TextTable::Own(table)
            }
            _ => TextTable::Shared(&self.table),
        }
    }

    /// Frequencies whose base is multiplied by growth^(width / (width - 2)).
    fn grown(&self, growth: f32) -> Vec<f32> {
        let width = 2.0 * self.settings.frequencies.len() as f64;
        let frequencies = self.settings.frequencies.iter().zip(0_u32..);
        let grown = frequencies.map(|(frequency, pair)| {
            let exponent = -2.0 * f64::from(pair) / (width - 2.0);
            frequency * libm::pow(f64::from(growth), exponent) as f32
        });
        grown.collect()
    }
}

impl QueryGrowth {
    /// Multiplies queries, rows of `size` numbers from the first position on.
    #[inline(always)]
    pub fn apply(self, queries: &mut [f32], size: usize) {
        for (position, query) in queries.chunks_exact_mut(size).enumerate().skip(self.period) {
            let factor = 1.0 + self.slope * libm::logf((1 + position / self.period) as f32);
            query.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

impl TextTable<'_> {
    /// The angles.
    pub fn get(&self) -> &Table {
        match self {
            Self::Shared(table) => table,
            Self::Own(table) => table,
        }
    }
}

impl Table {
    fn new(frequencies: Vec<f32>, amplitude: f32) -> Self {
        let blocks = (0..MAX_POSITIONS / BLOCK)
            .map(|_| OnceLock::new())
            .collect();
        Self {
            frequencies,
            amplitude,
            blocks,
        }
    }

    /// Rotates a head for the token at `position`. Values beyond the pairs stay as they are.
    #[inline(always)]
    pub fn rotate(&self, head: &mut [f32], position: usize) {
        let pairs = self.frequencies.len();
        let angles = self.blocks[position / BLOCK].get_or_init(|| self.angles(position / BLOCK));
        let (cosines, sines) = angles[position % BLOCK * 2 * pairs..][..2 * pairs].split_at(pairs);
        let (first, second) = head[..2 * pairs].split_at_mut(pairs);
        for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
        }
    }

    /// Computes a whole block. `libm` has the same results on every processor.
    #[cold]
    fn angles(&self, block: usize) -> Vec<f32> {
        let position = |position: usize| {
            let angle = move |frequency: &f32| f64::from(position as f32 * frequency);
            let value = move |value: f64| value as f32 * self.amplitude;
            let cosines = self
                .frequencies
                .iter()
                .map(move |frequency| value(libm::cos(angle(frequency))));
            let sines = self
                .frequencies
                .iter()
                .map(move |frequency| value(libm::sin(angle(frequency))));
            cosines.chain(sines)
        };
        (block * BLOCK..(block + 1) * BLOCK)
            .flat_map(position)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(frequencies: &[f32], lengths: Lengths) -> Settings {
        Settings {
            frequencies: frequencies.to_vec(),
            amplitude: 1.0,
            lengths,
            growth: None,
        }
    }

    #[test]
    fn queries_grow_by_position() {
        let growth = QueryGrowth {
            slope: 0.5,
            period: 2,
        };
        let mut queries = vec![2.0; 10];
        growth.apply(&mut queries, 2);
        let factor = |number: f32| 2.0 + number.ln();
        let expected = [2.0, 2.0, factor(2.0), factor(2.0), factor(3.0)];
        for (query, expected) in queries.chunks_exact(2).zip(expected) {
            assert!(
                query.iter().all(|value| (value - expected).abs() < 1e-6),
                "{query:?}"
            );
        }
    }

    #[test]
    fn pairs_are_rotated_by_their_angle() {
        let rotary = Rotary::new(Settings {
            amplitude: 0.5,
            ..settings(&[1.0, 0.01], Lengths::Alike)
        });
        for position in [0, 1, 255, 256, 599] {
            let mut head = [3.0, -1.0, 4.0, 2.0, 7.0];
            rotary.table(600).get().rotate(&mut head, position);
            let turned = |a: f64, b: f64, angle: f64| {
                (
                    0.5 * (a * angle.cos() - b * angle.sin()),
                    0.5 * (b * angle.cos() + a * angle.sin()),
                )
            };
            let angle = position as f64;
            let ((a, c), (b, d)) = (
                turned(3.0, 4.0, angle),
                turned(-1.0, 2.0, f64::from(position as f32 * 0.01)),
            );
            for (found, expected) in head.iter().zip([a, b, c, d, 7.0]) {
                assert!(
                    (f64::from(*found) - expected).abs() < 2e-6,
                    "{position}: {found}, {expected}"
                );
            }
        }
    }

    #[test]
    fn long_texts_have_other_angles() {
        let other = Lengths::Other {
            frequencies: vec![0.5, 0.25],
            positions: 8,
        };
        let rotary = Rotary::new(settings(&[1.0, 0.01], other));
        assert_eq!(rotary.table(8).get().frequencies, [1.0, 0.01]);
        assert_eq!(rotary.table(9).get().frequencies, [0.5, 0.25]);
        let growing = Lengths::Growing {
            factor: 2.0,
            positions: 8,
        };
        let rotary = Rotary::new(settings(&[1.0, 0.1, 0.01, 0.001], growing));
        assert_eq!(
            rotary.table(8).get().frequencies,
            rotary.settings().frequencies
        );
        for tokens in [16, 12, 16, 9, 20, 32, 16] {
            // With a base of 10,000^(3/4) for eight rotated values, and the base's growth.
            let growth = (2.0 * tokens as f64 / 8.0 - 1.0).powf(8.0 / 6.0);
            let expected =
                (0..4).map(|pair| 10_f64.powi(-pair) * growth.powf(-2.0 * f64::from(pair) / 8.0));
            let table = rotary.table(tokens);
            for (found, expected) in table.get().frequencies.iter().zip(expected) {
                assert!(
                    (f64::from(*found) / expected - 1.0).abs() < 1e-6,
                    "{tokens}: {found}, {expected}"
                );
            }
        }
    }

    #[test]
    fn the_memory_of_a_text_is_that_of_its_blocks() {
        for tokens in [1, 256, 257, 600] {
            let rotary = Rotary::new(settings(&[1.0, 0.1, 0.01], Lengths::Alike));
            let table = rotary.table(tokens);
            (0..tokens).for_each(|position| table.get().rotate(&mut [1.0; 6], position));
            let numbers: usize = table
                .get()
                .blocks
                .iter()
                .filter_map(OnceLock::get)
                .map(Vec::len)
                .sum();
            assert_eq!(rotary.bytes(tokens), numbers * size_of::<f32>(), "{tokens}");
        }
    }
}
