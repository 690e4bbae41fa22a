//! What a job tells of itself, in a file beside its output.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    answer::Answers,
    rows::{Outcome, RowError},
};

/// Errors that are told one by one; others are counted only.
const MOST_SAMPLES: usize = 20;

/// How far a job has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Rows that are done, those with errors included.
    pub rows: u64,
    /// Rows that have an error in place of an answer, by its kind.
    pub errors: BTreeMap<String, u64>,
    /// The first of these errors.
    pub samples: Vec<Sample>,
    /// Tokens that went into the model.
    pub tokens: u64,
    /// Texts that were cut to the most tokens that the model takes.
    pub truncated: u64,
    /// Seconds that it took, all attempts together.
    pub seconds: f64,
    /// The names of the columns of answers, up to twenty: `label`, or `kivu_label` where the input has a `label`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub columns: BTreeSet<String>,
}

/// An error, and the row that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The row, counted from 1, without the header of CSV and without empty lines.
    pub row: u64,
    /// The kind of the error.
    pub kind: String,
    /// What was expected and what was found; nothing of the text.
    pub message: String,
}

impl Progress {
    /// Counts rows that are done.
    pub(super) fn add(&mut self, answers: &Answers) {
        for outcome in &answers.outcomes {
            self.rows += 1;
            if let Outcome::Err(RowError { kind, message }) = outcome {
                *self.errors.entry(kind.name().to_owned()).or_default() += 1;
                if self.samples.len() < MOST_SAMPLES {
                    let kind = kind.name().to_owned();
                    self.samples.push(Sample { row: self.rows, kind, message: message.clone() });
                }
            }
        }
        self.tokens += answers.tokens;
        self.truncated += answers.truncated;
    }

    /// Remembers the names of columns of answers.
    pub(super) fn name_columns(&mut self, columns: &BTreeSet<String>) {
        if !columns.is_subset(&self.columns) {
            self.columns.extend(columns.iter().take(MOST_SAMPLES).cloned());
        }
    }

    /// Adds what another job did of the rows behind these.
    pub(super) fn join(&mut self, other: &Self) {
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        let room = MOST_SAMPLES.saturating_sub(self.samples.len());
        let samples = other.samples.iter().take(room);
        self.samples.extend(samples.map(|sample| Sample { row: sample.row + self.rows, ..sample.clone() }));
        self.rows += other.rows;
        self.tokens += other.tokens;
        self.truncated += other.truncated;
        self.seconds += other.seconds;
        self.name_columns(&other.columns);
    }
}

/// What came of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every row is in the output.
    Finished,
    /// The input cannot be read: there is no output, and another attempt would not help.
    Failed,
}

/// The report of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What came of it.
    pub status: Status,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The file that was read.
    pub input: String,
    /// Its version, or the server's mark of its contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The file that was written.
    pub output: String,
    /// The BLAKE3 hash of the output, if it is a file of this machine: by it Kivu knows what it may replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_digest: Option<String>,
    /// What the reader of the report should know of how the input was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The name of the model.
    pub model: String,
    /// The identity of its bundle.
    pub model_digest: String,
    /// What it does.
    pub task: String,
    /// Rows that nobody answered, as first and last, where parts of a large job failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<[u64; 2]>,
    /// What was done.
    #[serde(flatten)]
    pub progress: Progress,
}
