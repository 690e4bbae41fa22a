//! Files that are mapped into memory: whatever is written to them changes a loaded model, and reading a part that was
//! cut off ends the process (SIGBUS).

use std::{
    fs::{File, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

/// Mapped files as they were when they were opened.
///
/// A file that another one replaced by its name, as `kivu build` does it, is still what it was: the mapping goes on with
/// the old one.
#[derive(Debug, Default)]
pub struct MappedFiles {
    files: Vec<MappedFile>,
}

#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    /// Open, so that the file is known whatever its name is.
    file: File,
    version: Version,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
}

impl From<Metadata> for Version {
    fn from(found: Metadata) -> Self {
        Self {
            file: (found.dev(), found.ino()),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        }
    }
}

impl MappedFiles {
    /// Opens files that will be mapped. This comes before they are hashed, so that no change goes unnoticed.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let open = |path: PathBuf| {
            let failed = || Error::io(format!("cannot read `{}`", path.display()));
            let file = File::open(&path).map_err(failed())?;
            let version = file.metadata().map_err(failed())?.into();
            Ok(MappedFile { path, file, version })
        };
        Ok(Self { files: paths.into_iter().map(open).collect::<Result<_>>()? })
    }

    /// Fails unless what was hashed and mapped meanwhile, by its path, are the files that were opened.
    pub fn require_loaded(&self) -> Result<()> {
        let is_same = |file: &MappedFile| file.path.metadata().is_ok_and(|now| file.version == now.into());
        match self.files.iter().find(|file| file.has_changed() || !is_same(file)) {
            None => Ok(()),
            Some(file) => Err(Error::model(format!(
                "expected `{}` to stay as it is while it is loaded, but it changed; start again",
                file.path.display()
            ))),
        }
    }

    /// The first file that was written to since it was opened. Takes a system call for each file.
    pub fn changed(&self) -> Option<&Path> {
        self.files.iter().find(|file| file.has_changed()).map(|file| file.path.as_path())
    }

    /// Fails if a file was written to. The error is for callers, and names no path.
    pub(super) fn require_unchanged(&self) -> Result<()> {
        match self.changed() {
            None => Ok(()),
            Some(_) => Err(Error::unavailable(
                "the files of the model were changed after it was loaded; it can be used again after a restart",
            )),
        }
    }
}

impl MappedFile {
    fn has_changed(&self) -> bool {
        // A file that cannot be looked at any more, as on a network drive that is gone, cannot be read either.
        !self.file.metadata().is_ok_and(|now| self.version == now.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_written_to_is_found_and_one_that_was_replaced_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.bin");
        let write_again = |bytes: &[u8]| fs::write(&path, bytes).unwrap();
        let cut = || File::options().write(true).open(&path).unwrap().set_len(1).unwrap();
        let touch = || {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
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
            let mapped = MappedFiles::open([path.clone()]).unwrap();
            change();
            assert_eq!(mapped.changed(), has_changed.then_some(path.as_path()), "{what}");
            assert_eq!(mapped.require_unchanged().is_err(), has_changed, "{what}");
            assert_eq!(mapped.require_loaded().is_ok(), is_loaded, "{what}");
        }
    }
}
