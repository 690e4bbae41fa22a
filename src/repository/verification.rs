//! Verifies a bundle's files with several threads.

use std::path::PathBuf;

use super::{
    bundle::{Bundle, check},
    hashes::FileHashes,
    manifest::File,
};
use kivu_base::{Error, Result};

/// Verifies a bundle's files; threads can share the work.
#[derive(Debug)]
pub struct Verification<'a> {
    files: Vec<(&'a File, PathBuf)>,
    hashes: FileHashes,
}

impl Verification<'_> {
    /// Hashes file parts until none is left. Other threads may still be busy then.
    pub fn work(&self) -> Result<()> {
        self.hashes.work()
    }

    /// Compares sizes and digests with the manifest, once all threads are done.
    pub fn finish(&self) -> Result<()> {
        let unfinished = || Error::model("the files of the bundle are not verified");
        let hashes = self.hashes.finish().ok_or_else(unfinished)?;
        let mut found = self.files.iter().zip(hashes);
        found.try_for_each(|((file, path), (size, hash))| check(file, path, size, hash))
    }
}

impl Bundle {
    /// Begins to verify all files in a local folder except the names in `except`.
    pub fn verification(&self, except: &[&str]) -> Result<Verification<'_>> {
        let files = self
            .manifest()
            .files
            .iter()
            .filter(|file| !except.contains(&file.name.as_str()));
        let files: Vec<(&File, PathBuf)> =
            files.map(|file| (file, self.path(&file.name))).collect();
        let hashes = FileHashes::open(files.iter().map(|(_, path)| path.clone()))?;
        Ok(Verification { files, hashes })
    }
}
