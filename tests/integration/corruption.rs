//! Damaged inputs of jobs: single flipped bits, and files that end early.

use std::{env, fmt, fs, io::Write, ops::Range, path::Path};

use flate2::{Compression, write::GzEncoder};
use kivu::batch::{Ended, Report, Status};

use crate::{
    batch::{job, names, wait},
    models::fixtures,
};

/// The flips per file; `FLIPS` is another number.
const FLIPS: u64 = 40;

/// A file, and the bytes whose damage a checksum detects.
struct Input {
    name: &'static str,
    bytes: Vec<u8>,
    checked: Vec<Range<usize>>,
}

/// What became of damaged inputs.
#[derive(Default)]
struct Counts {
    failed: u64,
    same: u64,
    other_rows: u64,
    other: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failed, same, other_rows, other } = self;
        write!(
            f,
            "{failed} failed, {same} same output, {other_rows} with errors of rows, {other} other output"
        )
    }
}

fn lines() -> Vec<u8> {
    let line =
        |row: u64| format!("{{\"id\": {row}, \"text\": \"the cat {}\"}}\n", "sat ".repeat(row as usize % 5));
    (0..100).map(line).collect::<String>().into_bytes()
}

fn table() -> Vec<u8> {
    let line = |row: u64| format!("{row},\"the cat, {}\",x\n", "sat ".repeat(row as usize % 5));
    format!("id,text,more\n{}", (0..100).map(line).collect::<String>()).into_bytes()
}

/// A gzip file with a member for each part.
pub(crate) fn gzip(parts: &[&[u8]]) -> Vec<u8> {
    let member = |part: &&[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap()
    };
    parts.iter().flat_map(member).collect()
}

/// The output of a job on a file with this name.
fn written(name: &str, bytes: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = [name.to_owned(), format!("out-{name}")].map(|name| folder.path().join(name));
    fs::write(&input, bytes).unwrap();
    wait(job(&input, &output).run()).unwrap();
    fs::read(output).unwrap()
}

fn inputs() -> Vec<Input> {
    let (lines, table) = (lines(), table());
    let packed = gzip(&[&lines[..1000], &lines[1000..]]);
    // Outputs of Kivu have checksums.
    let frames = cfg!(feature = "zstd").then(|| written("a.jsonl.zst", &lines));
    let mut inputs = vec![
        Input { name: "a.jsonl", bytes: lines, checked: Vec::new() },
        Input { name: "a.csv", bytes: table, checked: Vec::new() },
        Input { name: "a.jsonl.gz", checked: vec![0..packed.len()], bytes: packed },
    ];
    inputs.extend(frames.map(|bytes| Input { name: "a.jsonl.zst", checked: vec![0..bytes.len()], bytes }));
    if cfg!(feature = "parquet") {
        for name in ["checksums.parquet", "checksums-v2.parquet"] {
            let bytes = fs::read(fixtures().join("parquet").join(name)).unwrap();
            inputs.push(Input { name, bytes, checked: Vec::new() });
        }
    }
    inputs
}

/// Runs a job on a damaged file: any result is a report, and nothing else is left.
fn report_of(folder: &Path, name: &str, bytes: &[u8]) -> (Report, Option<Vec<u8>>) {
    let output = format!("out-{name}");
    let [input, out] = [name, &output].map(|name| folder.join(name));
    fs::write(&input, bytes).unwrap();
    let _ = fs::remove_file(&out);
    let mut job = job(&input, &out);
    job.existing.overwrite = true;
    let report = match wait(job.run()) {
        Ok(Ended::Done(report)) => *report,
        other => panic!("expected a report for a damaged {name}, but found {other:?}"),
    };
    let written = fs::read(&out).ok();
    assert_eq!(report.status == Status::Finished, written.is_some(), "{report:?}");
    let others = [name.to_owned(), output.clone(), format!("{output}.report.json")];
    assert!(names(folder).iter().all(|name| others.contains(name)), "{:?}", names(folder));
    (report, written)
}

/// A generator of numbers with a seed (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn a_flipped_bit_is_never_an_undetected_change_of_checked_bytes() {
    let flips = env::var("FLIPS").ok().and_then(|flips| flips.parse().ok()).unwrap_or(FLIPS);
    let folder = tempfile::tempdir().unwrap();
    for Input { name, bytes, checked } in inputs() {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let (_, expected) = report_of(&folder, name, &bytes);
        let (mut counts, mut state) = (Counts::default(), 1);
        for _ in 0..flips {
            let bit = (next(&mut state) % (8 * bytes.len() as u64)) as usize;
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (report, output) = report_of(&folder, name, &damaged);
            let is_checked = checked.iter().any(|range| range.contains(&(bit / 8)));
            let is_same = output == expected;
            match report.status {
                Status::Failed => counts.failed += 1,
                Status::Finished if is_same => counts.same += 1,
                Status::Finished => {
                    assert!(!is_checked, "bit {bit} of {name}: {report:?}");
                    println!("{name} bit {bit} (byte {}) of {}: {:?}", bit / 8, bytes.len(), report.progress);
                    let has_errors = !report.progress.errors.is_empty();
                    *(if has_errors { &mut counts.other_rows } else { &mut counts.other }) += 1;
                }
            }
        }
        println!("{name}: {flips} flips: {counts}");
    }
}

#[test]
fn a_file_that_ends_early_is_refused_where_the_format_has_an_end() {
    let folder = tempfile::tempdir().unwrap();
    for Input { name, bytes, .. } in inputs() {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let has_end = !matches!(name, "a.jsonl" | "a.csv");
        let mut state = 2;
        for _ in 0..10 {
            let length = (next(&mut state) % bytes.len() as u64) as usize;
            let (report, _) = report_of(&folder, name, &bytes[..length]);
            assert!(!has_end || report.status == Status::Failed, "{length} bytes of {name}: {report:?}");
        }
    }
}
