//! Runs the README's commands and programs, in order, and the requests in the API documentation, and compares messages
//! in the documentation with the program's.
//!
//! A code block that cannot run in a test is marked `<!-- not run: REASON -->` on the line before it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    models::{library_path, runtime},
    server::{Server, kivu},
    source_files::{CRATES, sources},
    tools::{interpreter, root, succeed, tool},
};

/// The address in the README; tests replace it with one on a free port.
const SHOWN: &str = "127.0.0.1:8080";
/// Makes the README's `curl` commands silent, and fail if the server returns an error.
const CURL: &str = "curl() { command curl --silent --show-error --fail-with-body \"$@\"; }";

/// A fenced code block.
#[derive(Debug)]
struct Block {
    language: String,
    code: String,
    not_run: Option<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    let mut before = "";
    for line in text.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(language), None) => {
                let not_run = before
                    .strip_prefix("<!-- not run: ")
                    .and_then(|rest| rest.strip_suffix(" -->"));
                let not_run = not_run.map(str::to_owned);
                open = Some(Block {
                    language: language.to_owned(),
                    code: String::new(),
                    not_run,
                });
            }
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.code.push_str(line);
                block.code.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
        before = line;
    }
    blocks
}

fn blocks_of(file: &str) -> Vec<Block> {
    blocks(&fs::read_to_string(root().join(file)).unwrap())
}

fn readme() -> Vec<Block> {
    blocks_of("README.md")
}

