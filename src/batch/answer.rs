//! Row results and their columns.

use std::{ops::Deref, sync::Arc};

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

/// A column's name and type.
type Column = (&'static str, CellType);

/// The columns that a model adds to a row, except [`ERROR_COLUMN`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    list: [Column; Self::MAX],
    count: usize,
}

impl Columns {
    /// Vectors of three kinds.
    const MAX: usize = 3;
}

impl FromIterator<Column> for Columns {
    /// Takes at most three columns.
    fn from_iter<I: IntoIterator<Item = Column>>(columns: I) -> Self {
        let mut list = [("", CellType::Json); Self::MAX];
        let places = list.iter_mut().zip(columns);
        let count = places.map(|(place, column)| *place = column).count();
        Self { list, count }
    }
}

/// Columns for a label and its score.
pub(super) const LABEL: Columns = Columns {
    list: [("label", CellType::Text), ("score", CellType::Number), ("", CellType::Json)],
    count: 2,
};

pub(super) const SCORE: Columns =
    Columns { list: [("score", CellType::Number), ("", CellType::Json), ("", CellType::Json)], count: 1 };

impl<const N: usize> From<[Column; N]> for Columns {
    fn from(columns: [Column; N]) -> Self {
        columns.into_iter().collect()
    }
}

impl Deref for Columns {
    type Target = [Column];

    fn deref(&self) -> &[Column] {
        &self.list[..self.count]
    }
}

/// Error column, after the answer columns.
pub(super) const ERROR_COLUMN: &str = "error";

/// Names of all added columns.
pub(super) fn names(columns: Columns) -> impl Iterator<Item = &'static str> {
    (0..columns.len()).map(move |place| columns[place].0).chain([ERROR_COLUMN])
}

/// A row's answer, or the reason for its failure.
pub(super) type RowResult = Result<Answer, RowError>;

/// A single row's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowError {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    /// The output line, if the row is a request.
    pub(super) response: Option<String>,
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
        Self { kind, message: message.into(), response: None }
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
