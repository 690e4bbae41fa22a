//! Outputs that are written once, in order, and cannot be resumed.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

/// Names of the standard output of this process, which may be redirected to a regular file.
const STDOUT: [&str; 4] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"];

/// An output stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OutputStream {
    Stdout,
    /// A FIFO, a device or another special file.
    Special(PathBuf),
}

impl OutputStream {
    /// The stream at `path`; `None` for a regular file, a folder or a missing file.
    ///
    /// Links to special files are followed, since `/dev/stdout` is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        if STDOUT.iter().any(|stdout| path == Path::new(stdout)) {
            return Some(Self::Stdout);
        }
        let found = fs::metadata(path).ok()?;
        (!found.is_file() && !found.is_dir()).then(|| Self::Special(path.to_owned()))
    }

    /// Opens the stream. Waits for the reader of a FIFO.
    pub(super) fn open(&self) -> Result<File> {
        match self {
            Self::Stdout => {
                let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
                file.map_err(Error::io("cannot write to standard output"))
            }
            Self::Special(path) => {
                let file = OpenOptions::new().write(true).open(path);
                file.map_err(Error::io(format!("cannot write `{}`", path.display())))
            }
        }
    }
}
