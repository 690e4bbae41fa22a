//! `kivu search`.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output, Stdio},
};

use arrow_array::RecordBatchReader;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::tools::{interpreter, root, succeed};

/// Searches `folder` with the model `minilm` and an index in `home`.
fn search(home: &Path, folder: &Path, arguments: &[&str]) -> Output {
    ask(home, folder, "where do I change my password", arguments)
}

fn ask(home: &Path, folder: &Path, question: &str, arguments: &[&str]) -> Output {
    let mut command = command(home, folder, question, arguments);
    command.output().unwrap()
}

fn command(home: &Path, folder: &Path, question: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command.arg("search").arg(folder);
    command.arg(question).args(arguments);
    command
        .arg("--model")
        .arg(root().join(".kivu/bundles/minilm"));
    command.env("KIVU_HOME", home).stdin(Stdio::null());
    command
}

/// The vectors of truncated passages are of no use with another token limit.
#[test]
fn an_index_is_made_again_for_other_settings() {
    let [home, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write(
        "a.txt",
        "The weather was cold and wet all week, and people stayed at home. Bananas are yellow fruit.",
    );
    write("b.txt", "Bananas and apples.");
    let best = |tokens: &str| {
        let mut command = command(home.path(), folder.path(), "yellow fruit", &["--json"]);
        let (answer, notes) = found(&command.env("KIVU_LIMITS__TOKENS", tokens).output().unwrap());
        let file = answer["hits"][0]["file"].as_str().unwrap().to_owned();
        (
            file.ends_with("a.txt"),
            notes.contains("the index is made again"),
        )
    };
    assert_eq!(best("6"), (false, false));
    assert_eq!(best("64"), (true, true));
    assert_eq!(best("64"), (true, false));
    assert_eq!(best("6"), (false, true));
}

fn found(output: &Output) -> (Value, String) {
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{notes}");
    (serde_json::from_slice(&output.stdout).unwrap(), notes)
}

#[test]
fn search_finds_passages_and_embeds_only_files_that_changed() {
    let [home, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let filler = "The weather in the mountains was cold and clear all week long. ".repeat(8);
    write(
        "a.txt",
        &format!("{filler}\n\nHens lay eggs every morning. {filler}\n"),
    );
    write(
        "b.md",
        &format!(
            "# Account\n\n{filler}\n\n## Password\n\nOpen the settings to set a new password.\n"
        ),
    );
    write("c.bin", "\0\u{1}");

    let (first, notes) = found(&search(
        home.path(),
        folder.path(),
        &["--json", "--top", "2"],
    ));
    let best = &first["hits"][0];
    assert!(best["file"].as_str().unwrap().ends_with("b.md"), "{first}");
    assert_eq!(best["line"], 5, "{first}");
    assert!(best["text"].as_str().unwrap().contains("new password"));
    assert_eq!(first["hits"].as_array().unwrap().len(), 2);
    assert!(notes.contains("1 without text in UTF-8"), "{notes}");
    let shown = search(home.path(), folder.path(), &[]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.lines().next().unwrap().contains("b.md:5  0."),
        "{shown}"
    );

    // Other programs read the index as a table.
    let index = Path::new(first["index"].as_str().unwrap());
    let table = ParquetRecordBatchReaderBuilder::try_new(File::open(index).unwrap()).unwrap();
    let table = table.build().unwrap();
    let schema = table.schema();
    let columns: Vec<_> = schema.fields().iter().map(|field| field.name()).collect();
    assert_eq!(
        columns,
        ["path", "line", "text", "modified_ns", "bytes", "embedding"]
    );
    let rows: usize = table.map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, first["passages"].as_u64().unwrap() as usize);

    nearest_in_duckdb(index);

    let written = || fs::metadata(index).unwrap().modified().unwrap();
    let before = written();
    found(&search(home.path(), folder.path(), &["--json"]));
    assert_eq!(written(), before, "nothing changed");
    write("b.md", "gone");
    write(
        "d.html",
        "<p>Passwords are changed <b>here</b>: enter the new password twice.</p>",
    );
    let (second, _) = found(&search(
        home.path(),
        folder.path(),
        &["--json", "--top", "1"],
    ));
    assert!(
        second["hits"][0]["file"]
            .as_str()
            .unwrap()
            .ends_with("d.html"),
        "{second}"
    );
    assert!(
        second["hits"][0]["text"]
            .as_str()
            .unwrap()
            .contains("changed here: enter")
    );

    fs::write(index, "another file").unwrap();
    let (again, notes) = found(&search(
        home.path(),
        folder.path(),
        &["--json", "--top", "1"],
    ));
    assert_eq!(again["hits"], second["hits"]);
    assert!(notes.contains("the index is made again"), "{notes}");

    write("e.txt", &"7 ".repeat(450));
    let ranker = root().join(".kivu/bundles/rank");
    let arguments = ["--json", "--rank", ranker.to_str().unwrap()];
    let (_, notes) = found(&search(home.path(), folder.path(), &arguments));
    assert!(
        notes.contains("the ranking model read only the beginning"),
        "{notes}"
    );
}

#[test]
fn a_built_ranking_model_is_used_when_its_source_is_gone() {
    let [home, folder, models] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let text = "A password is changed in the settings.";
    fs::write(folder.path().join("a.txt"), text).unwrap();
    let score = || {
        let (answer, _) = found(&search(home.path(), folder.path(), &["--json"]));
        answer["hits"][0]["score"].as_f64().unwrap()
    };
    let cosine = score();
    let source = models.path().join("rank");
    let fixture = root().join("tests/fixtures/models/tiny-bert-rank");
    succeed(Command::new("cp").arg("-r").arg(fixture).arg(&source));
    let mut run = Command::new(env!("CARGO_BIN_EXE_kivu"));
    run.arg("run").arg(&source);
    run.args([text, "--query", "settings", "--precision", "fp32"]);
    succeed(run.env("KIVU_HOME", home.path()).stdin(Stdio::null()));
    fs::remove_dir_all(&source).unwrap();
    assert_ne!(score(), cosine);
}

/// Runs the query of docs/command-line.md, by which the first passage of an index is the nearest to itself.
fn nearest_in_duckdb(index: &Path) {
    let Some(python) = interpreter("TEST_ENGINES", "duckdb") else {
        return;
    };
    let page = fs::read_to_string(root().join("docs/command-line.md")).unwrap();
    let query = page.split("duckdb -c \"").nth(1).unwrap();
    let (query, _) = query.split_once("\"\n").unwrap();
    let query = query.replace("INDEX", index.to_str().unwrap());
    let program = "import duckdb, sys
found, first = (duckdb.sql(query).fetchall() for query in sys.argv[1:])
assert found[0] == first[0] and len(found) == 4, found";
    let first = format!("SELECT path, line FROM '{}' LIMIT 1", index.display());
    succeed(Command::new(python).args(["-c", program, &query, &first]));
}

#[test]
fn search_refuses_what_it_cannot_read() {
    let [home, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let folder = folder.path();
    fs::write(folder.join("a.bin"), b"\xff").unwrap();
    let nothing = Path::new("tests/nothing");
    let cases = [
        (nothing, "why", &[][..], "cannot read `tests/nothing`"),
        (folder, "why", &["is it"][..], "hint: put quotes around"),
        (folder, " ", &[][..], "expected a question"),
        (folder, "why", &[][..], "found no text in"),
        (folder, "why", &[][..], "1 without text in UTF-8 ("),
    ];
    for (path, question, arguments, expected) in cases {
        let refused = ask(home.path(), path, question, arguments);
        assert_eq!(refused.status.code(), Some(1));
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(message.contains(expected), "{message}");
        assert!(refused.stdout.is_empty());
    }
}
