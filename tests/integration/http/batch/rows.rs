//! Job input and output names: text column, CSV delimiter, compression, damaged files.

use std::{fs, path::Path, process::Command};

use kivu_jobs::{Ended, Mark, Report, Status};

use super::corruption::gzip;
use crate::{
    batch::{kivu, names, parameters_of, program, stopped, text},
    jobs::{finished, job, run},
    models::{fixtures, library_path},
};

/// Report and output for a job on a file.
fn processed(input: &str, contents: &[u8], output: &str) -> (Report, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = [input, output].map(|name| folder.path().join(name));
    fs::write(&input, contents).unwrap();
    let report = finished(job(&input, &output));
    (report, fs::read(output).unwrap())
}

/// The reason why a job on a file has no output.
fn failure(input: &Path, output: &str) -> String {
    failure_and_files(input, output).0
}

/// The reason why a job on a file has no output, and the files that it leaves, of which only a report is permitted.
fn failure_and_files(input: &Path, output: &str) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join(output);
    let report = run(job(input, &output)).unwrap();
    assert_eq!(report.status, Status::Failed);
    // Neither a checkpoint nor a part remains.
    let name = output.file_name().unwrap().to_str().unwrap();
    let left = names(folder.path());
    assert!(
        left.iter()
            .all(|left| *left == format!("{name}.report.json")),
        "{left:?}"
    );
    (report.error.unwrap(), left)
}

#[test]
fn the_report_names_the_column_of_texts() {
    let rows = "{\"id\": \"a1\", \"review\": null}\n{\"id\": \"a2\", \"review\": \"awful\"}\n";
    let (report, output) = processed("a.jsonl", rows.as_bytes(), "b.jsonl");
    assert_eq!(report.text_column.as_deref(), Some("review"));
    let output = String::from_utf8(output).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert!(
        lines[0].ends_with("\"error\":\"expected text in `review`, but found null\"}"),
        "{}",
        lines[0]
    );
    assert!(lines[1].contains("\"embedding\":["), "{}", lines[1]);
    let (report, _) = processed("a.csv", b"review\nawful\n", "b.csv");
    assert_eq!(report.text_column.as_deref(), Some("review"));
    // The only column's name may be a text.
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("a.csv");
    fs::write(&input, "opinion\nawful\n").unwrap();
    insta::assert_snapshot!(failure(&input, "b.csv"), @"expected a column whose name is known, but found only another one; if it is the texts' column, name it with `column` (`--column`), or if the first line is a text, set `header` to `false` (`--no-header`)");
    let (report, _) = processed("a.jsonl", b"{\"id\": \"a1\"}\n", "b.jsonl");
    assert_eq!(report.text_column.as_deref(), Some("id"));
}

#[test]
fn the_members_of_a_gzip_file_do_not_change_the_delimiter() {
    let table = "\"a,b,c\";text;d,e\n1;hello;2\n";
    let (_, expected) = processed("a.csv", table.as_bytes(), "b.csv");
    for place in 1..table.len() {
        let (first, second) = table.as_bytes().split_at(place);
        let (_, output) = processed("a.csv.gz", &gzip(&[first, second]), "b.csv");
        assert_eq!(
            output, expected,
            "two members, the first with {place} bytes"
        );
    }
}

#[test]
fn a_job_keeps_the_column_of_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, uncut] = ["in", "out", "uncut"].map(|name| folder.path().join(name));
    let checkpoint = folder.path().join(".out.kivu-checkpoint");
    let other = |row: usize| format!("{{\"other\": \"the dog\", \"text\": \"the cat {row}\"}}\n");
    fs::write(&input, (0..3000).map(other).collect::<String>()).unwrap();
    finished(job(&input, &uncut));
    assert!(matches!(
        stopped(job(&input, &output)).unwrap(),
        Ended::Unfinished(_)
    ));
    // Simulates a checkpoint by a version that detected another layout.
    let saved = text(&checkpoint);
    let (_, contents) = saved.split_once('\n').unwrap();
    let replaced = contents.replacen("\"column\":\"text\"", "\"column\":\"other\"", 1);
    assert_ne!(replaced, contents);
    let sealed = format!("{}\n{replaced}", blake3::hash(replaced.as_bytes()).to_hex());
    fs::write(&checkpoint, sealed).unwrap();
    let report = finished(job(&input, &output));
    assert_eq!(
        (report.text_column.as_deref(), report.progress.rows),
        (Some("other"), 3000)
    );
    assert!(text(&output) != text(&uncut));
}

#[test]
fn the_name_of_the_output_determines_its_compression_and_must_fit_its_format() {
    let table = b"text,id\nhello,1\n";
    let (_, plain) = processed("m.csv", table, "n.csv");
    let (_, output) = processed("m.csv.gz", &gzip(&[table]), "n.csv");
    assert_eq!(output, plain);
    let (_, output) = processed("m.csv", table, "n.csv.gz");
    assert!(output.starts_with(&[0x1f, 0x8b]));
    let (_, output) = processed("m.csv", table, "n.tsv");
    assert!(output.starts_with(b"text\tid\tembedding\terror\nhello\t1\t"));
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("r.csv");
    fs::write(&input, table).unwrap();
    let (cause, left) = failure_and_files(&input, "emb.parquet");
    assert!(
        cause.starts_with("expected an output name for CSV"),
        "{cause}"
    );
    assert!(
        left.is_empty(),
        "nothing is left of a job that was refused before its first row: {left:?}"
    );
    assert!(failure(&input, "emb.jsonl.gz").ends_with("rename the output, or convert the input"));
}

