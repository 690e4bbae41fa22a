//! Operations on local files.

use std::{
    fs::{self, Metadata},
    io,
    path::Path,
};

use tempfile::TempPath;

use kivu::{
    error::{Error, Result},
    regular_file,
};

/// Metadata for `path` without following links; `None` if it does not exist.
pub fn lookup(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::cannot("access", path.display())(error)),
    }
}

/// Removes a file, if it exists.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::cannot("remove", path.display())(error))
        }
        _ => Ok(()),
    }
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
