//! Vectors one after another, as packages return them in one array.

use kivu::pipeline::embedding::vectors::StoredVector;

/// Vectors per token.
#[derive(Debug)]
pub struct TokenVectors {
    /// The vectors one after another.
    pub values: Vec<f32>,
    /// How many vectors each text has.
    pub counts: Vec<u32>,
    /// How many values each vector has.
    pub width: u32,
}

impl TokenVectors {
    /// Joins each text's vectors.
    pub fn new(vectors: Vec<Vec<Vec<f32>>>) -> Self {
        let counts = vectors.iter().map(|text| text.len() as u32).collect();
        let width = vectors.iter().flatten().next().map_or(0, Vec::len) as u32;
        Self {
            values: vectors.into_iter().flatten().collect::<Vec<_>>().concat(),
            counts,
            width,
        }
    }
}

/// Vectors of one format as a single one.
pub fn joined(vectors: Vec<StoredVector>) -> StoredVector {
    let (mut floats, mut signed, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for vector in vectors {
        match vector {
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
