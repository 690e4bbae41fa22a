//! ONNX Runtime for builds and for models that run in it; installs it if this machine lacks it.

use std::{fs, path::Path};

use tempfile::NamedTempFile;

use super::pip::{self, Package};
use crate::plan::progress::Progress;
use kivu::{
    Error, Result,
    config::Config,
    onnx::{
        Runtime,
        library::{FOLDER, VERSION, file_name, locate},
    },
    regular_file,
    repository::bundle::sha256_of,
};

/// Loads ONNX Runtime. If the configuration names no library and this machine has none, it is installed first, which
/// `announce` tells the user.
pub fn load(
    config: &Config,
    announce: impl FnOnce(&str),
    progress: &dyn Progress,
) -> Result<Runtime> {
    let located = match locate(config.onnxruntime.as_deref(), &config.home) {
        Err(_) if config.onnxruntime.is_none() => {
            announce(&format!(
                "installing ONNX Runtime {VERSION} into `{}`",
                config.home.display()
            ));
            Library::of(std::env::consts::ARCH)?.install(&config.home, progress)?;
            locate(None, &config.home)
        }
        located => located,
    };
    Runtime::load(&located?)
}

/// An ONNX Runtime build, published in a Python wheel.
#[derive(Debug)]
pub struct Library {
    /// Architecture name in Rust, and on Lambda.
    architectures: [&'static str; 2],
    wheel_sha256: &'static str,
    wheel_size: u64,
    sha256: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        architectures: ["x86_64", "x86_64"],
        wheel_sha256: "11a8df4dcfe9ad5ff0bd71a7571dbed019fabc7594676c89fe8b86ea029c246f",
        wheel_size: 18_176_043,
        sha256: "50775d390eb55e7abd9f6d734da103a04f0e5342ef0a76b1c6ec795544439295",
    },
    Library {
        architectures: ["aarch64", "arm64"],
        wheel_sha256: "35c7c7b0ac2e02001d28fab6c9fc24e9abc5e6faa35e6e19c63cecf1406ba89f",
        wheel_size: 16_043_752,
        sha256: "8cac3d595f13c6c87c7d9b0590083f299bdd654def63960a58c8407b8b112328",
    },
];

/// Python version for the downloaded wheel. The wheels for all versions contain the same library.
const PYTHON: &str = "3.11";

impl Library {
    /// Finds the library by architecture name, Rust's or Lambda's.
    pub fn of(architecture: &str) -> Result<&'static Self> {
        let library = LIBRARIES
            .iter()
            .find(|library| library.architectures.contains(&architecture));
        library.ok_or_else(|| {
            Error::config(format!(
                "expected Linux on x86_64 or aarch64, but found {architecture}"
            ))
            .with_hint("set `onnxruntime` to the path of a library for this system")
        })
    }

    /// Refuses a file with a different SHA-256.
    pub fn verify(&self, path: &Path) -> Result<()> {
        let found = sha256_of(path)?;
        if found == self.sha256 {
            return Ok(());
        }
        Err(Error::model(format!(
            "expected `{}` to have the SHA-256 {}, but found {found}",
            path.display(),
            self.sha256
        ))
        .with_hint("remove it and run `kivu doctor --fix`"))
    }

    /// Downloads the library and its licences into `home`.
    pub fn install(&self, home: &Path, progress: &dyn Progress) -> Result<()> {
        let package = Package {
            requirement: &format!("onnxruntime=={VERSION}"),
            sha256: self.wheel_sha256,
            size: Some(self.wheel_size),
            platform: Some((&format!("manylinux_2_28_{}", self.architectures[0]), PYTHON)),
        };
        let library = |package: &Path| package.join("onnxruntime/capi").join(file_name());
        let check = |package: &Path| self.verify(&library(package));
        let unpacked = pip::package(&package, home, progress, check)?;
        let (source, folder) = (library(&unpacked), home.join(FOLDER));
        let unpacked = unpacked.join("onnxruntime");
        fs::create_dir_all(&folder).map_err(Error::cannot("create", folder.display()))?;
        // Anyone who distributes the library, as `make package` does, has to include its licences.
        copy(&unpacked.join("LICENSE"), &folder.join("LICENSE.txt"))?;
        copy(
            &unpacked.join("ThirdPartyNotices.txt"),
            &folder.join("ThirdPartyNotices.txt"),
        )?;
        copy(&source, &folder.join(file_name()))
    }
}

/// Copies a file atomically; `target` is never partial.
fn copy(source: &Path, target: &Path) -> Result<()> {
    let failed = || Error::cannot("write", target.display());
    let partial =
        NamedTempFile::new_in(target.parent().unwrap_or(Path::new("."))).map_err(failed())?;
    regular_file::copy(source, partial.path()).map_err(failed())?;
    partial
        .persist(target)
        .map_err(|error| failed()(error.error))?;
    Ok(())
}