/// Commands in a block: its lines without comments, joined at a trailing backslash.
fn commands(code: &str) -> Vec<String> {
    let joined = code.replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        line.split(" # ")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    });
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn commands_that_are_not_run_are_make_targets() {
    let blocks = readme();
    assert!(
        blocks.iter().all(|block| !block.language.is_empty()),
        "expected a language for each block: {blocks:#?}"
    );
    let not_run: Vec<_> = blocks
        .iter()
        .filter(|block| block.not_run.is_some())
        .collect();
    let codes: Vec<_> = not_run
        .iter()
        .flat_map(|block| commands(&block.code))
        .collect();
    insta::assert_snapshot!(codes.join("\n"), @"
    make wheel && pip install target/wheels/kivuml-*.whl
    cargo install --path program
    docker build --file Containerfile --tag kivu .
    make deploy
    make test
    ");
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for command in codes
        .iter()
        .filter_map(|command| command.strip_prefix("make "))
    {
        let target = command.split(' ').next().unwrap();
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
    }
    // `cargo install` needs a crate with a program.
    let container = fs::read_to_string(root().join("Containerfile")).unwrap();
    let installs = codes.iter().map(String::as_str).chain(container.lines());
    let installs = installs.filter(|line| line.contains("cargo install "));
    let paths: Vec<&str> = installs
        .filter_map(|line| line.split("--path ").nth(1)?.split(' ').next())
        .collect();
    assert_eq!(paths, ["program", "program"]);
    let program = fs::read_to_string(root().join("program/Cargo.toml")).unwrap();
    assert!(program.contains("[[bin]]\nname = \"kivu\""));
}

/// A folder that resembles a checkout after `make run`, with the program that cargo built for these tests.
fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [".kivu", "Makefile", "examples", "models", "tests"] {
        symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    fs::create_dir_all(folder.path().join("target/debug")).unwrap();
    symlink(
        env!("CARGO_BIN_EXE_kivu"),
        folder.path().join("target/debug/kivu"),
    )
    .unwrap();
    folder
}

/// No container engine runs in the tests. packaging/try.py does what the image from an archive contains.
#[test]
fn both_container_files_make_the_same_image() {
    let [checkout, archive] = ["Containerfile", "packaging/Containerfile"].map(|name| {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    let last = checkout
        .iter()
        .rposition(|line| line.starts_with("FROM "))
        .unwrap();
    let image = |lines: &[String]| -> Vec<String> {
        lines
            .iter()
            .filter(|line| !line.starts_with("COPY "))
            .cloned()
            .collect()
    };
    assert_eq!(image(&checkout[last..]), image(&archive));
    assert!(
        archive.contains(&"CMD [\"serve\", \"/models\"]".to_owned()),
        "{archive:?}"
    );
    // The context of the build has no build outputs.
    let ignored = fs::read_to_string(root().join(".dockerignore")).unwrap();
    for line in fs::read_to_string(root().join(".gitignore"))
        .unwrap()
        .lines()
        .filter(|line| line.starts_with('/'))
    {
        assert!(ignored.lines().any(|known| known == &line[1..]), "{line}");
    }
}

/// Runs the last command in `make run` on another port.
fn make_run() -> Server {
    // Under `make test`, make would also print the folders that it enters.
    let mut plan = Command::new("make");
    plan.args(["--dry-run", "--no-print-directory", "run"])
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL");
    let plan = plan.current_dir(root()).output().unwrap();
    let plan = String::from_utf8(plan.stdout).unwrap();
    let options = ["--load", "on-demand"];
    let served = format!(
        "; target/debug/kivu serve .kivu/bundles {}",
        options.join(" ")
    );
    assert!(plan.trim_end().ends_with(&served), "{plan}");
    Server::wait(
        kivu(&root().join(".kivu/bundles"))
            .args(options)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// Runs a block's commands, and returns what the last one printed.
fn run_shell(code: &str, folder: &Path, server: &mut Option<Server>) -> String {
    let mut printed = String::new();
    for command in commands(code) {
        if command == "make run" {
            *server = Some(make_run());
            continue;
        }
        if let Some(bundle) = command.strip_prefix("target/debug/kivu serve ") {
            *server = Some(Server::wait(
                kivu(&folder.join(bundle))
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap(),
            ));
            continue;
        }
        printed = succeed(shell(folder).args([
            "-c",
            &format!("{CURL}\n{}", with_address(server.as_ref(), &command)),
        ]));
    }
    printed
}

fn shell(folder: &Path) -> Command {
    let mut shell = Command::new("bash");
    shell
        .env("KIVU_ONNXRUNTIME", library_path().unwrap())
        .current_dir(folder);
    shell
}

/// The code with the last started server's address.
fn with_address(server: Option<&Server>, code: &str) -> String {
    match server {
        Some(server) => code.replace(SHOWN, &server.address),
        None => code.to_owned(),
    }
}

#[test]
fn commands_and_programs_of_the_readme_run() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    runtime().expect("`make test` installs ONNX Runtime");
    let folder = checkout();
    let mut server = None;
    let mut printed = String::new();
    for block in readme().iter().filter(|block| block.not_run.is_none()) {
        let (program, option) = match block.language.as_str() {
            "sh" => {
                printed = run_shell(&block.code, folder.path(), &mut server);
                continue;
            }
            "text" => {
                assert_shown(&printed, &block.code);
                continue;
            }
            "python" => (python.clone(), "-c"),
            "js" if has_node() => (PathBuf::from("node"), "--eval"),
            "js" => {
                crate::skips::unsupported("node is not installed");
                continue;
            }
            other => panic!("expected sh, text, python or js, but found {other}"),
        };
        let mut command = Command::new(program);
        if block.language == "js" {
            command.arg("--input-type=module");
        }
        succeed(command.args([option, &with_address(server.as_ref(), &block.code)]));
    }
}

/// Commands in the tutorials print what the page shows. A test model replaces the one from the hub.
#[test]
fn commands_of_the_tutorials_run() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    runtime().expect("`make test` installs ONNX Runtime");
    let folder = checkout();
    let server = make_run();
    let path = format!(
        "{}:{}:{}",
        python.parent().unwrap().display(),
        folder.path().join("target/debug").display(),
        std::env::var("PATH").unwrap()
    );
    let blocks = blocks_of("docs/tutorials.md");
    let followed = blocks
        .iter()
        .zip(blocks.iter().skip(1).map(Some).chain([None]));
    let mut count = 0;
    for (block, next) in
        followed.filter(|(block, _)| block.language == "sh" && block.code != "make run\n")
    {
        let code = block.code.replace(
            "dslim/bert-base-NER",
            "tests/fixtures/models/tiny-bert-ner --precision fp32",
        );
        let mut shell = shell(folder.path());
        shell
            .env("SERVER_URL", format!("http://{}", server.address))
            .env("PATH", &path);
        // The test model's bundle is not kept.
        shell.env("KIVU_HOME", folder.path().join("home"));
        let output = shell.args(["-e", "-c", &code]).output().unwrap();
        assert!(output.status.success(), "{code}\n{output:?}");
        let found = String::from_utf8(output.stdout).unwrap();
        if let Some(shown) = next.filter(|next| next.language == "text") {
            assert_shown(&found, &shown.code);
        }
        count += 1;
    }
    assert_eq!(count, 8);
    let [given, restored] = ["tickets.csv", "restored-by-key.csv"]
        .map(|name| fs::read_to_string(folder.path().join(name)).unwrap());
    assert_eq!(given, restored);
    let anonymous = fs::read_to_string(folder.path().join("anonymous.csv")).unwrap();
    assert!(anonymous.starts_with("id,ticket\n1,"), "{anonymous}");
}

/// All Python programs of the page run in one process, since their packages take seconds to import.
#[test]
fn code_on_the_page_about_clients_runs() {
    let Some(python) = interpreter("TEST_FRAMEWORKS", "haystack") else {
        return;
    };
    runtime().expect("`make test` installs ONNX Runtime");
    let server = make_run();
    let blocks = blocks_of("docs/clients.md");
    let code = |language: &str| -> String {
        let blocks = blocks
            .iter()
            .filter(|block| block.language == language && block.not_run.is_none());
        blocks
            .map(|block| with_address(Some(&server), &block.code))
            .collect()
    };
    let program = code("python");
    for package in [
        "openai",
        "huggingface_hub",
        "langchain_openai",
        "llama_index",
        "haystack",
        "litellm",
        "ollama",
    ] {
        assert!(
            program.contains(&format!("import {package}"))
                || program.contains(&format!("from {package}")),
            "{package}"
        );
    }
    // Nothing on the page needs another server, apart from the prices that one package looks up.
    let mut command = Command::new(python);
    command
        .args(["-W", "ignore", "-c", &program])
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    succeed(command.env("HAYSTACK_TELEMETRY_ENABLED", "False"));
    let commands = code("sh");
    assert!(commands.contains("/translate"));
    succeed(shell(&root()).args(["-e", "-c", &format!("{CURL}\n{commands}")]));
}

/// The shown lines are printed, one after another.
fn assert_shown(found: &str, shown: &str) {
    let [lines, expected] = [found, shown].map(|text| text.lines().collect::<Vec<_>>());
    let is_printed = lines.windows(expected.len()).any(|window| {
        window
            .iter()
            .zip(&expected)
            .all(|(found, shown)| is_shown(found, shown))
    });
    assert!(is_printed, "expected {shown}, but found {found}");
}

/// Whether a response is the one in the documentation, in which `…` is any text, apart from white space.
fn is_shown(found: &str, shown: &str) -> bool {
    let [found, shown] = [found, shown].map(|text| text.split_whitespace().collect::<String>());
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| found.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in inner {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn responses_are_compared_with_omissions() {
    assert!(is_shown("[1, 2]", "[1,2]"));
    assert!(is_shown("[1,2,3]", "[1,…]"));
    assert!(is_shown("[1,2,3,4]", "[…,2,…,4]"));
    assert!(!is_shown("[1,2,3]", "[1,…,4]"));
    assert!(!is_shown("[1,2,3]", "[1,…,2]"));
    assert!(!is_shown("[1,2,3]", "[1,2]"));
    assert!(!is_shown("[1,2,3]", "1,…]"));
}

#[test]
fn requests_of_the_api_documentation_get_the_responses_in_it() {
    if tool("TEST_PYTHON").is_none() {
        return;
    }
    runtime().expect("`make test` installs ONNX Runtime");
    let server = make_run();
    let blocks = blocks_of("docs/api.md");
    let followed = blocks
        .iter()
        .zip(blocks.iter().skip(1).map(Some).chain([None]));
    let requests = followed.filter(|(block, _)| {
        block.language == "sh" && block.not_run.is_none() && block.code.starts_with("curl ")
    });
    let mut count = 0;
    for (request, next) in requests {
        let code = format!("{CURL}\n{}", with_address(Some(&server), &request.code));
        let output = shell(&root()).args(["-c", &code]).output().unwrap();
        let shown = next
            .filter(|next| next.language.is_empty())
            .map(|next| next.code.as_str());
        let fails = shown.is_some_and(|shown| shown.starts_with("{\"error\""));
        assert_eq!(
            output.status.success(),
            !fails,
            "{}\n{output:?}",
            request.code
        );
        let found = String::from_utf8(output.stdout).unwrap();
        assert!(
            shown.is_none_or(|shown| is_shown(&found, shown)),
            "{}\n{found}\n{shown:?}",
            request.code
        );
        count += 1;
    }
    assert!(count > 10, "{count} requests");
}

/// The program contains every message that the page quotes; `…` is any text.
#[test]
fn messages_of_troubleshooting_exist() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let files = CRATES
        .map(|folder| sources(&root().join(folder), "rs"))
        .concat();
    let source: String = files
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    // A backslash joins a string's lines.
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    let source = parts.fold(first, |joined, part| joined + part.trim_start());
    let begins = |span: &&str| {
        ["cannot ", "expected ", "the ", "this ", "unknown "]
            .iter()
            .any(|word| span.starts_with(word))
    };
    let quoted = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(begins)
        .filter(|span| !span.contains("s3://"));
    let unknown: Vec<&str> = quoted
        .filter(|span| {
            !span
                .split(['…', '"'])
                .all(|part| source.contains(part.trim()))
        })
        .collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

fn has_node() -> bool {
    Command::new("node")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}
