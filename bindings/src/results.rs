//! What tasks return.

use kivu::{Result, pipeline::embedding::vectors::StoredVector};
use serde::Serialize;

use crate::json::to_json;

/// A task's results for its inputs.
#[derive(Debug)]
pub enum Results {
    /// Vectors of one format.
    Vectors {
        /// All texts' vectors.
        rows: Vec<StoredVector>,
        /// How many vectors each text has.
        counts: Vec<u32>,
    },
    /// Sparse vectors.
    Sparse(Vec<Weights>),
    /// JSON, equal to the server's response.
    Json(String),
}

/// A sparse vector: weights by token, by ascending token id.
pub type Weights = Vec<(Token, f32)>;

/// A token in a sparse vector.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Token {
    /// A token's id.
    Id(u32),
    /// A token's word, if words are requested and it has one.
    Word(String),
}

/// Results in JavaScript's forms.
#[derive(Debug)]
pub enum Joined {
    /// Vectors of one format.
    Vectors {
        /// The vectors one after another.
        values: StoredVector,
        /// How many vectors each text has.
        counts: Vec<u32>,
    },
    /// JSON. A sparse vector is a list with pairs of a token id or word, and its weight.
    Json(String),
}

impl Results {
    /// Joins vectors.
    pub fn joined(self) -> Result<Joined> {
        Ok(match self {
            Self::Vectors { rows, counts } => Joined::Vectors {
                values: joined(rows),
                counts,
            },
            Self::Sparse(weights) => Joined::Json(to_json(&weights)?),
            Self::Json(json) => Joined::Json(json),
        })
    }
}

fn joined(rows: Vec<StoredVector>) -> StoredVector {
    let (mut floats, mut signed, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        match row {
            StoredVector::Float(values) => floats.push(values),
            StoredVector::Int8(values) => signed.push(values),
            StoredVector::Uint8(values) => bytes.push(values),
        }
    }
    match (signed.is_empty(), bytes.is_empty()) {
        (true, true) => StoredVector::Float(floats.concat()),
        (false, _) => StoredVector::Int8(signed.concat()),
        (true, false) => StoredVector::Uint8(bytes.concat()),
    }
}
