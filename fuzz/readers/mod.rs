//! Everything that reads bytes from outside, by name, for tools that feed it any bytes. No part of the interface.
//!
//! A reader returns, whatever it is given: it neither panics nor fails an assertion, and it takes no more memory than
//! [`MOST_TIMES`] the bytes it was given and [`MOST_BYTES`] besides. `fuzz/` looks for inputs that break this, and
//! the test below keeps what it found.

use std::collections::BTreeMap;

use crate::{api, backend::triton, batch, build, config::Config, repository::Manifest, tokenizer::Tokenizer};

/// How many times its input's size a reader may take.
pub const MOST_TIMES: u64 = 10;
/// What it may take besides.
pub const MOST_BYTES: u64 = 32 * 1024 * 1024;

/// Reads bytes from outside.
pub type Reader = fn(&[u8]);

/// Every reader, with the name that its inputs lie under.
pub const READERS: [(&str, Reader); 20] = [
    ("config", config),
    ("csv", batch::fuzzing::csv),
    ("event", batch::fuzzing::event),
    ("graph", build::fuzzing::graph),
    ("grpc", triton::fuzzing::grpc),
    ("http", triton::fuzzing::http),
    ("json_lines", batch::fuzzing::json_lines),
    ("key", batch::fuzzing::key),
    ("keys", api::fuzzing::keys),
    ("manifest", manifest),
    ("packed", api::fuzzing::packed_request),
    ("pieces", pieces),
    ("recipe", build::fuzzing::recipe),
    ("request", api::fuzzing::request),
    ("sentencepiece", build::fuzzing::pieces_of_translation),
    ("student", build::fuzzing::student),
    ("tensors", api::fuzzing::tensors),
    ("tokenizer", tokenizer),
    ("translation_config", build::fuzzing::translation_config),
    ("weights", build::fuzzing::weights),
];

/// The reader called `name`.
pub fn reader(name: &str) -> Option<Reader> {
    READERS.iter().find(|(known, _)| *known == name).map(|(_, reader)| *reader)
}

/// `kivu.toml`, and an environment behind a line of dashes.
fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, environment) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    let variables: BTreeMap<_, _> =
        variables.map(|(name, value)| (format!("KIVU_{name}"), value.to_owned())).collect();
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("kivu.toml");
    if std::fs::write(&path, file).is_ok() {
        // What cannot be used is told by an error.
        let _ = Config::load(Some(&path), &variables);
    }
}

/// A bundle's manifest: what was read is written so that it is read again.
fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(manifest) = Manifest::parse(text) else { return };
    for name in manifest.files.iter().map(|file| &file.name).chain([&manifest.graph]) {
        assert!(!name.starts_with('/') && !name.split('/').any(|part| part == ".."), "a way out: {name}");
    }
    let Ok(written) = manifest.to_text() else { return };
    let again = Manifest::parse(&written).and_then(|manifest| manifest.to_text());
    assert_eq!(again.ok(), Some(written), "a manifest that is written as another");
}

/// A `tokenizer.json`, as it is and in the form that is loaded quickly.
fn tokenizer(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes) {
        tokenise(&tokenizer);
    }
    if let Ok(Some(made)) = Tokenizer::compile(bytes) {
        pieces(&made);
    }
}

/// A tokenizer in the form that is loaded quickly.
fn pieces(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_compiled(bytes.to_vec()) {
        tokenise(&tokenizer);
    }
}

fn tokenise(tokenizer: &Tokenizer) {
    for text in ["Hello, wörld!", "", "\u{0}\u{10ffff} 漢字 👩‍👩‍👧"] {
        if let Ok(tokens) = tokenizer.tokens(text, true) {
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            // What has no text is told by an error.
            let _ = tokenizer.decode(&ids, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, time::Instant};

    use super::*;

    fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        files.map(|file| file.unwrap().path()).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    #[test]
    fn what_was_found_stays_mended() {
        for (name, reader) in READERS {
            let inputs = corpus(name);
            assert!(!inputs.is_empty(), "{name} has no inputs");
            for (path, bytes) in inputs {
                // The first time something is made that stays.
                reader(&bytes);
                let taken = allocation_counter::measure(|| reader(&bytes)).bytes_max;
                let allowed = MOST_TIMES * bytes.len() as u64 + MOST_BYTES;
                assert!(taken <= allowed, "{} takes {taken} bytes", path.display());
            }
        }
    }

    /// What numbers, lengths and texts are damaged to.
    const ODD: [&[u8]; 16] = [
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

    /// One of `inputs`, damaged a little or a lot.
    fn damaged(inputs: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = inputs[random.usize(..inputs.len())].clone();
        for _ in 0..random.usize(1..8) {
            let place = random.usize(..=bytes.len());
            let end = (place + random.usize(..16)).min(bytes.len());
            match random.u8(..7) {
                0 if place < bytes.len() => bytes[place] ^= 1 << random.u8(..8),
                1 if place < bytes.len() => bytes[place] = random.u8(..),
                2 => drop(bytes.splice(place..end, ODD[random.usize(..ODD.len())].iter().copied())),
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
                // A number becomes another one.
                _ => {
                    let is_digit = |byte: &u8| byte.is_ascii_digit();
                    let Some(start) = bytes[place..].iter().position(is_digit).map(|at| place + at) else {
                        continue;
                    };
                    let length = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
                    drop(bytes.splice(start..start + length, ODD[random.usize(..7)].iter().copied()));
                }
            }
        }
        bytes
    }

    /// For a moment, or for the seconds that `FUZZ_SECONDS` says, each. `make fuzz` looks where it gets to, and gets further.
    #[test]
    fn damaged_inputs_are_survived() {
        let seconds =
            std::env::var("FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0.1);
        for (name, reader) in READERS {
            let inputs: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
            let (started, mut count, mut random) = (Instant::now(), 0, fastrand::Rng::with_seed(9));
            while started.elapsed().as_secs_f64() < seconds {
                let bytes = damaged(&inputs, &mut random);
                let began = Instant::now();
                let taken =
                    std::panic::catch_unwind(|| allocation_counter::measure(|| reader(&bytes)).bytes_max);
                let is_fine =
                    taken.as_ref().is_ok_and(|taken| *taken <= MOST_TIMES * bytes.len() as u64 + MOST_BYTES);
                if !is_fine || began.elapsed().as_secs() > 10 {
                    let path = std::env::temp_dir().join(format!("{name}-{count}"));
                    fs::write(&path, &bytes).unwrap();
                    panic!("{name}: {taken:?} bytes in {:?} for {}", began.elapsed(), path.display());
                }
                count += 1;
            }
            eprintln!("{name}: {count} inputs in {:?}", started.elapsed());
        }
    }
}
