//! Finding and loading ONNX Runtime's shared library.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use ort::environment::Environment;

use crate::error::{Error, Result};

/// The version that this crate is built, measured and tested with.
///
/// 1.26.0 was the fastest of those measured; from 1.29 on the library reports home by default, which a
/// server in somebody else's account must not do.
pub const VERSION: &str = "1.26.0";

/// The folder of the library, under the home of what is fetched.
pub const FOLDER: &str = "onnxruntime";

/// The first version whose library reports home.
const FIRST_WITH_TELEMETRY: (u32, u32) = (1, 29);

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// The file name of the library, as its makers name it.
pub fn file_name() -> String {
    format!("libonnxruntime.so.{VERSION}")
}

/// ONNX Runtime, loaded into this process.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    environment: &'static Environment,
}

impl Runtime {
    /// Loads the library at `path`. Only the first load of a process counts; later ones return it.
    ///
    /// The library is refused where it lies under the name of a version that reports home.
    pub fn load(path: &Path) -> Result<Self> {
        if let Some(environment) = ENVIRONMENT.get() {
            return Ok(Self { environment });
        }
        refuse_telemetry(path)?;
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            Error::model_because(
                format!("cannot load ONNX Runtime from `{}`; `kivu doctor --fix` fetches it", path.display()),
                source,
            )
        };
        let builder = ort::init_from(path).map_err(|error| failed(Box::new(error)))?;
        let environment = builder.with_telemetry(false).build().map_err(|error| failed(Box::new(error)))?;
        environment.set_log_level(ort::logging::LogLevel::Error);
        Ok(Self { environment: ENVIRONMENT.get_or_init(|| environment) })
    }

    /// The environment that sessions are made in.
    pub(super) fn environment(self) -> &'static Environment {
        self.environment
    }
}

/// The places where the library is looked for, best first: the configured path alone, or `lib/` beside the program
/// (where a deployment archive has it), then `home`.
pub fn candidates(configured: Option<&Path>, home: &Path) -> Vec<PathBuf> {
    if let Some(path) = configured {
        return vec![path.to_owned()];
    }
    let mut places = Vec::new();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(folder.join("lib").join(file_name()));
    }
    places.push(home.join(FOLDER).join(file_name()));
    places
}

/// The first of the [`candidates`] that is there.
pub fn locate(configured: Option<&Path>, home: &Path) -> Result<PathBuf> {
    let places = candidates(configured, home);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        Error::model(match configured {
            Some(path) => format!("expected ONNX Runtime at `{}`, but found nothing there", path.display()),
            None => format!(
                "expected ONNX Runtime as `{}` or in `lib` beside this program, but found neither; \
                 `kivu doctor --fix` fetches it",
                home.join(FOLDER).join(file_name()).display()
            ),
        })
    })
}

fn refuse_telemetry(path: &Path) -> Result<()> {
    let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut numbers = name.rsplit(".so.").next().unwrap_or_default().split('.').map(str::parse::<u32>);
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) >= FIRST_WITH_TELEMETRY
    {
        return Err(Error::model(format!(
            "expected an ONNX Runtime older than {}.{}, which is the first that reports home, but found `{name}`",
            FIRST_WITH_TELEMETRY.0, FIRST_WITH_TELEMETRY.1
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_reports_home_is_refused_by_its_name() {
        let error = Runtime::load(Path::new("/nowhere/libonnxruntime.so.1.31.1")).unwrap_err();
        insta::assert_snapshot!(error, @"expected an ONNX Runtime older than 1.29, which is the first that reports home, but found `libonnxruntime.so.1.31.1`");
        assert!(refuse_telemetry(Path::new("/nowhere/libonnxruntime.so.1.28.0")).is_ok());
        assert!(refuse_telemetry(Path::new("/nowhere/libonnxruntime.so")).is_ok());
    }

    #[test]
    fn a_configured_path_is_the_only_candidate() {
        let home = Path::new("/home");
        assert_eq!(candidates(Some(Path::new("/a/b.so")), home), [PathBuf::from("/a/b.so")]);
        assert!(candidates(None, home).contains(&home.join(FOLDER).join(file_name())));
    }
}
