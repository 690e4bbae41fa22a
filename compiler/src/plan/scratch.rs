//! A build's scratch folder and child processes. Both end with the build, even if it is interrupted. If a build is
//! killed, the next one removes its folder.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{Mutex, MutexGuard},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::files::io::create_folder;
use kivu::{Error, Result, locked};

/// Name prefix for scratch folders.
const PREFIX: &str = ".kivu-build-";
/// A file in a scratch folder, locked while its build runs.
const LOCK: &str = "kivu-build.lock";

/// Resources for all builds in this process.
static RESOURCES: Mutex<Resources> = Mutex::new(Resources {
    folders: Vec::new(),
    programs: Vec::new(),
});

struct Resources {
    folders: Vec<PathBuf>,
    programs: Vec<u32>,
}

fn resources() -> MutexGuard<'static, Resources> {
    locked(&RESOURCES)
}

/// A folder, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    folder: Option<TempDir>,
    path: PathBuf,
    /// Released when the file is closed, at the latest when the process ends.
    _lock: Option<File>,
}

impl Scratch {
    /// Creates a scratch folder in `parent`, and removes folders left by killed builds.
    pub fn new_in(parent: &Path) -> Result<Self> {
        create_folder(parent)?;
        remove_stale(parent);
        let mut resources = resources();
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(parent)
            .map_err(Error::cannot("create a folder in", parent.display()))?;
        let path = folder.path().to_owned();
        resources.folders.push(path.clone());
        // Without a lock, the folder is not removed if this build is killed.
        let lock = lock(&path).ok();
        Ok(Self {
            folder: Some(folder),
            path,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut resources = resources();
        resources.folders.retain(|folder| *folder != self.path);
        // The next build removes what cannot be removed now.
        let _ = self.folder.take().map(TempDir::close);
    }
}

/// Creates a lock in `folder`. It gets its name only once it is locked, so that no other build finds it unlocked.
fn lock(folder: &Path) -> io::Result<File> {
    let (new, path) = (folder.join("new.lock"), folder.join(LOCK));
    let file = File::create(&new)?;
    file.try_lock()?;
    fs::rename(new, path)?;
    Ok(file)
}

/// Removes the scratch folders in `parent` that nobody has locked. Keeps folders without a lock.
fn remove_stale(parent: &Path) {
    let entries = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(io::Result::ok);
    for entry in entries {
        let is_scratch = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let lock = entry.path().join(LOCK);
        let is_stale = || {
            fs::symlink_metadata(&lock).is_ok_and(|kind| kind.is_file())
                && File::open(&lock).is_ok_and(|lock| lock.try_lock().is_ok())
        };
        if is_scratch && is_stale() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a program to its end. [`abandon`] terminates it.
pub fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let mut child = {
        let mut resources = resources();
        let child = command.spawn()?;
        resources.programs.push(child.id());
        child
    };
    let status = child.wait();
    resources()
        .programs
        .retain(|program| *program != child.id());
    status
}

/// Terminates the programs and removes the scratch folders of all builds in this process, which then fail. For a
/// process about to exit.
pub fn abandon() {
    const ATTEMPTS: usize = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    let mut resources = resources();
    for program in resources.programs.drain(..) {
        if let Some(program) = i32::try_from(program).ok().and_then(Pid::from_raw) {
            // The program may have ended already.
            let _ = kill_process(program, Signal::TERM);
        }
    }
    for folder in resources.folders.drain(..) {
        // The build may still be writing to it.
        for _ in 0..ATTEMPTS {
            if fs::remove_dir_all(&folder).is_ok() || !folder.exists() {
                break;
            }
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_build_removes_only_unused_scratch_folders() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        // After a build was killed, its lock exists and is not held.
        fs::create_dir(at(".kivu-build-killed")).unwrap();
        fs::write(at(".kivu-build-killed").join(LOCK), "").unwrap();
        fs::create_dir(at(".kivu-build-notes")).unwrap();
        fs::write(at(".kivu-build-notes").join("notes.txt"), "").unwrap();
        let first = Scratch::new_in(parent.path()).unwrap();
        assert!(!at(".kivu-build-killed").exists());
        let second = Scratch::new_in(parent.path()).unwrap();
        assert!(
            first.path().exists() && second.path().exists() && at(".kivu-build-notes").exists()
        );
        let paths = [first.path().to_owned(), second.path().to_owned()];
        drop((first, second));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
