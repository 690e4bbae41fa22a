//! Damaged bits.

use std::env;

/// Random bits in files, the same in each run.
pub(crate) struct Flips(fastrand::Rng);

impl Flips {
    pub(crate) fn new() -> Self {
        Self(fastrand::Rng::with_seed(7))
    }

    /// Damaged bits per test.
    pub(crate) fn count() -> usize {
        env::var("TEST_FLIPS").map_or(40, |count| count.parse().expect("`TEST_FLIPS` is a number"))
    }

    pub(crate) fn flip(&mut self, bytes: &mut [u8]) {
        let bit = self.0.usize(..bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
