//! Where files and batches are kept: a local folder or a prefix in S3.

use std::{fmt::Debug, io::Read, time::Duration};

use crate::{
    batch::{JobInput, JobOutput},
    error::Result,
};

/// An object's size and contents.
pub(in crate::api) type Contents = (u64, Box<dyn Read + Send>);

/// Named objects. Names have slashes between folders; an object is complete as soon as it has its name.
///
/// All functions block.
pub(in crate::api) trait Storage: Debug + Send + Sync {
    /// Reads a small object.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Writes or replaces a small object.
    fn write(&self, name: &str, contents: Vec<u8>) -> Result<()>;

    /// Writes an object of any size, and returns its size. If reading fails, there is no object.
    fn store(&self, name: &str, contents: &mut dyn Read) -> Result<u64>;

    /// Opens an object for reading.
    fn open(&self, name: &str) -> Result<Option<Contents>>;

    /// A link to a large object, if clients can read it without this server.
    fn link(&self, name: &str, bytes: u64) -> Result<Option<String>>;

    /// Gives an object's contents a second name; `false` if there is no object.
    fn copy(&self, from: &str, to: &str) -> Result<bool>;

    /// Removes an object, if it exists.
    fn remove(&self, name: &str) -> Result<()>;

    /// Names of a folder's objects, without the folder, in alphabetical order.
    fn list(&self, folder: &str) -> Result<Vec<String>>;

    /// All folders below the root; none where objects expire without Kivu.
    fn folders(&self) -> Result<Vec<String>>;

    /// Removes what unfinished writes have left in a folder, if it is older than `age`.
    fn tidy(&self, folder: &str, age: Duration) -> Result<()>;

    /// A job's input; `None` if there is no object.
    fn input(&self, name: &str) -> Result<Option<JobInput>>;

    /// A job's output.
    fn output(&self, name: &str) -> JobOutput;

    /// Whether this process, and no other, runs batches from now on.
    fn lock(&self) -> Result<bool>;
}
