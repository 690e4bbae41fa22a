//! Damaged inputs: in a format with checksums, a flipped bit must cause an error or change nothing, and the error
//! must be permanent.

use std::{env, fmt, fs, io::Write, path::Path};

use super::{
    compression::Compression,
    opened::{BytesRead, OpenInput},
};
use crate::{
    job::{
        is_permanent,
        process::{catch_panic, open_rows},
    },
    output::answer::RowError,
    rows::{Layout, Parquet},
};
use kivu::Result;

/// Default number of flipped bits per file; the environment variable `FLIPS` overrides it.
const FLIPS: u64 = 100;

/// Outcomes of reading damaged files.
#[derive(Debug, Default)]
struct Counts {
    refused: u64,
    unchanged: u64,
    /// Files with row errors.
    reported: u64,
    /// Files with other texts.
    changed: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            refused,
            unchanged,
            reported,
            changed,
        } = self;
        write!(
            f,
            "{refused} refused, {unchanged} unchanged, {reported} with row errors, {changed} other texts"
        )
    }
}

type Texts = Vec<Result<String, RowError>>;

/// A file's texts, as a job reads them.
fn texts(path: &Path) -> Result<Texts> {
    catch_panic(|| {
        let input = OpenInput::file(path)?;
        let (layout, gauge) = (Layout::default(), BytesRead::default());
        let format = input.format(None, &layout)?;
        let mut reader = open_rows(&input, format, &layout, &gauge, Parquet::default())?;
        let mut texts = Vec::new();
        while let Some(chunk) = reader.next()? {
            texts.extend(chunk.texts);
        }
        Ok(texts)
    })
}

/// Flips bits in a file with this name, one at a time.
fn flipped(name: &str, bytes: &[u8], bits: impl Iterator<Item = usize>) -> Counts {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let expected = texts(&path).unwrap();
    let mut counts = Counts::default();
    for bit in bits {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, damaged).unwrap();
        match texts(&path) {
            Err(error) => {
                assert!(is_permanent(&error), "bit {bit} of {name}: {error:?}");
                counts.refused += 1;
            }
            Ok(found) if found == expected => counts.unchanged += 1,
            Ok(found) if found.iter().any(Result::is_err) => counts.reported += 1,
            Ok(_) => counts.changed += 1,
        }
    }
    counts
}

/// Bit positions in `bytes` bytes (SplitMix64).
fn some_bits(bytes: usize) -> impl Iterator<Item = usize> {
    let flips = env::var("FLIPS")
        .ok()
        .and_then(|flips| flips.parse().ok())
        .unwrap_or(FLIPS);
    let mut state = 1_u64;
    (0..flips).map(move |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % (8 * bytes as u64)) as usize
    })
}

fn lines() -> Vec<u8> {
    let line = |row: usize| {
        format!(
            "{{\"id\": {row}, \"text\": \"the cat {}\"}}\n",
            "sat ".repeat(row % 5)
        )
    };
    (0..100).map(line).collect::<String>().into_bytes()
}

fn table() -> Vec<u8> {
    let line = |row: usize| format!("{row},\"the cat, {}\",x\n", "sat ".repeat(row % 5));
    format!("id,text,more\n{}", (0..100).map(line).collect::<String>()).into_bytes()
}

/// Two members or frames.
fn packed(compression: Compression, contents: &[u8]) -> Vec<u8> {
    let (first, second) = contents.split_at(contents.len() / 3);
    let pack = |part: &[u8]| {
        let mut packer = compression.pack().unwrap();
        packer.append(|output| output.write_all(part)).unwrap();
        packer.finish().unwrap()
    };
    [pack(first), pack(second)].concat()
}

#[test]
fn flipped_bits_of_text_are_refused_or_change_a_row() {
    for (name, bytes) in [("a.jsonl", lines()), ("a.csv", table())] {
        let counts = flipped(name, &bytes, some_bits(bytes.len()));
        eprintln!("{name}: {counts}");
        assert!(counts.reported > 0, "{name}: {counts}");
    }
}

#[test]
fn flipped_bits_of_compressed_files_are_refused_or_change_nothing() {
    for (contents, format) in [(lines(), "jsonl"), (table(), "csv")] {
        for (ending, compression) in [("gz", Compression::Gzip), ("zst", Compression::Zstd)] {
            let name = format!("a.{format}.{ending}");
            let bytes = packed(compression, &contents);
            let counts = flipped(&name, &bytes, some_bits(bytes.len()));
            eprintln!("{name}: {counts}");
            assert_eq!(
                (counts.reported, counts.changed),
                (0, 0),
                "{name}: {counts}"
            );
        }
    }
}
