//! Runs each reader with its inputs in `fuzz/corpus`, and with mutated ones.

use std::{
    env, fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    time::Instant,
};

use crate::{READERS, handle};

fn inputs(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../corpus")
        .join(name);
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    files
        .map(|file| file.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn the_corpus_is_handled() {
    for (name, reader) in READERS {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for (path, bytes) in inputs {
            // The first call may initialize statics.
            reader(&bytes);
            handle(&path.display().to_string(), reader, &bytes);
        }
    }
}

/// A tenth of a second per reader, or `FUZZ_SECONDS`. `make fuzz` is guided by coverage and reaches more. A mutated input
/// that is not handled is in the folder for temporary files.
#[test]
fn mutated_inputs_are_handled() {
    let seconds = env::var("FUZZ_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(0.1);
    for (name, reader) in READERS {
        let inputs: Vec<Vec<u8>> = inputs(name).into_iter().map(|(_, bytes)| bytes).collect();
        let (started, mut count, mut random) = (Instant::now(), 0, fastrand::Rng::with_seed(9));
        while started.elapsed().as_secs_f64() < seconds {
            let bytes = mutated(&inputs, &mut random);
            let began = Instant::now();
            let is_fine = catch_unwind(|| handle(name, reader, &bytes)).is_ok();
            if !is_fine || began.elapsed().as_secs() > 10 {
                let path = env::temp_dir().join(format!("{name}-{count}"));
                fs::write(&path, &bytes).unwrap();
                panic!("{name}: {:?} for {}", began.elapsed(), path.display());
            }
            count += 1;
        }
    }
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
