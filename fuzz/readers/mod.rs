//! Parsers of external input, by name, for fuzzing. Not part of the API.
//!
//! A reader returns for any input: it neither panics nor fails an assertion, and takes at most [`MAX_FACTOR`] times the
//! memory of its input and [`MAX_EXTRA_BYTES`]. The fuzzer searches for inputs that violate this; the tests below
//! replay those that it found.
//!
//! These files are modules of the library, since they call private functions: `src/` declares them with `#[path]`, for
//! tests and for the feature `fuzzing`.

use std::collections::BTreeMap;

use crate::{api, backend::triton, batch, build, config::Config, repository::Manifest, tokenizer::Tokenizer};

/// The maximum memory of a reader as a multiple of its input's size.
pub const MAX_FACTOR: u64 = 10;
/// The additional memory that a reader may take.
pub const MAX_EXTRA_BYTES: u64 = 32 * 1024 * 1024;

/// Parses external input.
pub type Reader = fn(&[u8]);

/// All readers, with the names of their folders in `fuzz/corpus`.
pub const READERS: [(&str, Reader); 22] = [
    ("checkpoint", build::fuzzing::checkpoint),
    ("config", config),
    ("csv", batch::fuzzing::csv),
    ("event", batch::fuzzing::event),
    ("graph", build::fuzzing::graph),
    ("grpc", triton::fuzzing::grpc),
    ("http", triton::fuzzing::http),
    ("hub", build::fuzzing::hub),
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

/// The reader with this name.
pub fn reader(name: &str) -> Option<Reader> {
    READERS.iter().find(|(known, _)| *known == name).map(|(_, reader)| *reader)
}

/// `kivu.toml`, and after a line of dashes an environment.
fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, environment) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    let variables: BTreeMap<_, _> =
        variables.map(|(name, value)| (format!("KIVU_{name}"), value.to_owned())).collect();
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("kivu.toml");
    if std::fs::write(&path, file).is_ok() {
        // An error is a valid outcome, here and below.
        let _ = Config::load(Some(&path), &variables);
    }
}

/// A manifest: serializing the parsed manifest and parsing it again gives the same.
fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(manifest) = Manifest::parse(text) else { return };
    for name in manifest.files.iter().map(|file| &file.name).chain([&manifest.graph]) {
        assert!(
            !name.starts_with('/') && !name.split('/').any(|part| part == ".."),
            "a path out of the bundle: {name}"
        );
    }
    let Ok(written) = manifest.to_text() else { return };
    let again = Manifest::parse(&written).and_then(|manifest| manifest.to_text());
    assert_eq!(again.ok(), Some(written), "the manifest changed");
}

/// A `tokenizer.json`, directly and converted to a trie.
fn tokenizer(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes) {
        tokenize(&tokenizer);
    }
    if let Ok(Some(made)) = Tokenizer::compile(bytes) {
        pieces(&made);
    }
}

/// A tokenizer with a trie.
fn pieces(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_compiled(bytes.to_vec()) {
        tokenize(&tokenizer);
    }
}

fn tokenize(tokenizer: &Tokenizer) {
    for text in ["Hello, wörld! [SEP] a\u{b}b", "", "\u{0}\u{10ffff} 漢字 👩‍👩‍👧"] {
        if let Ok(tokens) = tokenizer.tokens(text, true) {
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            let _ = tokenizer.decode(&ids, true);
        }
        if let (Ok(tokens), Ok(ids)) = (tokenizer.tokens(text, false), tokenizer.ids(text)) {
            assert!(tokens.iter().map(|token| token.id).eq(ids), "other ids without spans");
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
    fn the_corpus_is_handled() {
        for (name, reader) in READERS {
            let inputs = corpus(name);
            assert!(!inputs.is_empty(), "{name} has no inputs");
            for (path, bytes) in inputs {
                // The first call may initialize statics.
                reader(&bytes);
                let taken = allocation_counter::measure(|| reader(&bytes)).bytes_max;
                let allowed = MAX_FACTOR * bytes.len() as u64 + MAX_EXTRA_BYTES;
                assert!(taken <= allowed, "{} takes {taken} bytes", path.display());
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

    /// One of `inputs` with random mutations.
    fn mutated(inputs: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = inputs[random.usize(..inputs.len())].clone();
        for _ in 0..random.usize(1..8) {
            let place = random.usize(..=bytes.len());
            let end = (place + random.usize(..16)).min(bytes.len());
            match random.u8(..7) {
                0 if place < bytes.len() => bytes[place] ^= 1 << random.u8(..8),
                1 if place < bytes.len() => bytes[place] = random.u8(..),
                2 => drop(
                    bytes.splice(place..end, EDGE_CASES[random.usize(..EDGE_CASES.len())].iter().copied()),
                ),
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
                    let Some(start) = bytes[place..].iter().position(is_digit).map(|at| place + at) else {
                        continue;
                    };
                    let length = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
                    drop(bytes.splice(start..start + length, EDGE_CASES[random.usize(..7)].iter().copied()));
                }
            }
        }
        bytes
    }

    /// Each reader runs for a tenth of a second, or for `FUZZ_SECONDS`. `make fuzz` is guided by coverage and reaches more.
    #[test]
    fn mutated_inputs_are_handled() {
        let seconds =
            std::env::var("FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0.1);
        for (name, reader) in READERS {
            let inputs: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
            let (started, mut count, mut random) = (Instant::now(), 0, fastrand::Rng::with_seed(9));
            while started.elapsed().as_secs_f64() < seconds {
                let bytes = mutated(&inputs, &mut random);
                let began = Instant::now();
                let taken =
                    std::panic::catch_unwind(|| allocation_counter::measure(|| reader(&bytes)).bytes_max);
                let is_fine = taken
                    .as_ref()
                    .is_ok_and(|taken| *taken <= MAX_FACTOR * bytes.len() as u64 + MAX_EXTRA_BYTES);
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
