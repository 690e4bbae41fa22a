//! Damaged job inputs: single flipped bits, and truncated files.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, write::GzEncoder};
use kivu_jobs::{Ended, Report, Status};

use crate::{
    batch::names,
    jobs::{job, wait},
    models::fixtures,
};

fn lines() -> Vec<u8> {
    let line = |row: u64| {
        format!(
            "{{\"id\": {row}, \"text\": \"the cat {}\"}}\n",
            "sat ".repeat(row as usize % 5)
        )
    };
    (0..100).map(line).collect::<String>().into_bytes()
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

/// Output from a job on a file with this name.
fn written(name: &str, bytes: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] =
        [name.to_owned(), format!("out-{name}")].map(|name| folder.path().join(name));
    fs::write(&input, bytes).unwrap();
    wait(job(&input, &output).run()).unwrap();
    fs::read(output).unwrap()
}

/// File names and contents in formats that have an end marker and checksums.
fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let lines = lines();
    let mut inputs = vec![("a.jsonl.gz", gzip(&[&lines[..1000], &lines[1000..]]))];
    // Kivu's outputs have checksums.
    inputs.push(("a.jsonl.zst", written("a.jsonl.zst", &lines)));
    for name in ["checksums.parquet", "checksums-v2.parquet"] {
        inputs.push((
            name,
            fs::read(fixtures().join("parquet").join(name)).unwrap(),
        ));
    }
    inputs
}

/// Runs a job on a damaged file: whatever the result, only a report is left.
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
    assert_eq!(
        report.status == Status::Finished,
        written.is_some(),
        "{report:?}"
    );
    let others = [
        name.to_owned(),
        output.clone(),
        format!("{output}.report.json"),
    ];
    assert!(
        names(folder).iter().all(|name| others.contains(name)),
        "{:?}",
        names(folder)
    );
    (report, written)
}

/// A seeded random number generator (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn a_job_on_a_compressed_file_with_a_flipped_bit_has_the_same_output_or_none() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in inputs()
        .into_iter()
        .filter(|(name, _)| !name.ends_with(".parquet"))
    {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let (_, expected) = report_of(&folder, name, &bytes);
        let mut state = 1;
        for _ in 0..10 {
            let bit = (next(&mut state) % (8 * bytes.len() as u64)) as usize;
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (report, output) = report_of(&folder, name, &damaged);
            assert!(
                output.is_none() || output == expected,
                "bit {bit} of {name}: {report:?}"
            );
        }
    }
}

#[test]
fn a_file_that_ends_early_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in inputs() {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let mut state = 2;
        for _ in 0..5 {
            let length = (next(&mut state) % bytes.len() as u64) as usize;
            let (report, _) = report_of(&folder, name, &bytes[..length]);
            assert_eq!(
                report.status,
                Status::Failed,
                "{length} bytes of {name}: {report:?}"
            );
        }
    }
}
