//! A layer's 8-bit weights.

use std::sync::OnceLock;

use crate::{
    array::Array,
    kernel::{Block, GROUP, LANES, MAX_QUAD_SUM},
};

/// Weights of a linear layer: 16 outputs per panel, as `inputs` / 4 blocks.
#[derive(Clone, Debug)]
pub struct Panels {
    blocks: Array<Block>,
    /// Determined when it is first asked for, since that reads all weights.
    small_quads: OnceLock<bool>,
}

impl Panels {
    /// The blocks of all panels.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether all weights have [small quads](crate::kernel#small-quads).
    pub fn have_small_quads(&self) -> bool {
        *self
            .small_quads
            .get_or_init(|| have_small_quads(&self.blocks))
    }
}

/// A block in 16 bits: a word per pair of a column's inputs.
type Words = [i16; LANES * GROUP / 2];

/// Pairs of blocks between comparisons.
const PART: usize = 64;

fn have_small_quads(blocks: &[Block]) -> bool {
    let (pairs, rest) = blocks.as_chunks();
    rest.is_empty()
        && pairs
            .chunks(PART)
            .all(|pairs| largest_sum(pairs) <= MAX_QUAD_SUM)
}

/// The largest positive or negative sum in a quad, in magnitude. Calculated per word, so that it becomes vector
/// instructions.
fn largest_sum(pairs: &[[Block; 2]]) -> i16 {
    let mut most: Words = [0; _];
    for pair in pairs {
        let [first, second] = pair.each_ref().map(words);
        for ((most, first), second) in most.iter_mut().zip(first).zip(second) {
            let (mut positive, mut negative) = (0, 0);
            for weight in [first << 8 >> 8, first >> 8, second << 8 >> 8, second >> 8] {
                positive += weight.max(0);
                negative -= weight.min(0);
            }
            *most = positive.max(negative).max(*most);
        }
    }
    most.into_iter().fold(0, i16::max)
}

fn words(block: &Block) -> Words {
    let mut words = [0; _];
    for (word, pair) in words.iter_mut().zip(block.as_flattened().as_chunks().0) {
        *word = i16::from_le_bytes(pair.map(i8::cast_unsigned));
    }
    words
}

impl<A: Into<Array<Block>>> From<A> for Panels {
    fn from(blocks: A) -> Self {
        Self {
            blocks: blocks.into(),
            small_quads: OnceLock::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks that are zero except in the last column's second quad.
    fn blocks(quad: [i8; 4]) -> [Block; 2] {
        let mut blocks = [[[0; GROUP]; LANES]; 2];
        for (block, pair) in blocks.iter_mut().zip(quad.as_chunks::<2>().0) {
            block[LANES - 1] = [0, 0, pair[0], pair[1]];
        }
        blocks
    }

    #[test]
    fn quads_are_small_if_no_sum_of_products_exceeds_16_bits() {
        let values = [
            -128, -127, -65, -64, -63, -33, -32, -2, -1, 0, 1, 2, 31, 32, 33, 63, 64, 65, 126, 127,
        ];
        for quad in (0..values.len().pow(4))
            .map(|at| [0, 1, 2, 3].map(|n| values[at / values.len().pow(n) % values.len()]))
        {
            // The largest sums are those in which all weights of one sign are multiplied by the largest activation.
            let sum = |weights: fn(i32) -> i32| {
                255 * quad.map(i32::from).map(weights).iter().sum::<i32>()
            };
            let extremes = [sum(|weight| weight.max(0)), sum(|weight| weight.min(0))];
            let fits = extremes.iter().all(|sum| i16::try_from(*sum).is_ok());
            assert_eq!(have_small_quads(&blocks(quad)), fits, "{quad:?}");
        }
    }

    #[test]
    fn one_large_quad_counts() {
        let mut weights = vec![[[32; GROUP]; LANES]; 6];
        assert!(Panels::from(weights.clone()).have_small_quads());
        // The neighbours belong to different quads.
        weights[1][7] = [32, 32, 32, 33];
        assert!(!Panels::from(weights.clone()).have_small_quads());
        (weights[0][7], weights[1][7]) = ([127, 1, 0, 0], [0, 0, 1, 127]);
        (weights[2][7], weights[3][7]) = ([127, 1, -128, 0], [0, 0, 127, 1]);
        assert!(Panels::from(weights.clone()).have_small_quads());
        // No pair of blocks.
        weights.pop();
        assert!(!Panels::from(weights).have_small_quads());
    }
}
