//! Where jobs read and write.

use std::{fmt, path::PathBuf};

use super::stream::OutputStream;
use crate::repository::s3::{Object, Store, Url};

/// The input of a job.
#[derive(Clone, Debug)]
pub enum JobInput {
    /// A local path; a FIFO or a device is read as a stream.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// An object in S3, with its properties when the job was created.
    Object(Store, Url, Object),
}

/// The output of a job.
#[derive(Clone, Debug)]
pub enum JobOutput {
    /// A local path; a FIFO or a device is written as a stream.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// An object in S3.
    Object(Store, Url),
}

/// The treatment of files of earlier runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Replace an output that Kivu did not write, or that was changed since.
    pub overwrite: bool,
    /// Start an unfinished job from the beginning instead of resuming it.
    pub restart: bool,
}

impl JobOutput {
    /// The stream that is written, unless the output is a regular file or an object.
    pub(super) fn stream(&self) -> Option<OutputStream> {
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
