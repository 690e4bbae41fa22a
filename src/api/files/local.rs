//! Files and batches in a local folder, which only its owner can read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use super::storage::{Contents, Storage};
use crate::{
    batch::{JobInput, JobOutput},
    error::{Error, Result},
    regular_file,
};

const LOCK: &str = "lock";
/// Prefix for objects that are being written.
const UNFINISHED: &str = ".unfinished-";

#[derive(Debug)]
pub(super) struct LocalStorage {
    root: PathBuf,
    /// Locked by the process that runs batches.
    lock: OnceLock<File>,
}

impl LocalStorage {
    pub(super) fn open(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root).map_err(failed("use", root))?;
        create_folder(&root)?;
        Ok(Self {
            root,
            lock: OnceLock::new(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

fn create_folder(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed("create", path))
}

fn failed(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io(format!("cannot {verb} `{}`", path.display()))
}

/// `None` for an object that does not exist.
fn found<T>(result: io::Result<T>, path: &Path) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

impl Storage for LocalStorage {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        found(regular_file::read(&path), &path)
    }

    fn write(&self, name: &str, contents: Vec<u8>) -> Result<()> {
        self.store(name, &mut contents.as_slice()).map(drop)
    }

    fn store(&self, name: &str, contents: &mut dyn Read) -> Result<u64> {
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&self.root);
        create_folder(folder)?;
        let file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(folder);
        let mut file = file.map_err(failed("write", &path))?;
        let size = io::copy(contents, &mut file).map_err(failed("write", &path))?;
        file.as_file().sync_all().map_err(failed("write", &path))?;
        file.persist(&path)
            .map_err(|refused| failed("write", &path)(refused.error))?;
        Ok(size)
    }

    fn open(&self, name: &str) -> Result<Option<Contents>> {
        let path = self.path(name);
        let Some(file) = found(regular_file::open(&path), &path)? else {
            return Ok(None);
        };
        let size = file.metadata().map_err(failed("read", &path))?.len();
        Ok(Some((size, Box::new(file))))
    }

    fn link(&self, _: &str, _: u64) -> Result<Option<String>> {
        Ok(None)
    }

    fn copy(&self, from: &str, to: &str) -> Result<bool> {
        let (source, target) = (self.path(from), self.path(to));
        create_folder(target.parent().unwrap_or(&self.root))?;
        match fs::hard_link(&source, &target) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            // Some file systems have no links.
            Err(_) => match self.open(from)? {
                Some((_, mut contents)) => self.store(to, &mut contents).map(|_| true),
                None => Ok(false),
            },
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        found(fs::remove_file(&path), &path).map(drop)
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.path(folder);
        let Some(entries) = found(fs::read_dir(&path), &path)? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("read", &path))?;
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            names.extend(entry.file_name().into_string().ok().filter(|_| is_file));
        }
        names.sort();
        Ok(names)
    }

    fn folders(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.root).map_err(failed("read", &self.root))?;
        let folders = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(folders
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect())
    }

    fn tidy(&self, folder: &str, age: Duration) -> Result<()> {
        for name in self
            .list(folder)?
            .iter()
            .filter(|name| name.starts_with(UNFINISHED))
        {
            let path = self.path(folder).join(name);
            let written = fs::metadata(&path).and_then(|found| found.modified());
            let is_old = written.is_ok_and(|written| {
                SystemTime::now()
                    .duration_since(written)
                    .is_ok_and(|found| found >= age)
            });
            if is_old {
                found(fs::remove_file(&path), &path)?;
            }
        }
        Ok(())
    }

    fn input(&self, name: &str) -> Result<Option<JobInput>> {
        let path = self.path(name);
        Ok(found(fs::metadata(&path), &path)?.map(|_| JobInput::File(path)))
    }

    fn output(&self, name: &str) -> JobOutput {
        JobOutput::File(self.path(name))
    }

    fn lock(&self) -> Result<bool> {
        if self.lock.get().is_some() {
            return Ok(true);
        }
        let path = self.path(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = file.map_err(failed("write", &path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(false),
            // Some file systems do not support locks.
            Ok(()) | Err(TryLockError::Error(_)) => {
                let _ = self.lock.set(file);
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_objects_have_names() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("made by the test"))
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::open(folder.path()).unwrap();
        assert!(
            storage
                .store("a/one", &mut (&b"start"[..]).chain(Broken))
                .is_err()
        );
        assert_eq!(storage.list("a").unwrap(), Vec::<String>::new());
        storage.write("a/two", b"2".to_vec()).unwrap();
        assert!(storage.copy("a/two", "b/three").unwrap());
        storage.remove("a/two").unwrap();
        assert_eq!(storage.read("a/two").unwrap(), None);
        assert_eq!(storage.read("b/three").unwrap().unwrap(), b"2");
        assert!(!storage.copy("a/two", "b/four").unwrap());
        fs::write(folder.path().join("a/.unfinished-x"), "").unwrap();
        storage.tidy("a", Duration::from_hours(1)).unwrap();
        assert_eq!(storage.list("a").unwrap().len(), 1);
        storage.tidy("a", Duration::ZERO).unwrap();
        assert!(storage.list("a").unwrap().is_empty());
    }

    #[test]
    fn one_process_runs_batches() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| LocalStorage::open(folder.path()).unwrap());
        assert!(one.lock().unwrap() && one.lock().unwrap());
        assert!(!other.lock().unwrap());
        drop(one);
        assert!(other.lock().unwrap());
    }
}
