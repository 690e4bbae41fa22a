//! `kivu redact` with a model, and in Parquet files.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray, cast::AsArray};
use kivu::repository::manifest::Precision;
use parquet::arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder};

use crate::models::{build_request, fixtures, library_path, request, runtime};

/// Runs the program in `folder`.
fn kivu(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kivu"))
        .args(arguments)
        .current_dir(folder)
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default())
        .output()
        .unwrap()
}

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = kivu(folder, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = kivu(folder, arguments);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_model_and_patterns_number_the_originals_of_a_file() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for name in ["tiny-bert-ner", "tiny-gliner", "tiny-bert"] {
        let source = fixtures().join("models").join(name);
        let request = request(source, path.join(name), Some(Precision::Fp32));
        build_request(&request, runtime).unwrap();
    }
    // More rows than are read together.
    let names = ["Ann in Rome", "Bob of Acme, bob@b.org", "Cleo"];
    let rows: String = (0..150)
        .map(|row| format!("{row},\"{} met Dora at a@b.org\"\n", names[row % 3]))
        .collect();
    fs::write(path.join("a.csv"), format!("id,text\n{rows}")).unwrap();
    let redact = [
        "redact",
        "a.csv",
        "b.csv",
        "--model",
        "tiny-bert-ner",
        "--style",
        "number",
        "--mapping",
        "secret",
    ];
    let said = succeed(path, &redact);
    assert!(said.ends_with("entities and matches in b.csv\n"), "{said}");
    let redacted = fs::read_to_string(path.join("b.csv")).unwrap();
    let texts: Vec<&str> = redacted
        .lines()
        .skip(1)
        .map(|line| line.split_once(',').unwrap().1)
        .collect();
    let labels = ["[PER_", "[LOC_", "[ORG_", "[MISC_"];
    assert!(
        labels.iter().any(|label| redacted.contains(label)),
        "{redacted}"
    );
    assert!(redacted.contains("[EMAIL_ADDRESS_1]") && redacted.contains("[EMAIL_ADDRESS_2]"));
    assert!(!redacted.contains("[EMAIL_ADDRESS_3]"), "{redacted}");
    for (row, text) in texts.iter().enumerate() {
        assert_eq!(*text, texts[row % 3], "{row}");
    }
    succeed(path, &["restore", "b.csv", "c.csv", "--mapping", "secret"]);
    let restored = fs::read_to_string(path.join("c.csv")).unwrap();
    assert_eq!(
        restored.replace('"', ""),
        format!("id,text\n{rows}").replace('"', "")
    );
    // A text above the limits of the models.
    let long = "Ann met Bob in Rome. ".repeat(400);
    fs::write(path.join("long.txt"), &long).unwrap();
    for options in [
        &["tiny-bert-ner"][..],
        &["tiny-gliner", "--labels", "person,city"],
    ] {
        let arguments = [
            "redact",
            "long.txt",
            options[0],
            "--style",
            "number",
            "--mapping",
            "m",
            "--model",
        ];
        let output = format!("{}.txt", options[0]);
        let mut arguments = arguments.to_vec();
        arguments[2] = &output;
        arguments.extend(options);
        succeed(path, &arguments);
        let back = format!("back-{output}");
        succeed(path, &["restore", &output, &back, "--mapping", "m"]);
        assert_eq!(fs::read_to_string(path.join(back)).unwrap(), long);
        fs::remove_file(path.join("m")).unwrap();
    }
    let wrong = |options: &[&str]| {
        let arguments = [&["redact", "a.csv", "new.csv", "--model"], options].concat();
        let error = refused(path, &arguments);
        assert!(!path.join("new.csv").exists());
        error
    };
    insta::assert_snapshot!(wrong(&["tiny-bert"]), @"error: `tiny-bert` is for `feature-extraction`; names are found by models for `token-classification`");
    insta::assert_snapshot!(wrong(&["tiny-gliner"]), @"error: expected `labels` for `tiny-gliner`, which is for `token-classification`, but found none");
    insta::assert_snapshot!(wrong(&["tiny-bert-ner", "--labels", "person"]), @r"
    error: `--labels` has no effect with `tiny-bert-ner`, which is for `token-classification`
    hint: omit the option, or choose another model
    ");
}

fn write(path: &Path, columns: [(&str, ArrayRef); 3]) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn read(path: &Path) -> Vec<RecordBatch> {
    let file = File::open(path).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    reader.build().unwrap().map(Result::unwrap).collect()
}

#[test]
fn columns_of_parquet_are_replaced_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let texts = |each: &dyn Fn(usize) -> Option<String>| {
        Arc::new(StringArray::from_iter((0..200).map(each))) as ArrayRef
    };
    let notes = texts(&|row| (row % 7 > 0).then(|| format!("Write to a{}@b.org", row % 5)));
    let senders = texts(&|row| {
        Some(if row == 3 {
            String::new()
        } else {
            "a1@b.org".to_owned()
        })
    });
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..200));
    write(
        &path.join("a.parquet"),
        [
            ("id", Arc::clone(&ids)),
            ("note", Arc::clone(&notes)),
            ("sender", Arc::clone(&senders)),
        ],
    );
    let columns = ["--columns", "note,sender"];
    let redact = [
        "redact",
        "a.parquet",
        "b.parquet",
        "--style",
        "number",
        "--mapping",
        "secret",
    ];
    succeed(path, &[&redact[..], &columns].concat());
    let found = read(&path.join("b.parquet"));
    let names: Vec<String> = found[0]
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect();
    assert_eq!(names, ["id", "note", "sender"]);
    let all = arrow_texts(&found, 1);
    assert_eq!(
        all[..3],
        [
            None,
            Some("Write to [EMAIL_ADDRESS_1]"),
            Some("Write to [EMAIL_ADDRESS_2]")
        ]
    );
    assert_eq!(
        arrow_texts(&found, 2)[..4],
        [Some("[EMAIL_ADDRESS_1]"); 3]
            .into_iter()
            .chain([Some("")])
            .collect::<Vec<_>>()[..]
    );
    succeed(
        path,
        &[
            &["restore", "b.parquet", "c.parquet", "--mapping", "secret"],
            &columns[..],
        ]
        .concat(),
    );
    let restored = read(&path.join("c.parquet"));
    assert_eq!(
        arrow_texts(&restored, 1),
        notes.as_string::<i32>().iter().collect::<Vec<_>>()
    );
    assert_eq!(
        arrow_texts(&restored, 2),
        senders.as_string::<i32>().iter().collect::<Vec<_>>()
    );
    let error = refused(
        path,
        &["redact", "a.parquet", "d.parquet", "--columns", "note,id"],
    );
    insta::assert_snapshot!(error, @"error: expected texts in the column `id`, but found Int32");
    let error = refused(
        path,
        &[
            "redact",
            "a.parquet",
            "d.parquet",
            "--columns",
            "note,subject",
        ],
    );
    insta::assert_snapshot!(error, @"error: no column `subject`; the file has `id`, `note`, `sender`");
    assert!(!path.join("d.parquet").exists());
}

fn arrow_texts(batches: &[RecordBatch], column: usize) -> Vec<Option<&str>> {
    let columns = batches.iter().map(|batch| batch.column(column));
    columns
        .flat_map(|texts| texts.as_string::<i32>().iter())
        .collect()
}
