//! Operations on local files.

use std::{
    fs::{self, Metadata},
    io,
    path::Path,
};

use tempfile::TempPath;

use kivu::{Error, Result, regular_file};

/// Metadata for `path` without following links; `None` if it does not exist.
pub fn lookup(path: &Path) -> Result<Option<Metadata>> {
    regular_file::if_exists(fs::symlink_metadata(path))
        .map_err(Error::cannot("access", path.display()))
}

/// Removes a file, if it exists.
pub fn remove(path: &Path) -> Result<()> {
    let removed = regular_file::if_exists(fs::remove_file(path));
    removed
        .map(drop)
        .map_err(Error::cannot("remove", path.display()))
}

/// Renames a file unless `to` exists, atomically if the file system supports it.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    TempPath::try_from_path(from)?
        .persist_noclobber(to)
        .or_else(|refused| {
            // `TempPath` would remove the file.
            let _ = refused.path.keep();
            match (refused.error.kind(), fs::symlink_metadata(to)) {
                (io::ErrorKind::AlreadyExists, _) | (_, Ok(_)) => Err(refused.error),
                _ => fs::rename(from, to),
            }
        })
}

/// A file's BLAKE3, in hexadecimal.
pub fn digest(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let hashed = regular_file::open(path).and_then(|file| hasher.update_reader(file).map(drop));
    hashed.map_err(Error::cannot("read", path.display()))?;
    Ok(hasher.finalize().to_hex().to_string())
}
