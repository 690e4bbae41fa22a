//! Where jobs read and write.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use kivu::{
    Error, Result,
    repository::s3::{Object, Store, Url},
};

/// Job input.
#[derive(Clone, Debug)]
pub enum JobInput {
    /// A local path; a FIFO or a device is read as a stream.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// An object in S3, with its properties when the job was created. With a version, this version is read.
    Object(Arc<dyn Store>, Url, Object),
}

/// Job output.
#[derive(Clone, Debug)]
pub enum JobOutput {
    /// A local path; a FIFO or a device is written as a stream.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// An object in S3.
    Object(Arc<dyn Store>, Url),
}

/// The treatment of files from earlier runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Replace an output that Kivu did not write, or that was changed since.
    pub overwrite: bool,
    /// Start an unfinished job from the beginning instead of resuming it.
    pub restart: bool,
}

impl JobInput {
    /// Checks that an object is still the current one at its key.
    ///
    /// # Errors
    /// The object was replaced or deleted, which [`Change::of`] tells.
    pub fn check_current(&self) -> Result<()> {
        let Self::Object(store, url, object) = self else {
            return Ok(());
        };
        store
            .change(url, object)?
            .map_or(Ok(()), |change| Err(change.error(url)))
    }
}

impl JobOutput {
    /// The output stream; `None` if the output is a regular file or an object.
    pub fn stream(&self) -> Option<OutputStream> {
        match self {
            Self::File(path) => OutputStream::of(path),
            Self::Stdout => Some(OutputStream::Stdout),
            Self::Object(..) => None,
        }
    }

    /// Whether the output is standard output, also by a name such as `/dev/stdout`.
    pub fn is_stdout(&self) -> bool {
        self.stream() == Some(OutputStream::Stdout)
    }
}

impl fmt::Display for JobInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Stdin => f.write_str("standard input"),
            Self::Object(_, url, _) => url.fmt(f),
        }
    }
}

impl fmt::Display for JobOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Stdout => f.write_str("standard output"),
            Self::Object(_, url) => url.fmt(f),
        }
    }
}

/// Names for this process's standard output, which may be redirected to a regular file.
const STDOUT: [&str; 4] = [
    "/dev/stdout",
    "/dev/fd/1",
    "/proc/self/fd/1",
    "/proc/thread-self/fd/1",
];

/// An output that is written once, in order, and cannot be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    /// A FIFO, a device or another special file.
    Special(PathBuf),
}

impl OutputStream {
    /// The stream at `path`; `None` for a regular file, a folder or a missing file.
    ///
    /// Links to special files are followed, since `/dev/stdout` is one.
    pub fn of(path: &Path) -> Option<Self> {
        if STDOUT.iter().any(|stdout| path == Path::new(stdout)) {
            return Some(Self::Stdout);
        }
        let found = fs::metadata(path).ok()?;
        (!found.is_file() && !found.is_dir()).then(|| Self::Special(path.to_owned()))
    }

    /// Opens the stream. Waits for a FIFO's reader.
    pub fn open(&self) -> Result<File> {
        match self {
            Self::Stdout => {
                let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
                file.map_err(Error::io("cannot write to standard output"))
            }
            Self::Special(path) => {
                let file = OpenOptions::new().write(true).open(path);
                file.map_err(Error::cannot("write", path.display()))
            }
        }
    }
}
