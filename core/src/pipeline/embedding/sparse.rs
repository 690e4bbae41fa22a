//! Sparse vectors: a weight per vocabulary token that a text is about, with the results of sentence-transformers
//! (`SparseEncoder`) and FlagEmbedding.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::roles::RoleSettings;
use kivu_base::{Error, Result, tensor::read_numbers};

/// Sparse vector settings: the graph output, and how it is converted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseSettings {
    /// Graph output name.
    pub output: String,
    /// Dimensions, equal to the vocabulary size.
    pub dimensions: usize,
    /// Value kind in the output.
    pub values: SparseValues,
    /// Number of the largest weights that a text has, if the model limits it and the request does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_active_dims: Option<usize>,
    /// Queries, if the model does not read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queries: Option<Box<StaticQueries>>,
}

/// Queries whose tokens have the same weights in all texts (inference-free SPLADE).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticQueries {
    /// File with one f32 weight per vocabulary token.
    pub weights: String,
    /// Query form.
    pub form: RoleSettings,
}

/// Query token weights.
#[derive(Debug)]
pub struct QueryWeights(Vec<f32>);

impl QueryWeights {
    /// Reads a weights file with this many dimensions.
    pub fn from_bytes(bytes: &[u8], dimensions: usize) -> Result<Self> {
        let weights = read_numbers(bytes, f32::from_le_bytes);
        let weights = weights.filter(|weights| weights.len() == dimensions);
        weights.map(Self).ok_or_else(|| {
            Error::model(format!(
                "expected {dimensions} weights of queries, but found {} bytes",
                bytes.len()
            ))
            .with_hint("build the bundle again")
        })
    }

    /// The vector for a query with these tokens.
    pub fn vector(&self, ids: &[u32]) -> SparseVector {
        let ids = BTreeSet::from_iter(ids);
        let weights = ids
            .into_iter()
            .filter_map(|id| Some((*id, *self.0.get(*id as usize)?)));
        SparseVector(weights.filter(|(_, weight)| *weight != 0.0).collect())
    }
}

/// The values that weights are computed from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SparseValues {
    /// Per-token maximum logit over the text, for every vocabulary token (SPLADE).
    Vocabulary {
        /// How often log(1 + x) is applied to positive logits: once by most models, twice by OpenSearch models.
        logarithms: u32,
    },
    /// One weight per text token; a repeated token has its largest weight (bge-m3).
    Tokens {
        /// Tokens that have no weight: special tokens.
        ignored: Vec<u32>,
    },
}

impl SparseSettings {
    /// Output values per text or per token.
    pub fn width(&self) -> usize {
        match self.values {
            SparseValues::Vocabulary { .. } => self.dimensions,
            SparseValues::Tokens { .. } => 1,
        }
    }

    /// Refuses a weight limit that no vector can have.
    pub fn check_limit(&self, limit: Option<usize>) -> Result<()> {
        let max = self.dimensions;
        match limit.filter(|limit| !(1..=max).contains(limit)) {
            None => Ok(()),
            Some(found) => Err(Error::invalid(format!(
                "expected `max_active_dims` from 1 to {max}, the size of the vocabulary, but found {found}"
            ))),
        }
    }

    /// The vector for a text with these tokens, from the output values.
    pub fn vector(&self, ids: &[u32], values: &[f32]) -> SparseVector {
        match &self.values {
            SparseValues::Vocabulary { logarithms } => {
                let weight = |logit: f32| (0..*logarithms).fold(logit, |value, _| value.ln_1p());
                let entries = (0..).zip(values).filter(|(_, logit)| **logit > 0.0);
                SparseVector(
                    entries
                        .map(|(index, logit)| (index, weight(*logit)))
                        .collect(),
                )
            }
            SparseValues::Tokens { ignored } => {
                let mut largest: BTreeMap<u32, f32> = BTreeMap::new();
                for (id, weight) in ids.iter().zip(values) {
                    if *weight > 0.0 && !ignored.contains(id) {
                        largest
                            .entry(*id)
                            .and_modify(|most| *most = most.max(*weight))
                            .or_insert(*weight);
                    }
                }
                SparseVector(largest.into_iter().collect())
            }
        }
    }
}

