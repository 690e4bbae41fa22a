//! The interface to a program that fetches models for `/api/pull`.

use std::{fmt, path::PathBuf};

#[cfg(doc)]
use kivu::Error;
use kivu::Result;

/// Fetches models that are not served yet.
pub trait FetchModel: fmt::Debug + Send + Sync {
    /// Refuses names that no model can have.
    fn check(&self, name: &str) -> Result<()>;

    /// Fetches or builds the model with this name, and returns its bundle's path. Clients see the message of
    /// [`Error::Invalid`], which is about the name, and of no other error.
    fn fetch(&self, name: &str, report: &(dyn Fn(FetchProgress) + Sync)) -> Result<PathBuf>;
}

/// The progress of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchProgress {
    /// A stage begins.
    Stage(String),
    /// A part of a download is done.
    Bytes {
        /// What is downloaded.
        name: String,
        /// Its size in bytes.
        total: u64,
        /// Downloaded bytes.
        completed: u64,
    },
}
