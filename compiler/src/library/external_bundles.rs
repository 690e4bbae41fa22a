//! Bundles of local models built into a custom folder, such as `bundles/NAME`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use crate::{files::io as files, plan::path_id::canonical};
use kivu::{
    Error, Result,
    repository::{Bundle, bundle::MANIFEST},
};

/// Compiler version; bundles depend on it.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// File with a bundle's location.
const NAME: &str = "elsewhere.json";

/// A bundle built from a folder or a recipe into another folder.
#[derive(Serialize, Deserialize)]
pub struct ExternalBundles {
    version: String,
    /// The source of the bundle.
    source: PathBuf,
    id: String,
    bundle: PathBuf,
    /// Identifies the bundle, which may have been replaced.
    digest: String,
}

impl ExternalBundles {
    /// The bundle at `path`, built from `source`, which has this id.
    pub fn new(source: &Path, id: &str, bundle: &Bundle, path: &Path) -> Result<Self> {
        let (version, id, digest) = (
            VERSION.to_owned(),
            id.to_owned(),
            bundle.digest().to_owned(),
        );
        Ok(Self {
            version,
            source: canonical(source)?,
            id,
            bundle: canonical(path)?,
            digest,
        })
    }

    /// Writes the entry into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::model_because("cannot write the bundle's location", error))?;
        files::write(&folder.join(NAME), &text)
    }

    /// Reads the entry for the last bundle built from the model in `folder`.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&files::read(&folder.join(NAME)).ok()?).ok()
    }

    /// Build time and path, if the bundle exists and was built by this version from a source with this id.
    pub fn find(self, id: &str) -> Option<(SystemTime, PathBuf)> {
        let is_current = self.version == VERSION && self.id == id;
        if !is_current || !self.is_there() {
            return None;
        }
        Some((built(&self.bundle)?, self.bundle))
    }

    /// The source of the bundle at `path`, if this record is for it.
    pub fn source_of(self, path: &Path) -> Option<PathBuf> {
        (self.bundle == path && self.is_there()).then_some(self.source)
    }

    /// Whether the bundle exists and was not replaced.
    fn is_there(&self) -> bool {
        Bundle::open(&self.bundle).is_ok_and(|bundle| bundle.digest() == self.digest)
    }
}

/// When the bundle's manifest was last written; `None` if that is unknown.
pub fn built(bundle: &Path) -> Option<SystemTime> {
    fs::metadata(bundle.join(MANIFEST))
        .and_then(|found| found.modified())
        .ok()
}
