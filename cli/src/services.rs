//! Optional services that a program links into the command.

use std::path::{Path, PathBuf};

use serde::Serialize;

use kivu::{Result, cloud::Cloud, model::Model};
use kivu_compiler::Progress as BuildProgress;
use kivu_jobs::{Parquet, Sinks};

/// Services besides files on this machine; by default there are none.
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

/// Searches files; a program that links `kivu-search` has it.
pub type Search = fn(&SearchRequest<'_>) -> Result<Found>;

/// The arguments of a search.
pub struct SearchRequest<'a> {
    /// Files and folders.
    pub paths: &'a [PathBuf],
    /// The question that passages are ranked by.
    pub question: &'a str,
    /// The embedding model.
    pub model: &'a Model,
    /// The model that ranks the nearest passages.
    pub ranker: Option<&'a Model>,
    /// The maximum number of results.
    pub top: usize,
    /// The folder for indexes.
    pub home: &'a Path,
    /// Observes files whose passages get vectors.
    pub progress: &'a dyn BuildProgress,
}

/// The results of a search.
#[derive(Debug, Serialize)]
pub struct Found {
    /// The best first.
    pub hits: Vec<Hit>,
    /// Notes for the user, such as skipped files.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// The number of passages that were compared.
    pub passages: usize,
    /// The index.
    pub index: PathBuf,
}

/// A passage.
#[derive(Debug, Serialize)]
pub struct Hit {
    /// Its file.
    pub file: String,
    /// The line in which it begins, from 1.
    pub line: u32,
    /// The cosine, or the ranking model's score.
    pub score: f32,
    /// The passage.
    pub text: String,
}
