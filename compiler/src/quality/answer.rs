//! The results of a model for a sample text, and their similarities.

use kivu::{
    backend::native::Query,
    pipeline::{pooling::cosine, sparse::SparseVector},
};

/// The labels of entities in the sample texts.
pub(super) const LABELS: [&str; 8] =
    ["person", "organization", "location", "date", "product", "event", "email address", "phone number"];

/// The result of a model for a text, at one of its outputs.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// A dense vector, or the scores of labels.
    Vector(Vec<f32>),
    Sparse(SparseVector),
    MultiVector(MultiVectors),
}

/// The vectors of a text for late interaction, of length 1, each with `width` values.
#[derive(Clone, Debug)]
pub(super) struct MultiVectors {
    pub(super) document: Vec<f32>,
    /// `None` if queries have the form of documents.
    pub(super) query: Option<Vec<f32>>,
    pub(super) width: usize,
}

impl MultiVectors {
    fn query(&self) -> &[f32] {
        self.query.as_deref().unwrap_or(&self.document)
    }

    /// The mean of the cosines with the vectors of another model for the same text.
    fn cosine(&self, other: &Self) -> f32 {
        let all = |vectors: &Self| {
            [vectors.document.as_slice(), vectors.query.as_deref().unwrap_or_default()].concat()
        };
        let (left, right) = (all(self), all(other));
        if left.len() == right.len() { cosine(&left, &right) } else { f32::NAN }
    }
}

impl Answer {
    /// A dense vector, or scores; empty for other outputs.
    pub(super) fn values(&self) -> &[f32] {
        match self {
            Self::Vector(values) => values,
            Self::Sparse(_) | Self::MultiVector(_) => &[],
        }
    }

    /// The cosine with the same output of another model for the same text; of multi-vectors, the mean of their cosines.
    pub(super) fn cosine(&self, other: &Self) -> f32 {
        match (self, other) {
            (Self::Vector(left), Self::Vector(right)) if left.len() == right.len() => cosine(left, right),
            (Self::MultiVector(left), Self::MultiVector(right)) => left.cosine(right),
            (Self::Sparse(left), Self::Sparse(right)) => {
                let lengths = (left.dot(left) * right.dot(right)).sqrt();
                if lengths > 0.0 { left.dot(right) / lengths } else { f32::from(u8::from(left == right)) }
            }
            _ => f32::NAN,
        }
    }

    /// The similarity to the same output for each of other texts, as a search ranks them: the cosine of dense vectors, the
    /// product of sparse ones, and the mean of the largest products of the vectors of this text as a query.
    pub(super) fn similarities(&self, others: &[&Self]) -> Vec<f32> {
        let similarity: Box<dyn Fn(&Self) -> f32> = match self {
            Self::Vector(_) => Box::new(|other| self.cosine(other)),
            Self::Sparse(own) => {
                let mut weights = vec![0.0; own.0.last().map_or(0, |(id, _)| *id as usize + 1)];
                own.0.iter().for_each(|(id, weight)| weights[*id as usize] = *weight);
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

    /// The share of the ten tokens with the largest weights that are the same in both, for sparse vectors.
    pub(super) fn terms_kept(&self, other: &Self) -> Option<f32> {
        let (Self::Sparse(left), Self::Sparse(right)) = (self, other) else { return None };
        let [left, right] = [left, right].map(|vector| vector.clone().truncated(10).0);
        let kept = left.iter().filter(|(id, _)| right.iter().any(|(other, _)| other == id)).count();
        Some(if left.is_empty() { 1.0 } else { kept as f32 / left.len() as f32 })
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
        assert_eq!((left.terms_kept(&right), left.terms_kept(&left)), (Some(0.5), Some(1.0)));
        assert_eq!(sparse(&[]).cosine(&sparse(&[])), 1.0);
        assert_eq!(left.similarities(&[&left, &right, &sparse(&[(9, 1.0)])]), [25.0, 16.0, 0.0]);
        let multi = |document: &[f32], query: Option<&[f32]>| {
            let (document, query) = (document.to_vec(), query.map(<[f32]>::to_vec));
            Answer::MultiVector(MultiVectors { document, query, width: 2 })
        };
        let (left, right) = (multi(&[1.0, 0.0, 0.0, 1.0], None), multi(&[0.6, 0.8, 0.0, 1.0], None));
        assert!((left.cosine(&right) - 0.8).abs() < 1e-6);
        let found = left.similarities(&[&left, &right]);
        assert!((found[0] - 1.0).abs() < 1e-6 && (found[1] - 0.8).abs() < 1e-6, "{found:?}");
        // A query is compared with documents.
        let query = multi(&[1.0, 0.0], Some(&[0.0, 1.0, 0.6, 0.8]));
        assert!((query.similarities(&[&left])[0] - 0.9).abs() < 1e-6);
    }
}
