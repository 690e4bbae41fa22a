//! Row results and their columns.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::pipeline::{entities::Entity, vectors::StoredVector};

/// A model's result for one text: one cell per model column.
pub(super) type Answer = Vec<Cell>;

/// An answer's value in one column.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Cell {
    Text(Arc<str>),
    Number(f32),
    Texts(Vec<Arc<str>>),
    Vector(StoredVector),
    Numbers(Vec<f32>),
    Entities(Vec<Entity>),
    /// Weights by token id or word.
    #[serde(serialize_with = "map")]
    Weights(Vec<(String, f32)>),
    Vectors(Vec<Vec<f32>>),
}

fn map<S: Serializer>(entries: &[(String, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, weight)| (name, weight)))
}

/// [`Cell`] types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellType {
    Text,
    Number,
    Texts,
    Numbers,
    Int8s,
    Uint8s,
    /// A JSON value; its text where columns have no such type.
    Json,
}

/// Names and types of the columns that a model adds to a row, except [`ERROR_COLUMN`].
pub(super) type Columns = &'static [(&'static str, CellType)];

pub(super) const EMBEDDING: Columns = &[("embedding", CellType::Numbers)];
pub(super) const EMBEDDING_INT8: Columns = &[("embedding", CellType::Int8s)];
pub(super) const EMBEDDING_UINT8: Columns = &[("embedding", CellType::Uint8s)];
pub(super) const SPARSE: Columns = &[("sparse", CellType::Json)];
pub(super) const MULTI_VECTOR: Columns = &[("multi_vector", CellType::Json)];
pub(super) const EMBEDDING_SPARSE: Columns = &[("embedding", CellType::Numbers), ("sparse", CellType::Json)];
pub(super) const EMBEDDING_MULTI_VECTOR: Columns =
    &[("embedding", CellType::Numbers), ("multi_vector", CellType::Json)];
pub(super) const SPARSE_MULTI_VECTOR: Columns =
    &[("sparse", CellType::Json), ("multi_vector", CellType::Json)];
pub(super) const ALL_VECTORS: Columns =
    &[("embedding", CellType::Numbers), ("sparse", CellType::Json), ("multi_vector", CellType::Json)];
pub(super) const LABEL: Columns = &[("label", CellType::Text), ("score", CellType::Number)];
/// Best first.
pub(super) const LABELS: Columns = &[("labels", CellType::Texts), ("scores", CellType::Numbers)];
pub(super) const ENTITIES: Columns = &[("entities", CellType::Json)];
pub(super) const REDACTED: Columns = &[("redacted", CellType::Text), ("entities", CellType::Json)];
pub(super) const SCORE: Columns = &[("score", CellType::Number)];
pub(super) const TRANSLATION: Columns = &[("translation", CellType::Text)];
pub(super) const SUMMARY: Columns = &[("summary", CellType::Text)];
pub(super) const GENERATED: Columns = &[("generated_text", CellType::Text)];

/// Error column, after the answer columns.
pub(super) const ERROR_COLUMN: &str = "error";

/// Names of all added columns.
pub(super) fn names(columns: Columns) -> impl Iterator<Item = &'static str> {
    columns.iter().map(|(name, _)| *name).chain([ERROR_COLUMN])
}

/// The answer to a row, or the reason why it has none.
pub(super) type RowResult = Result<Answer, RowError>;

/// A single row's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowError {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

/// Error kinds that a report counts.
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

/// Row results, with the model's usage.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) results: Vec<RowResult>,
    pub(super) tokens: u64,
    /// Texts that were truncated.
    pub(super) truncated: u64,
}
