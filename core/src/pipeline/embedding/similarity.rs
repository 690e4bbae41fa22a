//! How two vectors are compared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A measure of similarity, larger for closer vectors: `SimilarityFunction` in sentence-transformers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Similarity {
    /// The cosine of the angle between both vectors, whatever their lengths.
    #[default]
    Cosine,
    /// Their dot product.
    Dot,
    /// Their distance, negated.
    Euclidean,
    /// The sum of the absolute differences of their values, negated.
    Manhattan,
}

impl Similarity {
    /// Whether it is that of most models.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Compares two vectors of the same length.
    pub fn of(self, left: &[f32], right: &[f32]) -> f32 {
        let differences = || left.iter().zip(right).map(|(left, right)| left - right);
        match self {
            Self::Cosine => cosine(left, right),
            Self::Dot => dot(left, right),
            Self::Euclidean => -differences()
                .map(|difference| difference * difference)
                .sum::<f32>()
                .sqrt(),
            Self::Manhattan => -differences().map(f32::abs).sum::<f32>(),
        }
    }
}

/// Cosine similarity; 0 if a vector is zero.
pub fn cosine(left: &[f32], right: &[f32]) -> f32 {
    let lengths = (dot(left, left) * dot(right, right)).sqrt();
    if lengths > 0.0 {
        dot(left, right) / lengths
    } else {
        0.0
    }
}

/// Dot product of two vectors of the same length.
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter()
        .zip(right)
        .map(|(left, right)| left * right)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_of_known_angles() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 5.0]), 0.0);
    }

    #[test]
    fn each_similarity_of_two_vectors() {
        let [left, right] = [[3.0, 0.0], [0.0, 4.0]];
        let found = [
            Similarity::Cosine,
            Similarity::Dot,
            Similarity::Euclidean,
            Similarity::Manhattan,
        ]
        .map(|similarity| {
            [
                similarity.of(&left, &right),
                similarity.of(&left, &[6.0, 0.0]),
            ]
        });
        assert_eq!(found, [[0.0, 1.0], [0.0, 18.0], [-5.0, -3.0], [-7.0, -3.0]]);
    }
}
