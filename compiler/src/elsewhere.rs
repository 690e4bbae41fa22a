//! Bundles of local models built into a custom folder, such as `bundles/NAME`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{files, path_id::canonical};
use kivu::{
    error::{Error, Result},
    repository::{Bundle, bundle::MANIFEST},
};

/// Compiler version; bundles depend on it.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// File with a bundle's location.
const NAME: &str = "elsewhere.json";

/// A bundle built from a folder or a recipe into another folder.
#[derive(Serialize, Deserialize)]
pub(super) struct Elsewhere {
    version: String,
    id: String,
    bundle: PathBuf,
    /// Identifies the bundle, which may have been replaced.
    digest: String,
}

impl Elsewhere {
    /// The bundle at `path`, built from a source with this id.
    pub(super) fn new(id: &str, bundle: &Bundle, path: &Path) -> Result<Self> {
        let (version, id, digest) = (VERSION.to_owned(), id.to_owned(), bundle.digest().to_owned());
        Ok(Self { version, id, bundle: canonical(path)?, digest })
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::model_because("cannot write the bundle's location", error))?;
        files::write(&folder.join(NAME), &text)
    }

    /// Reads the entry for the last bundle built from the model in `folder`.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&files::read(&folder.join(NAME)).ok()?).ok()
    }

    /// Build time and path, if the bundle exists and was built by this version from a source with this id.
    pub(super) fn find(self, id: &str) -> Option<(SystemTime, PathBuf)> {
        let is_current = self.version == VERSION && self.id == id;
        let is_same = || Bundle::open(&self.bundle).is_ok_and(|bundle| bundle.digest() == self.digest);
        if !is_current || !is_same() {
            return None;
        }
        Some((built(&self.bundle)?, self.bundle))
    }
}

pub(super) fn built(bundle: &Path) -> Option<SystemTime> {
    fs::metadata(bundle.join(MANIFEST)).and_then(|found| found.modified()).ok()
}