#[test]
fn damaged_and_encrypted_parquet_is_refused() {
    let folder = fixtures().join("parquet");
    let cause = failure(&folder.join("encrypted-footer.parquet"), "out.parquet");
    assert!(
        cause.ends_with("but found an encrypted Parquet file; decrypt it"),
        "{cause}"
    );
    let cause = failure(&folder.join("encrypted-column.parquet"), "out.parquet");
    assert!(
        cause.starts_with("expected a Parquet file, but found one that cannot be read"),
        "{cause}"
    );
    let damaged = tempfile::tempdir().unwrap();
    let input = damaged.path().join("in.parquet");
    for name in ["checksums.parquet", "checksums-v2.parquet"] {
        let mut bytes = fs::read(folder.join(name)).unwrap();
        // Inside the second row group's pages.
        let place = bytes.len() / 2;
        bytes[place] ^= 1;
        fs::write(&input, bytes).unwrap();
        let (cause, left) = failure_and_files(&input, "out.parquet");
        assert!(
            cause.ends_with("Page CRC checksum mismatch"),
            "{name}: {cause}"
        );
        assert_eq!(left, ["out.parquet.report.json"], "of a job that had begun");
    }
}

#[test]
fn a_csv_file_that_ends_within_quotes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.csv");
    fs::write(
        &input,
        format!("id,text\n1,\"hello\n{}", "2,more\n".repeat(500)),
    )
    .unwrap();
    assert!(
        failure(&input, "out.csv")
            .contains("in the row that begins in line 2, but found the end of the file")
    );
}

#[test]
fn a_csv_file_whose_rows_cannot_be_told_apart_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1\t\"Hello\n2\tworld is bad\n3\tit is \"fine\" here\n4\tgood\n";
    for (name, rows) in [
        ("in.csv", rows.replace('\t', ",")),
        ("in.tsv", rows.to_owned()),
    ] {
        let input = folder.path().join(name);
        // The defect is after the first chunks, so that the job has begun.
        let delimiter = if name == "in.tsv" { "\t" } else { "," };
        let before = format!("0{delimiter}a\n").repeat(500);
        fs::write(&input, format!("id{delimiter}text\n{before}{rows}")).unwrap();
        let cause = failure(&input, "out");
        assert!(
            cause.starts_with("the row that begins in line 502 has text after a closing quote"),
            "{cause}"
        );
    }
}

/// A stopped job reads the rest of its file as it has read the first rows, though only those show how it is written.
#[test]
fn a_job_keeps_the_dialect_of_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, uncut] =
        ["in.csv", "out.csv", "uncut"].map(|name| folder.path().join(name));
    let row = |row: usize| format!("{row};\"the \\\"cat\\\", {}\"\r\n", "sat ".repeat(row % 5));
    let rows: Vec<String> = (0..2000).map(row).collect();
    let start = "\u{feff}sep=;\r\nid;text, all";
    fs::write(&input, format!("{start}\r\n{}", rows.concat())).unwrap();
    let job = |output| {
        let mut job = job(&input, output);
        parameters_of(&mut job).column = Some("text, all".into());
        job
    };
    let report = finished(job(&uncut));
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
    assert!(matches!(
        stopped(job(&output)).unwrap(),
        Ended::Unfinished(_)
    ));
    let saved = text(folder.path().join(".out.csv.kivu-checkpoint"));
    assert!(saved.contains("\"escape\":{\"character\":92}"), "{saved}");
    let mut other = job(&output);
    parameters_of(&mut other).csv.escape = Some(Mark::None);
    let refusal = run(other).unwrap_err().to_string();
    assert!(refusal.starts_with("the unfinished job for"), "{refusal}");
    assert_eq!(finished(job(&output)).progress.rows, 2000);
    assert!(text(&output) == text(&uncut));
    let written = text(&output);
    let lines = written
        .strip_prefix(start)
        .unwrap()
        .split_inclusive('\n')
        .skip(1);
    for (line, row) in lines.zip(&rows) {
        assert!(
            line.starts_with(row.trim_end()) && line.ends_with(";\r\n"),
            "{line}"
        );
    }
}

