//! What README shows is run as it stands there: its commands one after the other, and its programs. So are the
//! requests that the documentation of the API shows.
//!
//! A block that cannot be run here is marked `<!-- not run: REASON -->` on the line before it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    live::{root, succeed, tool},
    models::{library_path, runtime},
    serving::{Server, kivu},
};

/// The address that README shows; tests take a free port instead.
const SHOWN: &str = "127.0.0.1:8080";
/// curl as in README, but silent, and with a failure where the server tells one.
const CURL: &str = "curl() { command curl --silent --show-error --fail-with-body \"$@\"; }";

/// A fenced block of code.
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
                let not_run =
                    before.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                let not_run = not_run.map(str::to_owned);
                open = Some(Block { language: language.to_owned(), code: String::new(), not_run });
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

/// The commands of a block: lines, joined where one ends with a backslash, without their comments.
fn commands(code: &str) -> Vec<String> {
    let joined = code.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" # ").next().unwrap_or_default().trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn what_is_not_run_is_marked_with_a_reason_and_exists() {
    let blocks = readme();
    assert!(blocks.iter().all(|block| !block.language.is_empty()), "each block says what it is: {blocks:#?}");
    let not_run: Vec<_> = blocks.iter().filter(|block| block.not_run.is_some()).collect();
    let codes: Vec<_> = not_run.iter().flat_map(|block| commands(&block.code)).collect();
    assert_eq!(codes, ["make deploy", "make invoke", "make package", "make test"]);
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for command in &codes {
        let target = command.strip_prefix("make ").unwrap();
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
    }
}

/// Where README's commands run: the repository as its reader has it after `make run`, with a program that cargo
/// built for these tests.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [".kivu", "Makefile", "examples", "models", "tests"] {
        symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    fs::create_dir_all(folder.path().join("target/debug")).unwrap();
    symlink(env!("CARGO_BIN_EXE_kivu"), folder.path().join("target/debug/kivu")).unwrap();
    folder
}

/// Serves what `make run` would: its last command is the one that is run here, on another port.
fn make_run() -> Server {
    // Inside of `make test`, make would tell where it goes as well.
    let mut plan = Command::new("make");
    plan.args(["--dry-run", "--no-print-directory", "run"]).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let plan = plan.current_dir(root()).output().unwrap();
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert_eq!(plan.lines().last(), Some("target/debug/kivu serve .kivu/bundles"));
    Server::wait(kivu(&root().join(".kivu/bundles")).stderr(Stdio::null()).spawn().unwrap())
}

fn run_shell(code: &str, place: &Path, server: &mut Option<Server>) {
    for command in commands(code) {
        if command == "make run" {
            *server = Some(make_run());
            continue;
        }
        if let Some(bundle) = command.strip_prefix("target/debug/kivu serve ") {
            *server = Some(Server::wait(kivu(&place.join(bundle)).stderr(Stdio::null()).spawn().unwrap()));
            continue;
        }
        succeed(shell(place).args(["-c", &format!("{CURL}\n{}", at(server.as_ref(), &command))]));
    }
}

fn shell(place: &Path) -> Command {
    let mut shell = Command::new("bash");
    shell.env("KIVU_ONNXRUNTIME", library_path().unwrap()).current_dir(place);
    shell
}

/// The code with the address of the server that was started last.
fn at(server: Option<&Server>, code: &str) -> String {
    match server {
        Some(server) => code.replace(SHOWN, &server.address),
        None => code.to_owned(),
    }
}

#[test]
fn the_commands_and_programs_of_readme_run() {
    let Some(python) = tool("TEST_PYTHON") else { return };
    runtime().expect("`make test` installs ONNX Runtime");
    let place = workplace();
    let mut server = None;
    for block in readme().iter().filter(|block| block.not_run.is_none()) {
        let (program, option) = match block.language.as_str() {
            "sh" => {
                run_shell(&block.code, place.path(), &mut server);
                continue;
            }
            "python" => (python.clone(), "-c"),
            "js" if has_node() => (PathBuf::from("node"), "--eval"),
            "js" => {
                eprintln!("skipped: there is no node to run JavaScript");
                continue;
            }
            other => panic!("expected sh, python or js, but found {other}"),
        };
        let mut command = Command::new(program);
        if block.language == "js" {
            command.arg("--input-type=module");
        }
        succeed(command.args([option, &at(server.as_ref(), &block.code)]));
    }
}

#[test]
fn the_requests_of_the_api_documentation_are_answered() {
    if tool("TEST_PYTHON").is_none() {
        return;
    }
    runtime().expect("`make test` installs ONNX Runtime");
    let server = make_run();
    let blocks = blocks_of("docs/api.md");
    let followed = blocks.iter().zip(blocks.iter().skip(1).map(Some).chain([None]));
    let requests = followed.filter(|(block, _)| {
        block.language == "sh" && block.not_run.is_none() && block.code.starts_with("curl ")
    });
    let mut count = 0;
    for (request, answer) in requests {
        let code = format!("{CURL}\n{}", at(Some(&server), &request.code));
        let output = shell(&root()).args(["-c", &code]).output().unwrap();
        let fails = answer.is_some_and(|answer| answer.code.starts_with("{\"error\""));
        assert_eq!(output.status.success(), !fails, "{}\n{output:?}", request.code);
        count += 1;
    }
    assert!(count > 10, "{count} requests");
}

fn has_node() -> bool {
    Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success())
}
