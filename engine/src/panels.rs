//! A layer's 8-bit weights.

use std::sync::OnceLock;

use crate::{
    array::Array,
    kernel::{Block, MAX_PAIR_SUM},
};

/// Weights of a linear layer: 16 outputs per panel, as `inputs` / 4 blocks.
#[derive(Clone, Debug)]
pub struct Panels {
    blocks: Array<Block>,
    /// Determined when it is first asked for, since that reads all weights.
    small_pairs: OnceLock<bool>,
}

impl Panels {
    /// The blocks of all panels.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether all weights have [small pairs](crate::kernel#small-pairs).
    pub fn have_small_pairs(&self) -> bool {
        *self.small_pairs.get_or_init(|| self.blocks.iter().all(has_small_pairs))
    }
}

fn has_small_pairs(block: &Block) -> bool {
    let sum = |pair: &[i8; 2]| (i16::from(pair[0]) + i16::from(pair[1])).abs();
    // Without a branch per pair, so that it becomes vector instructions.
    block.as_flattened().as_chunks().0.iter().fold(0, |most, pair| sum(pair).max(most)) <= MAX_PAIR_SUM
}

impl<A: Into<Array<Block>>> From<A> for Panels {
    fn from(blocks: A) -> Self {
        Self { blocks: blocks.into(), small_pairs: OnceLock::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{GROUP, LANES};

    #[test]
    fn pairs_are_small_if_no_two_products_exceed_16_bits() {
        for left in i8::MIN..=i8::MAX {
            for right in i8::MIN..=i8::MAX {
                let weights = [left, right].map(i32::from);
                let product = |inputs: [i32; 2]| weights[0] * inputs[0] + weights[1] * inputs[1];
                let extremes = [[0, 0], [0, 255], [255, 0], [255, 255]].map(product);
                let fits = extremes.iter().all(|product| i16::try_from(*product).is_ok());
                let mut block = [[0; GROUP]; LANES];
                block[LANES - 1] = [0, 0, left, right];
                assert_eq!(has_small_pairs(&block), fits, "{left}, {right}");
            }
        }
    }

    #[test]
    fn one_large_pair_counts() {
        let mut blocks = vec![[[64; GROUP]; LANES]; 5];
        assert!(Panels::from(blocks.clone()).have_small_pairs());
        // The neighbours belong to different pairs.
        blocks[3][7] = [64, 64, 64, 65];
        assert!(!Panels::from(blocks.clone()).have_small_pairs());
        blocks[3][7] = [0, 127, 127, 0];
        assert!(Panels::from(blocks).have_small_pairs());
    }
}
