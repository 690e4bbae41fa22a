//! The results of rows, and the columns that they become.

use std::sync::Arc;

use serde::Serialize;

/// The result of a model for one text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Embedding(Vec<f32>),
    Label {
        label: Arc<str>,
        score: f32,
    },
    /// Best first.
    Labels {
        labels: Vec<Arc<str>>,
        scores: Vec<f32>,
    },
    Score(f32),
    Translation(String),
}

/// The kinds of answers; a job has answers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Embedding,
    Label,
    Labels,
    Score,
    Translation,
}

/// The value of an answer in one column.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Cell<'a> {
    Text(&'a str),
    Number(f32),
    Texts(&'a [Arc<str>]),
    Numbers(&'a [f32]),
}

/// The types of [`Cell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellType {
    Text,
    Number,
    Texts,
    Numbers,
}

/// The column for errors, which follows those of the answers.
pub(super) const ERROR_COLUMN: &str = "error";

impl Kind {
    /// The names and types of the columns that are added to a row, except [`ERROR_COLUMN`].
    pub(super) fn columns(self) -> &'static [(&'static str, CellType)] {
        match self {
            Self::Embedding => &[("embedding", CellType::Numbers)],
            Self::Label => &[("label", CellType::Text), ("score", CellType::Number)],
            Self::Labels => &[("labels", CellType::Texts), ("scores", CellType::Numbers)],
            Self::Score => &[("score", CellType::Number)],
            Self::Translation => &[("translation", CellType::Text)],
        }
    }

    /// The names of all columns that are added to a row.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        self.columns().iter().map(|(name, _)| *name).chain([ERROR_COLUMN])
    }
}

impl Answer {
    /// The cells in the order of [`Kind::columns`].
    pub(super) fn cells(&self) -> Vec<Cell<'_>> {
        match self {
            Self::Embedding(vector) => vec![Cell::Numbers(vector)],
            Self::Label { label, score } => vec![Cell::Text(label), Cell::Number(*score)],
            Self::Labels { labels, scores } => vec![Cell::Texts(labels), Cell::Numbers(scores)],
            Self::Score(score) => vec![Cell::Number(*score)],
            Self::Translation(text) => vec![Cell::Text(text)],
        }
    }
}

/// The answer to a row, or the reason why it has none.
pub(super) type RowResult = Result<Answer, RowError>;

/// The error of a single row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowError {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

/// The kinds of errors that a report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// The row is malformed.
    Row,
    /// The row has no text.
    Text,
    /// The model does not accept the text.
    Input,
    /// The model failed.
    Model,
}

impl ErrorKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Text => "text",
            Self::Input => "input",
            Self::Model => "model",
        }
    }
}

impl RowError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// The results of rows, with the usage of the model.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) results: Vec<RowResult>,
    pub(super) tokens: u64,
    /// Texts that were truncated.
    pub(super) truncated: u64,
}
