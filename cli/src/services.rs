//! What a program adds to the command.

use super::search::Search;
use kivu::cloud::Cloud;
use kivu_jobs::{Parquet, Sinks};

/// What a program links for the command besides files on this machine; by default nothing.
#[derive(Debug, Default)]
pub struct Services {
    /// Objects, secrets and counts.
    pub cloud: Cloud,
    /// Databases and search indexes for `kivu batch`.
    pub sinks: Sinks,
    /// Parquet files.
    pub parquet: Parquet,
    /// Search in files.
    pub search: Option<Search>,
}
