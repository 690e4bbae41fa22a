//! Locates and loads ONNX Runtime's shared library.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use ort::environment::Environment;

use kivu_base::{Error, Result};

/// ONNX Runtime version that this crate is built, measured and tested with: the fastest measured version that sends no
/// telemetry by default.
pub const VERSION: &str = "1.26.0";

/// The library's folder below the home folder.
pub const FOLDER: &str = "onnxruntime";

/// The first version that sends telemetry by default. A server in a customer's account must not.
const FIRST_WITH_TELEMETRY: (u32, u32) = (1, 29);

/// The hint for a missing or unusable library.
const FETCH: &str = "run `kivu doctor --fix` to fetch it";

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// The library's folder in the package that this code is a part of, if it is no program.
static PACKAGE: OnceLock<PathBuf> = OnceLock::new();

/// Adds a folder to the [`candidates`], for packages that are loaded into another program, such as Python. The first
/// call counts.
pub fn add_package(folder: PathBuf) {
    let _ = PACKAGE.set(folder);
}

/// Library file name in the official archives.
pub fn file_name() -> String {
    format!("libonnxruntime.so.{VERSION}")
}

/// ONNX Runtime, loaded into this process.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// The process's only environment, shared by all sessions.
    pub environment: &'static Environment,
}

impl Runtime {
    /// Loads the library at `path`. A process loads it once; later calls return the loaded one, whatever their path.
    ///
    /// Refuses a library whose file name has a version that sends telemetry.
    pub fn load(path: &Path) -> Result<Self> {
        if let Some(environment) = ENVIRONMENT.get() {
            return Ok(Self { environment });
        }
        refuse_telemetry(path)?;
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            let path = path.display();
            Error::model_because(format!("cannot load ONNX Runtime from `{path}`"), source)
                .with_hint(FETCH)
        };
        let builder = ort::init_from(path).map_err(|error| failed(error.into()))?;
        let environment = builder
            .with_telemetry(false)
            .build()
            .map_err(|error| failed(error.into()))?;
        environment.set_log_level(ort::logging::LogLevel::Error);
        Ok(Self {
            environment: ENVIRONMENT.get_or_init(|| environment),
        })
    }
}

/// Possible library paths, in order of preference: `configured` alone if it is set; otherwise the folder `lib`
/// next to the executable, as in archives, then `lib/kivu` next to the executable's folder, as in installed
/// packages, and then `home`. A [package's](add_package) folder comes before them.
pub fn candidates(configured: Option<&Path>, home: &Path) -> Vec<PathBuf> {
    if let Some(path) = configured {
        return vec![path.to_owned()];
    }
    let executable = std::env::current_exe().ok();
    let folder = executable.as_deref().and_then(Path::parent);
    let archived = folder.map(|folder| folder.join("lib"));
    let installed = folder
        .and_then(Path::parent)
        .map(|prefix| prefix.join("lib/kivu"));
    let package = PACKAGE.get().cloned();
    let folders = package
        .into_iter()
        .chain(archived)
        .chain(installed)
        .chain([home.join(FOLDER)]);
    folders.map(|folder| folder.join(file_name())).collect()
}

/// First existing path among the [`candidates`].
pub fn locate(configured: Option<&Path>, home: &Path) -> Result<PathBuf> {
    let found = candidates(configured, home)
        .into_iter()
        .find(|path| path.is_file());
    found.ok_or_else(|| match configured {
        Some(path) => Error::model(format!(
            "expected ONNX Runtime at `{}`, but found no file",
            path.display()
        )),
        None => Error::model(format!(
            "expected ONNX Runtime as `{}` or in the folder `lib` or `../lib/kivu` next to this \
             program, but found none",
            home.join(FOLDER).join(file_name()).display()
        ))
        .with_hint(FETCH),
    })
}

fn refuse_telemetry(path: &Path) -> Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let mut numbers = name
        .rsplit(".so.")
        .next()
        .unwrap_or_default()
        .split('.')
        .map(str::parse::<u32>);
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) >= FIRST_WITH_TELEMETRY
    {
        return Err(Error::model(format!(
            "expected ONNX Runtime before {}.{}, the first version that sends telemetry, but found `{name}`",
            FIRST_WITH_TELEMETRY.0, FIRST_WITH_TELEMETRY.1
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_sends_telemetry_is_refused() {
        let error = Runtime::load(Path::new("/nowhere/libonnxruntime.so.1.31.1")).unwrap_err();
        insta::assert_snapshot!(error, @"expected ONNX Runtime before 1.29, the first version that sends telemetry, but found `libonnxruntime.so.1.31.1`");
        assert!(refuse_telemetry(Path::new("/nowhere/libonnxruntime.so.1.28.0")).is_ok());
        assert!(refuse_telemetry(Path::new("/nowhere/libonnxruntime.so")).is_ok());
    }

    #[test]
    fn a_configured_path_is_the_only_candidate() {
        let home = Path::new("/home");
        assert_eq!(
            candidates(Some(Path::new("/a/b.so")), home),
            [PathBuf::from("/a/b.so")]
        );
        assert!(candidates(None, home).contains(&home.join(FOLDER).join(file_name())));
    }
}