/// Non-zero token weights, by ascending token id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseVector(pub Vec<(u32, f32)>);

impl SparseVector {
    /// Dot product.
    pub fn dot(&self, other: &Self) -> f32 {
        let mut others = other.0.iter().peekable();
        let product = |(id, weight): &(u32, f32)| {
            while others.next_if(|(other, _)| other < id).is_some() {}
            others
                .next_if(|(other, _)| other == id)
                .map_or(0.0, |(_, other)| weight * other)
        };
        self.0.iter().map(product).sum()
    }

    /// Keeps the `limit` largest weights; of equal ones, the lower ids.
    #[must_use]
    pub fn truncated(mut self, limit: usize) -> Self {
        if limit < self.0.len() {
            self.0.sort_by(|left, right| right.1.total_cmp(&left.1));
            self.0.truncate(limit);
            self.0.sort_by_key(|(id, _)| *id);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: SparseValues) -> SparseSettings {
        SparseSettings {
            output: "values".into(),
            dimensions: 5,
            values,
            max_active_dims: None,
            queries: None,
        }
    }

    #[test]
    fn positive_logits_become_weights() {
        let logits = [1.0, -2.0, 0.0, 3.0, f32::MIN];
        let once = settings(SparseValues::Vocabulary { logarithms: 1 });
        assert_eq!(
            once.vector(&[], &logits).0,
            [(0, 1.0_f32.ln_1p()), (3, 3.0_f32.ln_1p())]
        );
        let twice = settings(SparseValues::Vocabulary { logarithms: 2 });
        assert_eq!(
            twice.vector(&[], &logits).0[1],
            (3, 3.0_f32.ln_1p().ln_1p())
        );
    }

    #[test]
    fn the_largest_weight_of_a_repeated_token_counts() {
        let tokens = settings(SparseValues::Tokens {
            ignored: vec![0, 2],
        });
        let vector = tokens.vector(&[0, 4, 3, 4, 1, 2], &[9.0, 0.5, 0.1, 0.75, -1.0, 9.0]);
        assert_eq!(vector.0, [(3, 0.1), (4, 0.75)]);
    }

    #[test]
    fn a_token_of_a_query_counts_once() {
        let file: Vec<u8> = [0.5_f32, 0.0, 2.0]
            .iter()
            .flat_map(|weight| weight.to_le_bytes())
            .collect();
        let weights = QueryWeights::from_bytes(&file, 3).unwrap();
        assert_eq!(weights.vector(&[2, 1, 0, 2, 7]).0, [(0, 0.5), (2, 2.0)]);
        insta::assert_snapshot!(
            QueryWeights::from_bytes(&file[1..], 3).unwrap_err(),
            @"expected 3 weights of queries, but found 11 bytes; build the bundle again"
        );
    }

    #[test]
    fn the_largest_weights_are_kept_in_the_order_of_ids() {
        let vector = SparseVector(vec![(1, 0.5), (2, 2.0), (5, 0.5), (7, 1.0)]);
        assert_eq!(
            vector.clone().truncated(3).0,
            [(1, 0.5), (2, 2.0), (7, 1.0)]
        );
        assert_eq!(vector.clone().truncated(4), vector);
    }

    #[test]
    fn products_of_common_tokens_are_added() {
        let [left, right] = [
            &[(1, 2.0), (3, 1.0), (9, 4.0)][..],
            &[(0, 5.0), (3, 3.0), (9, 0.5), (12, 1.0)],
        ];
        let [left, right] = [left, right].map(|entries| SparseVector(entries.to_vec()));
        assert_eq!((left.dot(&right), right.dot(&left)), (5.0, 5.0));
        assert_eq!(left.dot(&SparseVector::default()), 0.0);
    }

    #[test]
    fn dimensions_beyond_the_vocabulary_are_refused() {
        let settings = settings(SparseValues::Vocabulary { logarithms: 1 });
        assert!(settings.check_limit(Some(5)).is_ok() && settings.check_limit(Some(0)).is_err());
        insta::assert_snapshot!(
            settings.check_limit(Some(6)).unwrap_err(),
            @"expected `max_active_dims` from 1 to 5, the size of the vocabulary, but found 6"
        );
    }
}
