//! Files as jobs read and write them.

use std::{
    fs,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use bytes::Bytes;
use kivu::{Error, Result};
use kivu_jobs::{
    input::opened::OpenInput,
    output::{
        answer::{Cell, RowError, RowResult, label_columns},
        output_form::OutputForm,
        pieces::{Pieces, Shape},
    },
    rows::{CHUNK_ROWS, Chunk, Footers, Layout, RowReader},
};
use parquet::arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

const MIN_PART_BYTES: usize = 2048;
const FLIPS: usize = 100;

/// A file in `tests/fixtures/parquet`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/parquet")
        .join(name)
}

/// A file's rows, one by one.
pub fn rows(file: Vec<u8>) -> Vec<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap();
    builder
        .with_batch_size(1)
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

/// Writes a file with a column `text`.
fn write<'a>(path: &Path, texts: impl Iterator<Item = Option<&'a str>>) {
    let column: ArrayRef = Arc::new(StringArray::from_iter(texts));
    let batch = RecordBatch::try_from_iter_with_nullable([("text", column, true)]).unwrap();
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn read(path: &Path, range: Option<Range<u64>>) -> Result<Box<dyn RowReader>> {
    let format = crate::parquet().format()?;
    format.reader(OpenInput::file(path)?, &Layout::default(), range)
}

type Texts = Vec<Result<String, RowError>>;

fn texts(mut reader: Box<dyn RowReader>) -> Result<Texts> {
    let mut texts = Vec::new();
    while let Some(chunk) = reader.next()? {
        texts.extend(chunk.texts);
    }
    Ok(texts)
}

/// The chunks that a process finishes, and whether it sends parts.
type Cut = (usize, bool);

/// The parts of an output that several processes write, each from the state of the one before. Each cut ends a process.
fn parts(path: &Path, cuts: &[Cut]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let (mut waiting, mut footers, mut done) = (Vec::new(), json!([]), 0);
    for (chunks, sends) in cuts.iter().copied().chain([(usize::MAX, true)]) {
        let mut reader = read(path, None).unwrap();
        let shape = Shape::of(reader.as_ref(), OutputForm::default(), label_columns());
        let saved: Footers = serde_json::from_value(footers).unwrap();
        let mut pieces = match done {
            0 => Pieces::new(shape),
            _ => Pieces::resumed(shape, waiting, saved),
        };
        reader.skip(done).unwrap();
        for _ in 0..chunks {
            let Some(Chunk { texts, rows }) = reader.next().unwrap() else {
                parts.push(pieces.take_last().unwrap());
                return parts;
            };
            done += texts.len() as u64;
            let label = |text: String| {
                vec![
                    Cell::Text(text.as_str().into()),
                    Cell::Number(text.len() as f32),
                ]
            };
            let mut results: Vec<RowResult> =
                texts.into_iter().map(|text| text.map(label)).collect();
            pieces.write(rows, &mut results).unwrap();
            if sends {
                parts.extend(pieces.take_part(MIN_PART_BYTES).unwrap());
            }
        }
        let state = pieces.state().unwrap();
        (waiting, footers) = (state.0.to_vec(), json!(state.1));
    }
    unreachable!("the last process reads to the end")
}

/// An output, whose parts are large enough.
fn answered(path: &Path, cuts: &[Cut]) -> Vec<u8> {
    let parts = parts(path, cuts);
    let (_, before) = parts.split_last().unwrap();
    let sizes: Vec<usize> = before.iter().map(Vec::len).collect();
    assert!(
        sizes.iter().all(|size| *size >= MIN_PART_BYTES),
        "{sizes:?}"
    );
    parts.concat()
}

#[test]
fn parts_are_large_enough_after_compression() {
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..4000)
        .map(|number| format!("a text that repeats, {number}"))
        .collect();
    let path = folder.path().join("a.parquet");
    write(&path, texts.iter().map(|text| Some(text.as_str())));
    for cuts in [&[][..], &[(9, false), (20, true)], &[(30, true)]] {
        assert!(parts(&path, cuts).len() > 2);
        assert_eq!(rows(answered(&path, cuts)).len(), texts.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn interrupted_jobs_write_the_same_rows(
        texts in vec("\\PC{0,12}|[a-c\",\n]{0,8}", 1..6 * CHUNK_ROWS),
        cuts in vec((0..4_usize, any::<bool>()), 0..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        // Some rows have no text.
        write(&path, texts.iter().map(|text| (text.len() % 5 != 4).then_some(text.as_str())));
        prop_assert_eq!(rows(answered(&path, &cuts)), rows(answered(&path, &[])));
    }
}

#[test]
fn ranges_have_the_rows_of_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let count = 300;
    let expected: Vec<_> = (0..count)
        .map(|number| (number % 5 > 0).then(|| format!("text {number}")))
        .collect();
    write(&path, expected.iter().map(Option::as_deref));
    let whole = read(&path, None).unwrap();
    assert_eq!(whole.rows(), Some(count));
    let whole = texts(whole).unwrap();
    let found: Vec<_> = whole.iter().map(|text| text.clone().ok()).collect();
    assert_eq!(found, expected);
    let ranges = (0..count).step_by(CHUNK_ROWS).flat_map(|first| {
        let range = first..count.min(first + CHUNK_ROWS as u64);
        let texts = texts(read(&path, Some(range.clone())).unwrap()).unwrap();
        assert_eq!(texts.len() as u64, range.end - range.start);
        texts
    });
    assert_eq!(ranges.collect::<Vec<_>>(), whole);
}

/// Footers have no checksum: a bit that makes a column required, for example, is not always noticed.
#[test]
fn flipped_bits_of_pages_and_their_headers_are_refused_or_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for name in ["checksums.parquet", "checksums-v2.parquet"] {
        let bytes = fs::read(fixture(name)).unwrap();
        let end = bytes.len() - 8;
        let footer = u32::from_le_bytes(*bytes[end..].first_chunk().unwrap()) as usize;
        let expected = read(&fixture(name), None).and_then(texts).unwrap();
        let path = folder.path().join(name);
        for _ in 0..FLIPS {
            let bit = random.usize(..8 * (end - footer));
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            // Jobs convert a reader's panic into an error.
            match catch_unwind(AssertUnwindSafe(|| read(&path, None).and_then(texts))) {
                Ok(Ok(found)) => assert_eq!(found, expected, "bit {bit} of {name}"),
                Ok(Err(error)) => assert!(
                    matches!(error, Error::Invalid { .. }),
                    "bit {bit} of {name}: {error:?}"
                ),
                Err(_) => {}
            }
        }
    }
}
