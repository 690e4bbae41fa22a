//! Row results and their columns.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use serde_json::value::RawValue;

use kivu::{
    error::Message,
    json::Ordered,
    pipeline::{
        embedding::vectors::StoredVector, entities::Entity, redaction::placeholders::Mapping,
    },
};

/// A model's result for one text: one cell per model column.
pub type Answer = Vec<Cell>;

/// An answer's value in one column.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    Text(Arc<str>),
    /// A text whose numbers are not those of the file yet.
    Numbered(Numbered),
    Number(f32),
    Texts(Vec<Arc<str>>),
    Vector(StoredVector),
    Numbers(Vec<f32>),
    Entities(Vec<Entity>),
    /// Values by the names in a schema.
    Extracted(Ordered),
    /// Weights by token id or word.
    #[serde(serialize_with = "map")]
    Weights(Vec<(String, f32)>),
    Vectors(Vec<Vec<f32>>),
    /// A cell of a column with JSON, as it was written.
    #[serde(serialize_with = "as_written")]
    Json(String),
}

/// A text whose placeholders are numbered by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbered {
    pub text: String,
    /// The originals.
    pub mapping: Mapping,
}

fn as_written<S: Serializer>(json: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let json: &RawValue = serde_json::from_str(json).map_err(S::Error::custom)?;
    json.serialize(serializer)
}

fn map<S: Serializer>(entries: &[(String, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, weight)| (name, weight)))
}

/// [`Cell`] types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellType {
    Text,
    Number,
    Texts,
    Numbers,
    Int8s,
    Uint8s,
    /// A JSON value; its text where columns have no such type.
    Json,
}

/// A column's name and type.
pub type Column = (&'static str, CellType);

/// The columns that a model adds to a row, except [`ERROR_COLUMN`].
pub type Columns = Arc<[Column]>;

/// Columns for a label and its score.
pub fn label_columns() -> Columns {
    [("label", CellType::Text), ("score", CellType::Number)].into()
}

pub fn score_column() -> Columns {
    [("score", CellType::Number)].into()
}

/// Error column, after the answer columns.
pub const ERROR_COLUMN: &str = "error";

/// Names of all added columns.
pub fn names(columns: &[Column]) -> impl Iterator<Item = &'static str> {
    columns.iter().map(|(name, _)| *name).chain([ERROR_COLUMN])
}

/// A row's answer, or the reason for its failure.
pub type RowResult = Result<Answer, RowError>;

/// A single row's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    pub kind: ErrorKind,
    pub message: Message,
    /// The output line, if the row is a request.
    pub response: Option<String>,
}

/// Error kinds that a report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorKind {
    /// The row is malformed.
    Row,
    /// The row has no text.
    Text,
    /// The model does not accept the text.
    Input,
    /// The model failed.
    Model,
    /// The row cannot be stored in the sink.
    Sink,
}

impl ErrorKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Text => "text",
            Self::Input => "input",
            Self::Model => "model",
            Self::Sink => "sink",
        }
    }
}

impl RowError {
    pub fn new(kind: ErrorKind, message: impl Into<Message>) -> Self {
        Self {
            kind,
            message: message.into(),
            response: None,
        }
    }

    pub fn with_hint(self, hint: &str) -> Self {
        Self {
            message: self.message.with_hint(hint),
            ..self
        }
    }
}

/// Row results, with the model's usage.
#[derive(Debug, Default)]
pub struct Answers {
    pub results: Vec<RowResult>,
    pub tokens: u64,
    /// Texts that were truncated.
    pub truncated: u64,
}
