//! The report of a job, in a file next to its output.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::answer::{Answers, RowError};

/// The errors that are listed; others are only counted.
const MAX_SAMPLES: usize = 20;

/// The progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Finished rows, including those with errors.
    pub rows: u64,
    /// The number of rows with an error, by kind.
    pub errors: BTreeMap<String, u64>,
    /// The first twenty errors.
    pub samples: Vec<Sample>,
    /// The input tokens, special tokens included.
    pub tokens: u64,
    /// Texts that were truncated to the maximum of the model.
    pub truncated: u64,
    /// The duration of all runs, without the pauses between them.
    pub seconds: f64,
    /// The names of the columns of answers, at most twenty: `label`, or `kivu_label` if the input has a `label`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub columns: BTreeSet<String>,
}

/// The error of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of the row, from 1, without the header and empty lines.
    pub row: u64,
    /// `row`, `text`, `input` or `model`.
    pub kind: String,
    /// The message, without any part of the text.
    pub message: String,
}

impl Progress {
    /// Adds finished rows.
    pub(super) fn add(&mut self, answers: &Answers) {
        for result in &answers.results {
            self.rows += 1;
            if let Err(RowError { kind, message }) = result {
                *self.errors.entry(kind.name().to_owned()).or_default() += 1;
                if self.samples.len() < MAX_SAMPLES {
                    let kind = kind.name().to_owned();
                    self.samples.push(Sample { row: self.rows, kind, message: message.clone() });
                }
            }
        }
        self.tokens += answers.tokens;
        self.truncated += answers.truncated;
    }

    /// Adds names of columns of answers.
    pub(super) fn name_columns(&mut self, columns: &BTreeSet<String>) {
        if !columns.is_subset(&self.columns) {
            self.columns.extend(columns.iter().take(MAX_SAMPLES).cloned());
        }
    }

    /// Adds the progress of a job with the next rows.
    pub(super) fn join(&mut self, other: &Self) {
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        let room = MAX_SAMPLES.saturating_sub(self.samples.len());
        let samples = other.samples.iter().take(room);
        self.samples.extend(samples.map(|sample| Sample { row: sample.row + self.rows, ..sample.clone() }));
        self.rows += other.rows;
        self.tokens += other.tokens;
        self.truncated += other.truncated;
        self.seconds += other.seconds;
        self.name_columns(&other.columns);
    }
}

/// The final status of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The output has all rows.
    Finished,
    /// There is no output, and another attempt would fail too.
    Failed,
}

/// The report of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Whether there is an output.
    pub status: Status,
    /// The error of a failed job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The path or URL of the input.
    pub input: String,
    /// The version of an object, or its ETag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The path or URL of the output.
    pub output: String,
    /// The BLAKE3 of a local output, which permits a later job to replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_digest: Option<String>,
    /// The column of texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_column: Option<String>,
    /// Decisions about the input that may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The name of the model.
    pub model: String,
    /// The digest of its bundle.
    pub model_digest: String,
    /// The task of the model.
    pub task: String,
    /// Ranges of missing rows, first and last, if parts of a distributed map were lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<[u64; 2]>,
    /// The rows, errors and columns; in the JSON they are fields of the report itself.
    #[serde(flatten)]
    pub progress: Progress,
}

impl Report {
    /// Whether the file has rows, and all of them have an error.
    pub fn has_only_errors(&self) -> bool {
        self.progress.rows > 0 && self.progress.errors.values().sum::<u64>() == self.progress.rows
    }
}
