//! Job report, in a file next to the output.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::answer::{Answers, RowError};
use kivu::error::Message;

/// The errors that are listed; others are only counted.
const MAX_SAMPLES: usize = 20;

/// Job progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Finished rows, including rows with errors.
    pub rows: u64,
    /// Rows with an error, by kind.
    pub errors: BTreeMap<String, u64>,
    /// The first twenty errors.
    pub samples: Vec<Sample>,
    /// The input tokens, special tokens included.
    pub tokens: u64,
    /// Texts truncated to the model's token limit.
    pub truncated: u64,
    /// Total duration of all runs in seconds, without the pauses between them.
    pub seconds: f64,
    /// Answer column names, at most twenty: `label`, or `kivu_label` if the input has a `label`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub columns: BTreeSet<String>,
}

/// A row's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Row number, from 1, without the header and empty lines.
    pub row: u64,
    /// `row`, `text`, `input`, `model` or `sink`.
    pub kind: String,
    /// Error message, without any part of the text.
    pub message: String,
}

impl Progress {
    /// Adds finished rows.
    pub fn add(&mut self, answers: &Answers) {
        for result in &answers.results {
            self.rows += 1;
            if let Err(RowError { kind, message, .. }) = result {
                *self.errors.entry(kind.name().to_owned()).or_default() += 1;
                if self.samples.len() < MAX_SAMPLES {
                    let kind = kind.name().to_owned();
                    self.samples.push(Sample {
                        row: self.rows,
                        kind,
                        message: message.to_string(),
                    });
                }
            }
        }
        self.tokens += answers.tokens;
        self.truncated += answers.truncated;
    }

    pub fn name_columns(&mut self, columns: &BTreeSet<String>) {
        if !columns.is_subset(&self.columns) {
            self.columns
                .extend(columns.iter().take(MAX_SAMPLES).cloned());
        }
    }
}

/// Final job status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The output has all rows.
    Finished,
    /// There is no output, and another attempt would fail too.
    Failed,
}

/// Job report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Whether there is an output.
    pub status: Status,
    /// A failed job's error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The same with the hint apart from the problem and its causes, for this process.
    #[serde(skip)]
    pub failure: Option<Message>,
    /// Input path or URL.
    pub input: String,
    /// An object's version, or its ETag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Output path or URL; with a sink, for the rows that it does not have.
    pub output: String,
    /// The sink, without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// BLAKE3 of a local output, which permits a later job to replace it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_digest: Option<String>,
    /// Text column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_column: Option<String>,
    /// Decisions about the input that may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Model name.
    pub model: String,
    /// Bundle digest.
    pub model_digest: String,
    /// Model task.
    pub task: String,
    /// Rows, errors and columns; in the JSON, they are fields on the report itself.
    #[serde(flatten)]
    pub progress: Progress,
}

impl Report {
    /// Whether the file has rows, and all have an error.
    pub fn has_only_errors(&self) -> bool {
        self.progress.rows > 0 && self.progress.errors.values().sum::<u64>() == self.progress.rows
    }
}
