//! Detects changes to memory-mapped files. Writing to a mapped file changes the loaded model, and reading a part that
//! was truncated ends the process (SIGBUS).

use std::{
    fs::{File, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use kivu_base::{Error, Result, regular_file};
use kivu_core::backend::MappedFiles;

/// Mapped files, and their state when they were opened.
///
/// Replacing a file by renaming another, as `kivu build` does, does not count: the mapping keeps the old file.
#[derive(Debug)]
pub struct OpenedFiles {
    files: Vec<OpenedFile>,
}

#[derive(Debug)]
struct OpenedFile {
    path: PathBuf,
    /// Kept open, so that a rename does not matter.
    file: File,
    version: Version,
}

/// Metadata that changes when a file is replaced or written: device, inode, size, and modification time.
type Version = (u64, u64, u64, i64, i64);

fn version(metadata: &Metadata) -> Version {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    )
}

impl OpenedFiles {
    /// Opens files that will be mapped. Call it before they are hashed, so that every change is noticed.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let open = |path: PathBuf| {
            let failed = || Error::cannot("read", path.display());
            let file = regular_file::open(&path).map_err(failed())?;
            let version = version(&file.metadata().map_err(failed())?);
            Ok(OpenedFile {
                path,
                file,
                version,
            })
        };
        Ok(Self {
            files: paths.into_iter().map(open).collect::<Result<_>>()?,
        })
    }

    /// Fails if a file was changed or replaced since [`OpenedFiles::open`]. Call it after the files were hashed and
    /// mapped by their paths.
    pub fn require_loaded(&self) -> Result<()> {
        let is_same = |file: &OpenedFile| {
            file.path
                .metadata()
                .is_ok_and(|now| file.version == version(&now))
        };
        match self
            .files
            .iter()
            .find(|file| file.has_changed() || !is_same(file))
        {
            None => Ok(()),
            Some(file) => Err(Error::model(format!(
                "`{}` changed while it was loaded",
                file.path.display()
            ))
            .with_hint("start again")),
        }
    }
}

impl MappedFiles for OpenedFiles {
    fn changed(&self) -> Option<&Path> {
        self.files
            .iter()
            .find(|file| file.has_changed())
            .map(|file| file.path.as_path())
    }
}

impl OpenedFile {
    fn has_changed(&self) -> bool {
        // Files without metadata, for example on a network drive that is gone, cannot be read either.
        !self
            .file
            .metadata()
            .is_ok_and(|now| self.version == version(&now))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use kivu_core::backend::require_unchanged;

    #[test]
    fn writes_are_detected_and_renames_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.bin");
        let write_again = |bytes: &[u8]| fs::write(&path, bytes).unwrap();
        let cut = || {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(1)
                .unwrap()
        };
        let touch = || {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap();
        };
        let replace = || {
            let new = folder.path().join("new");
            fs::write(&new, "other bytes").unwrap();
            fs::rename(new, &path).unwrap();
        };
        let remove = || fs::remove_file(&path).unwrap();
        let cases: [(&str, &dyn Fn(), bool, bool); 6] = [
            ("nothing", &|| {}, false, true),
            ("longer", &|| write_again(b"longer bytes"), true, false),
            ("shorter", &cut, true, false),
            ("written to, of the same length", &touch, true, false),
            ("replaced by its name", &replace, false, false),
            ("removed", &remove, false, false),
        ];
        for (what, change, has_changed, is_loaded) in cases {
            write_again(b"bytes");
            let mapped = OpenedFiles::open([path.clone()]).unwrap();
            change();
            assert_eq!(
                mapped.changed(),
                has_changed.then_some(path.as_path()),
                "{what}"
            );
            assert_eq!(
                require_unchanged(Some(&mapped)).is_err(),
                has_changed,
                "{what}"
            );
            assert_eq!(mapped.require_loaded().is_ok(), is_loaded, "{what}");
        }
    }
}
