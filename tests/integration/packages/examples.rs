//! The programs in `examples/`, run as documented in them, with a real server.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    models::runtime,
    server::{Server, kivu},
    tools::{root, tool},
};

const MAX_LINES: usize = 90;

fn examples() -> PathBuf {
    root().join("examples")
}

/// A server for the models in `models/`, and Python, if `make test` installed both.
fn server() -> Option<(Server, PathBuf)> {
    let python = tool("TEST_PYTHON")?;
    runtime().expect("`make test` installs ONNX Runtime");
    let mut serve = kivu(&root().join(".kivu/bundles"));
    let server = Server::wait(serve.stderr(Stdio::null()).spawn().unwrap());
    Some((server, python))
}

/// An example's output for an input.
fn run(
    server: &Server,
    python: &PathBuf,
    example: &str,
    arguments: &[&str],
    input: &str,
) -> String {
    let mut command = Command::new(python);
    command
        .arg(examples().join(example))
        .args(arguments)
        .current_dir(root());
    command.env("SERVER_URL", format!("http://{}", server.address));
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn examples_are_short() {
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "py" || extension == "mjs")
        {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines < MAX_LINES, "{}: {lines} lines", path.display());
        }
    }
}

#[test]
fn a_folder_is_searched_by_meaning() {
    let Some((server, python)) = server() else {
        return;
    };
    let folder = "examples/texts";
    let found = run(
        &server,
        &python,
        "search.py",
        &[folder, "I forgot my password"],
        "",
    );
    assert!(
        found.lines().next().unwrap().contains("account.txt"),
        "{found}"
    );
    let found = run(
        &server,
        &python,
        "search.py",
        &[folder, "when does the boat leave?"],
        "",
    );
    assert!(
        found.lines().next().unwrap().contains("ferry.txt"),
        "{found}"
    );
}

#[test]
fn the_sentiment_of_a_column_is_added_to_a_table() {
    let Some((server, python)) = server() else {
        return;
    };
    let table = run(
        &server,
        &python,
        "sentiment.py",
        &["examples/reviews.csv", "review"],
        "",
    );
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("id,review,sentiment,score"));
    let labels: Vec<_> = lines.map(|line| line.rsplit(',').nth(1).unwrap()).collect();
    assert_eq!(
        labels,
        ["positive", "negative", "neutral", "positive", "negative"]
    );
}

#[test]
fn the_bot_translates_both_ways() {
    let Some((server, python)) = server() else {
        return;
    };
    let served = root().join(".kivu/bundles");
    if !["en-pt", "pt-en"].iter().all(|pair| {
        served
            .join(format!("translate-{pair}/manifest.toml"))
            .is_file()
    }) {
        crate::skips::missing("the bundles for translation");
        return;
    }
    let answers = run(
        &server,
        &python,
        "bot.py",
        &[],
        "Good morning!\n/pt-en\nOnde fica a estação?\n",
    );
    assert!(answers.contains("Bom dia"), "{answers}");
    assert!(answers.contains("station"), "{answers}");
}

#[test]
fn a_site_is_not_translated_into_itself() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("a.html");
    fs::write(&page, "<p>Hello</p>").unwrap();
    for output in [folder.path().to_owned(), folder.path().join("pt")] {
        let mut command = Command::new(&python);
        command.arg(examples().join("translate_site.py"));
        command.args([folder.path(), &output]).args(["en", "pt"]);
        // Nothing listens there.
        let done = command.env("SERVER_URL", "http://127.0.0.1:9").output();
        let message = String::from_utf8(done.unwrap().stderr).unwrap();
        assert_eq!(
            message,
            "expected OUTPUT outside of FOLDER, whose files are read\n"
        );
    }
}
