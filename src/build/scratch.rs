//! What a build has under way: a folder that it works in, and programs that it runs. Neither outlives the build, also
//! where that is interrupted; the folder of a build that was killed is removed by the next one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::error::{Error, Result};

/// How the names of scratch folders begin.
const PREFIX: &str = ".kivu-build-";
/// A file in a scratch folder that is locked while its build runs.
const LOCK: &str = "kivu-build.lock";

/// What all builds of this process have under way.
static UNDER_WAY: Mutex<UnderWay> = Mutex::new(UnderWay { folders: Vec::new(), programs: Vec::new() });

struct UnderWay {
    folders: Vec<PathBuf>,
    programs: Vec<u32>,
}

fn under_way() -> MutexGuard<'static, UnderWay> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that is removed with this value.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: Option<TempDir>,
    path: PathBuf,
    /// Unlocked when it is closed, at the latest by the end of the process.
    _lock: Option<File>,
}

impl Scratch {
    /// Makes a scratch folder in `parent`, and removes those that builds left there which were killed.
    pub(super) fn new_in(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent).map_err(Error::io(format!("cannot create `{}`", parent.display())))?;
        remove_stale(parent);
        let mut under_way = under_way();
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(parent)
            .map_err(Error::io(format!("cannot create a folder in `{}`", parent.display())))?;
        let path = folder.path().to_owned();
        under_way.folders.push(path.clone());
        // Where files cannot be locked, only the next build has less to tidy up.
        let lock = lock(&path).ok();
        Ok(Self { folder: Some(folder), path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut under_way = under_way();
        under_way.folders.retain(|folder| *folder != self.path);
        // What cannot be removed now is left to the next build.
        let _ = self.folder.take().map(TempDir::close);
    }
}

/// A lock in `folder`, which has its name only once it is locked: no other build finds it unlocked before.
fn lock(folder: &Path) -> io::Result<File> {
    let (new, path) = (folder.join("new.lock"), folder.join(LOCK));
    let file = File::create(&new)?;
    file.try_lock()?;
    fs::rename(new, path)?;
    Ok(file)
}

/// Removes the scratch folders in `parent` whose locks nobody holds. A folder without a lock is left alone, whatever its
/// name is.
fn remove_stale(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().filter_map(io::Result::ok);
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

/// Runs a program to its end. An interrupted build ends it: see [`abandon`].
pub(super) fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let mut child = {
        let mut under_way = under_way();
        let child = command.spawn()?;
        under_way.programs.push(child.id());
        child
    };
    let status = child.wait();
    under_way().programs.retain(|program| *program != child.id());
    status
}

/// Ends the programs and removes the scratch folders of all builds of this process, which fail then: for a process that
/// is about to end.
pub fn abandon() {
    const ATTEMPTS: usize = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    let mut under_way = under_way();
    for program in under_way.programs.drain(..) {
        if let Some(program) = i32::try_from(program).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(program, Signal::TERM);
        }
    }
    for folder in under_way.folders.drain(..) {
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
    fn a_scratch_folder_is_removed_by_the_next_build_unless_it_is_in_use_or_of_somebody_else() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        // As a build leaves it that is killed: the lock is there, and nobody holds it.
        fs::create_dir(at(".kivu-build-killed")).unwrap();
        fs::write(at(".kivu-build-killed").join(LOCK), "").unwrap();
        fs::create_dir(at(".kivu-build-notes")).unwrap();
        fs::write(at(".kivu-build-notes").join("notes.txt"), "").unwrap();
        let first = Scratch::new_in(parent.path()).unwrap();
        assert!(!at(".kivu-build-killed").exists());
        let second = Scratch::new_in(parent.path()).unwrap();
        assert!(first.path().exists() && second.path().exists() && at(".kivu-build-notes").exists());
        let paths = [first.path().to_owned(), second.path().to_owned()];
        drop((first, second));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
