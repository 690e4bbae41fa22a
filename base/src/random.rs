//! Random numbers from the operating system. Generators in this process would return the same numbers in all processes that
//! are forked from it, or restored from a snapshot of it.

/// A number that no other process can expect, as a seed.
#[cfg(not(target_family = "wasm"))]
pub fn seed() -> u64 {
    use std::{hash::BuildHasher, hash::RandomState, time::Instant};

    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(Instant::now()))
}

/// WebAssembly has no operating system, and no code there needs random numbers.
#[cfg(target_family = "wasm")]
pub fn seed() -> u64 {
    0
}

/// A number from 0 to 1, 1 excluded.
pub fn fraction() -> f64 {
    // The numbers with 53 bits are exact.
    (seed() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_differ_and_are_below_one() {
        let (first, second) = (fraction(), fraction());
        assert!((0.0..1.0).contains(&first) && first != second);
    }
}
