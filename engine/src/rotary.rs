//! Rotary position embeddings: queries and keys are rotated by angles that grow with the position (Su et al., 2021).

use std::sync::OnceLock;

/// Number of positions whose angles are computed together, on first use.
const BLOCK: usize = 256;
/// Maximum number of positions.
pub const MAX_POSITIONS: usize = 1 << 15;

/// Rotary embedding for heads: rotates each value in the first half of the rotated values with its counterpart in the
/// second half.
#[derive(Debug)]
pub struct Rotary {
    /// The angle between neighbouring positions, by pair.
    frequencies: Vec<f32>,
    /// Cosines, then sines, for each position.
    blocks: Box<[OnceLock<Vec<f32>>]>,
}

impl Rotary {
    /// Rotates by `frequencies`, one per pair of values, in texts with up to [`MAX_POSITIONS`] tokens.
    pub fn new(frequencies: Vec<f32>) -> Self {
        let blocks = (0..MAX_POSITIONS / BLOCK).map(|_| OnceLock::new()).collect();
        Self { frequencies, blocks }
    }

    /// The angle between neighbouring positions, by pair.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Memory for cosines and sines in a text with `tokens` tokens, in bytes.
    pub(crate) fn bytes(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(BLOCK) * 2 * self.frequencies.len() * size_of::<f32>()
    }

    /// Rotates a head for the token at `position`. Values beyond the pairs stay as they are.
    #[inline(always)]
    pub(crate) fn rotate(&self, head: &mut [f32], position: usize) {
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
            let cosines = self.frequencies.iter().map(move |frequency| libm::cos(angle(frequency)) as f32);
            cosines.chain(self.frequencies.iter().map(move |frequency| libm::sin(angle(frequency)) as f32))
        };
        (block * BLOCK..(block + 1) * BLOCK).flat_map(position).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_rotated_by_their_angle() {
        let rotary = Rotary::new(vec![1.0, 0.01]);
        for position in [0, 1, 255, 256, 599] {
            let mut head = [3.0, -1.0, 4.0, 2.0, 7.0];
            rotary.rotate(&mut head, position);
            let turned = |a: f64, b: f64, angle: f64| {
                (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
            };
            let angle = position as f64;
            let ((a, c), (b, d)) =
                (turned(3.0, 4.0, angle), turned(-1.0, 2.0, f64::from(position as f32 * 0.01)));
            for (found, expected) in head.iter().zip([a, b, c, d, 7.0]) {
                assert!((f64::from(*found) - expected).abs() < 2e-6, "{position}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn the_memory_of_a_text_is_that_of_its_blocks() {
        for tokens in [1, 256, 257, 600] {
            let rotary = Rotary::new(vec![1.0, 0.1, 0.01]);
            (0..tokens).for_each(|position| rotary.rotate(&mut [1.0; 6], position));
            let numbers: usize = rotary.blocks.iter().filter_map(OnceLock::get).map(Vec::len).sum();
            assert_eq!(rotary.bytes(tokens), numbers * size_of::<f32>(), "{tokens}");
        }
    }
}
