//! Parsers for external input, by name, for fuzzing. Not part of the API.
//!
//! A reader must return for any input, without panics or failed assertions, and take at most [`MAX_FACTOR`] times its
//! input's size plus [`MAX_EXTRA_BYTES`] in memory. The fuzzer searches for inputs that
//! violate this; tests replay its findings.
//!
//! Readers call private functions, so they are modules in the layers whose parsers they call.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "only tests and the fuzzer run readers"
)]

#[cfg(any(test, feature = "fuzzing"))]
mod readers;

use std::{
    env, fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    time::Instant,
};

#[cfg(any(test, feature = "fuzzing"))]
pub use self::readers::READERS;

/// A reader's maximum memory as a multiple of its input size.
pub const MAX_FACTOR: u64 = 10;
/// The additional memory that a reader may take.
pub const MAX_EXTRA_BYTES: u64 = 32 * 1024 * 1024;

/// Parses external input.
pub type Reader = fn(&[u8]);

/// Runs a function, and returns its peak memory in bytes.
pub type Measure = fn(&dyn Fn()) -> u64;

/// Readers with a corpus: a folder for each, by its name.
#[derive(Clone, Copy, Debug)]
pub struct Corpus<'a> {
    /// Readers by name.
    pub readers: &'a [(&'a str, Reader)],
    /// Parent of the readers' folders.
    pub folder: &'a Path,
    /// Measures a call's memory.
    pub measure: Measure,
}

impl Corpus<'_> {
    fn inputs(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = self.folder.join(name);
        let files =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        files
            .map(|file| file.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    /// Runs each reader with all its inputs, then with mutated ones for a tenth of a second or for `FUZZ_SECONDS`.
    /// `make fuzz` is guided by coverage and reaches more.
    ///
    /// # Panics
    /// If a reader panics, takes too much memory or more than 10 s, or has no inputs. A mutated input is then in the
    /// folder for temporary files.
    pub fn check(&self) {
        self.replay();
        self.mutate();
    }

    fn replay(&self) {
        for (name, reader) in self.readers {
            let inputs = self.inputs(name);
            assert!(!inputs.is_empty(), "{name} has no inputs");
            for (path, bytes) in inputs {
                // The first call may initialize statics.
                reader(&bytes);
                let taken = (self.measure)(&|| reader(&bytes));
                assert!(
                    taken <= allowed(&bytes),
                    "{} takes {taken} bytes",
                    path.display()
                );
            }
        }
    }

    fn mutate(&self) {
        let seconds = env::var("FUZZ_SECONDS")
            .ok()
            .and_then(|seconds| seconds.parse().ok())
            .unwrap_or(0.1);
        for (name, reader) in self.readers {
            let inputs: Vec<Vec<u8>> = self
                .inputs(name)
                .into_iter()
                .map(|(_, bytes)| bytes)
                .collect();
            let (started, mut count, mut random) = (Instant::now(), 0, fastrand::Rng::with_seed(9));
            while started.elapsed().as_secs_f64() < seconds {
                let bytes = mutated(&inputs, &mut random);
                let began = Instant::now();
                let taken = catch_unwind(|| (self.measure)(&|| reader(&bytes)));
                let is_fine = taken.as_ref().is_ok_and(|taken| *taken <= allowed(&bytes));
                if !is_fine || began.elapsed().as_secs() > 10 {
                    let path = env::temp_dir().join(format!("{name}-{count}"));
                    fs::write(&path, &bytes).unwrap();
                    panic!(
                        "{name}: {taken:?} bytes in {:?} for {}",
                        began.elapsed(),
                        path.display()
                    );
                }
                count += 1;
            }
        }
    }
}

/// The memory that a reader may take for an input.
fn allowed(bytes: &[u8]) -> u64 {
    MAX_FACTOR * bytes.len() as u64 + MAX_EXTRA_BYTES
}

/// Replacements for numbers, lengths and texts.
const EDGE_CASES: [&[u8]; 16] = [
    b"0",
    b"-1",
    b"4294967295",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551615",
    b"1e999",
    b"null",
    b"\"",
    b"[[",
    b"{\"",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\0",
    b"\0\0\0\x80",
    b"../",
    b"\xf0\x9f\x98\x80",
];

/// Picks one of `inputs` and mutates it randomly.
fn mutated(inputs: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = inputs[random.usize(..inputs.len())].clone();
    for _ in 0..random.usize(1..8) {
        let place = random.usize(..=bytes.len());
        let end = (place + random.usize(..16)).min(bytes.len());
        match random.u8(..7) {
            0 if place < bytes.len() => bytes[place] ^= 1 << random.u8(..8),
            1 if place < bytes.len() => bytes[place] = random.u8(..),
            2 => drop(bytes.splice(
                place..end,
                EDGE_CASES[random.usize(..EDGE_CASES.len())].iter().copied(),
            )),
            3 => drop(bytes.drain(place..end)),
            4 => {
                let again = bytes[place..end].repeat(random.usize(1..64));
                drop(bytes.splice(place..place, again));
            }
            5 => {
                let other = &inputs[random.usize(..inputs.len())];
                let start = random.usize(..=other.len());
                drop(bytes.splice(place.., other[start..].iter().copied()));
            }
            // Replaces a number.
            _ => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let Some(start) = bytes[place..]
                    .iter()
                    .position(is_digit)
                    .map(|at| place + at)
                else {
                    continue;
                };
                let length = bytes[start..]
                    .iter()
                    .take_while(|byte| is_digit(byte))
                    .count();
                drop(bytes.splice(
                    start..start + length,
                    EDGE_CASES[random.usize(..7)].iter().copied(),
                ));
            }
        }
    }
    bytes
}
