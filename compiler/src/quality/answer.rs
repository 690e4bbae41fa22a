//! A model's results for a sample text, and their similarities.

use kivu::{
    backend::similarity::Query,
    pipeline::embedding::{similarity::cosine, sparse::SparseVector},
};

/// Entity labels in the sample texts.
pub const LABELS: [&str; 8] = [
    "person",
    "organization",
    "location",
    "date",
    "product",
    "event",
    "email address",
    "phone number",
];

/// Difference between equal values after rounding, as a share of the largest.
const SAME: f32 = 1e-5;

/// A model's result for a text, at one output.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A dense vector, or label scores.
    Vector(Vec<f32>),
    Sparse(SparseVector),
    MultiVector(MultiVectors),
}

/// A text's vectors for late interaction, normalized, each with `width` values.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiVectors {
    pub document: Vec<f32>,
    /// `None` if queries have the same form as documents.
    pub query: Option<Vec<f32>>,
    pub width: usize,
}

impl MultiVectors {
    fn query(&self) -> &[f32] {
        self.query.as_deref().unwrap_or(&self.document)
    }

    /// Mean cosine with another model's vectors for the same text.
    fn cosine(&self, other: &Self) -> f32 {
        let all = |vectors: &Self| {
            [
                vectors.document.as_slice(),
                vectors.query.as_deref().unwrap_or_default(),
            ]
            .concat()
        };
        let (left, right) = (all(self), all(other));
        if left.len() == right.len() {
            cosine(&left, &right)
        } else {
            f32::NAN
        }
    }
}

impl Answer {
    /// A dense vector, or scores; empty for other outputs.
    pub fn values(&self) -> &[f32] {
        match self {
            Self::Vector(values) => values,
            Self::Sparse(_) | Self::MultiVector(_) => &[],
        }
    }

    /// Whether another text's output is the same, apart from rounding.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Vector(left), Self::Vector(right)) => {
                let largest = left
                    .iter()
                    .fold(0.0_f32, |largest, value| largest.max(value.abs()));
                left.len() == right.len()
                    && left
                        .iter()
                        .zip(right)
                        .all(|(left, right)| (left - right).abs() <= largest * SAME)
            }
            _ => self == other,
        }
    }

    /// Values per output, for outputs with a fixed or token-dependent number of values.
    pub fn size(&self) -> usize {
        match self {
            Self::Vector(values) => values.len(),
            Self::Sparse(_) => 0,
            Self::MultiVector(vectors) => {
                vectors.document.len() + vectors.query.as_ref().map_or(0, Vec::len)
            }
        }
    }

    /// Cosine with another model's output for the same text; for multi-vectors, the mean of their cosines.
    pub fn cosine(&self, other: &Self) -> f32 {
        match (self, other) {
            (Self::Vector(left), Self::Vector(right)) if left.len() == right.len() => {
                cosine(left, right)
            }
            (Self::MultiVector(left), Self::MultiVector(right)) => left.cosine(right),
            (Self::Sparse(left), Self::Sparse(right)) => {
                let lengths = (left.dot(left) * right.dot(right)).sqrt();
                if lengths > 0.0 {
                    left.dot(right) / lengths
                } else {
                    f32::from(u8::from(left == right))
                }
            }
            _ => f32::NAN,
        }
    }

    /// Similarity to the same output for each of other texts, as in a search: cosine for dense vectors, dot product for
    /// sparse ones, and mean maximum product (MaxSim) for multi-vectors, with this text as the query.
    pub fn similarities(&self, others: &[&Self]) -> Vec<f32> {
        let similarity: Box<dyn Fn(&Self) -> f32> = match self {
            Self::Vector(_) => Box::new(|other| self.cosine(other)),
            Self::Sparse(own) => {
                let mut weights = vec![0.0; own.0.last().map_or(0, |(id, _)| *id as usize + 1)];
                own.0
                    .iter()
                    .for_each(|(id, weight)| weights[*id as usize] = *weight);
                let product = move |(id, weight): &(u32, f32)| {
                    weights.get(*id as usize).map_or(0.0, |own| own * weight)
                };
                Box::new(move |other| match other {
                    Self::Sparse(other) => other.0.iter().map(&product).sum(),
                    _ => f32::NAN,
                })
            }
            Self::MultiVector(own) => {
                let query = Query::new(own.query(), own.width);
                Box::new(move |other| match other {
                    Self::MultiVector(other) => {
                        let largest = query.largest_products(&other.document);
                        largest.iter().sum::<f32>() / largest.len().max(1) as f32
                    }
                    _ => f32::NAN,
                })
            }
        };
        others.iter().map(|other| similarity(other)).collect()
    }

    /// Share of the ten top-weighted tokens common to both, for sparse vectors.
    pub fn terms_kept(&self, other: &Self) -> Option<f32> {
        let (Self::Sparse(left), Self::Sparse(right)) = (self, other) else {
            return None;
        };
        let [left, right] = [left, right].map(|vector| vector.clone().truncated(10).0);
        let kept = left
            .iter()
            .filter(|(id, _)| right.iter().any(|(other, _)| other == id))
            .count();
        Some(if left.is_empty() {
            1.0
        } else {
            kept as f32 / left.len() as f32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_vectors_and_multi_vectors_are_compared() {
        let sparse = |entries: &[(u32, f32)]| Answer::Sparse(SparseVector(entries.to_vec()));
        let (left, right) = (sparse(&[(1, 3.0), (5, 4.0)]), sparse(&[(2, 3.0), (5, 4.0)]));
        assert!((left.cosine(&right) - 0.64).abs() < 1e-6);
        assert_eq!(
            (left.terms_kept(&right), left.terms_kept(&left)),
            (Some(0.5), Some(1.0))
        );
        assert_eq!(sparse(&[]).cosine(&sparse(&[])), 1.0);
        assert_eq!(
            left.similarities(&[&left, &right, &sparse(&[(9, 1.0)])]),
            [25.0, 16.0, 0.0]
        );
        let multi = |document: &[f32], query: Option<&[f32]>| {
            let (document, query) = (document.to_vec(), query.map(<[f32]>::to_vec));
            Answer::MultiVector(MultiVectors {
                document,
                query,
                width: 2,
            })
        };
        let (left, right) = (
            multi(&[1.0, 0.0, 0.0, 1.0], None),
            multi(&[0.6, 0.8, 0.0, 1.0], None),
        );
        assert!((left.cosine(&right) - 0.8).abs() < 1e-6);
        let found = left.similarities(&[&left, &right]);
        assert!(
            (found[0] - 1.0).abs() < 1e-6 && (found[1] - 0.8).abs() < 1e-6,
            "{found:?}"
        );
        // A query is compared with documents.
        let query = multi(&[1.0, 0.0], Some(&[0.0, 1.0, 0.6, 0.8]));
        assert!((query.similarities(&[&left])[0] - 0.9).abs() < 1e-6);
    }
}