#[test]
fn the_program_reads_files_that_databases_write() {
    let Some((folder, bundle)) = program() else {
        return;
    };
    let [input, output] = ["in.txt", "out.txt"].map(|name| folder.path().join(name));
    let run = |contents: &str, options: &[&str]| {
        fs::write(&input, contents).unwrap();
        let options: Vec<&Path> = options.iter().map(Path::new).collect();
        let arguments = [&input, &output, Path::new("--model"), &bundle];
        let done = kivu(&[&arguments[..], &options].concat()).output().unwrap();
        let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        (done.status.code(), said)
    };
    let options = [
        "--delimiter",
        "^A",
        "--quote",
        "none",
        "--null",
        "\\N",
        "--no-header",
    ];
    let with_column = [&options[..], &["--column", "column2"]].concat();
    let (status, said) = run("1\u{1}\"good\n2\u{1}\\N\n3\u{1}bad\n", &with_column);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("  errors  1 row without a text\n"), "{said}");
    let written = text(&output);
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("1\u{1}\"good\u{1}[") && lines[0].ends_with("]\u{1}\\N"));
    assert_eq!(
        lines[1],
        "2\u{1}\\N\u{1}\\N\u{1}expected text in `column2`, but found NULL"
    );
    let (status, said) = run("1\u{1}good\n", &options);
    assert_eq!(status, Some(1));
    assert!(said.contains("but found `column1`, `column2`"), "{said}");
    let (_, said) = run("{\"text\": \"a\"}\n", &["--delimiter", ";"]);
    assert!(
        said.contains("the options for CSV have no effect on JSON Lines"),
        "{said}"
    );
    let (status, said) = run("text\na\n", &["--delimiter", "||"]);
    assert_eq!(status, Some(2));
    assert!(
        said.contains("expected an ASCII character, itself or as"),
        "{said}"
    );
}

/// A header cannot be told from a text.
#[test]
fn every_line_of_a_text_file_is_a_row() {
    const TEXTS: &str = "the, \"cat\r\n\nsat";
    let (report, output) = processed("a.txt", TEXTS.as_bytes(), "b.jsonl");
    assert_eq!((report.progress.rows, &report.notes[..]), (3, &[][..]));
    let output = String::from_utf8(output).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 3, "{output}");
    assert!(
        lines[0].starts_with(r#"{"text":"the, \"cat","embedding":["#),
        "{output}"
    );
    assert!(lines[1].starts_with(r#"{"text":"","error":"#), "{output}");
    let (_, output) = processed("a.txt.gz", &gzip(&[TEXTS.as_bytes()]), "b.csv");
    let output = String::from_utf8(output).unwrap();
    assert!(
        output.starts_with("text,embedding,error\n\"the, \"\"cat\",\"["),
        "{output}"
    );
    let folder = tempfile::tempdir().unwrap();
    let [input, output, uncut] =
        ["in.txt", "out.txt", "uncut.txt"].map(|name| folder.path().join(name));
    fs::write(
        &input,
        (0..3000)
            .map(|row| format!("the cat {row}\n"))
            .collect::<String>(),
    )
    .unwrap();
    finished(job(&input, &uncut));
    assert!(matches!(
        stopped(job(&input, &output)).unwrap(),
        Ended::Unfinished(_)
    ));
    assert_eq!(finished(job(&input, &output)).progress.rows, 3000);
    assert!(text(&output) == text(&uncut));
    // The output is read as what it is.
    let (report, _) = processed("a.txt", &fs::read(&output).unwrap()[..100_000], "b.jsonl");
    assert!(
        report
            .progress
            .columns
            .iter()
            .any(|name| name == "kivu_embedding")
    );
}

#[test]
fn the_exit_code_says_that_every_row_has_an_error() {
    let Some((folder, bundle)) = program() else {
        return;
    };
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    let code = |contents: &str| {
        fs::write(&input, contents).unwrap();
        let done = kivu(&[&input, &output, Path::new("--model"), &bundle])
            .output()
            .unwrap();
        (
            done.status.code(),
            String::from_utf8([done.stdout, done.stderr].concat()).unwrap(),
        )
    };
    let (status, said) = code("{\"text\": null}\n{\"text\": 5}\n");
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("  errors  2 rows without a text\n"), "{said}");
    assert!(said.contains("error: every row has an error\n"), "{said}");
    assert!(said.contains("texts   `text`"), "{said}");
    assert_eq!(code("{\"text\": null}\n{\"text\": \"a\"}\n").0, Some(0));
    assert_eq!(code("\n").0, Some(0), "a file without rows");
    assert!(output.exists());
}

#[test]
fn the_summary_counts_truncated_texts() {
    let Some((folder, bundle)) = program() else {
        return;
    };
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    fs::write(&input, "{\"text\": \"a b c d e f\"}\n").unwrap();
    let done = kivu(&[&input, &output, Path::new("--model"), &bundle])
        .env("KIVU_LIMITS__TOKENS", "4")
        .output()
        .unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let note = "texts truncated to the model's token limit: 1\n";
    assert!(said.contains(&format!("  note    {note}")), "{said}");
    let mut run = Command::new(env!("CARGO_BIN_EXE_kivu"));
    run.arg("run").arg(&bundle).arg("a b c d e f");
    run.env("KIVU_LIMITS__TOKENS", "4")
        .env("KIVU_ONNXRUNTIME", library_path().unwrap());
    let said = String::from_utf8(run.output().unwrap().stderr).unwrap();
    assert!(said.contains(&format!("note: {note}")), "{said}");
}
