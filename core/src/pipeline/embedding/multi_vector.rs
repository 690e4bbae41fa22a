//! Multi-vectors for late interaction: one vector per query or document token, with the results of PyLate,
//! sentence-transformers (`MultiVectorEncoder`) and FlagEmbedding.

use serde::{Deserialize, Serialize};

use super::{
    pooling::normalize,
    roles::{RoleSettings, TextRole},
};
use crate::backend::similarity::Query;

/// Multi-vector settings: the graph output, and the text preparation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiVectorSettings {
    /// Output name; one vector per token.
    pub output: String,
    /// Values per vector.
    pub dimensions: usize,
    /// Whether the first token has no vector (bge-m3).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips_first: bool,
    /// Document score.
    pub score: MaxSim,
    /// Query form.
    #[serde(default, skip_serializing_if = "RoleSettings::is_default")]
    pub query: RoleSettings,
    /// Document form.
    #[serde(default, skip_serializing_if = "RoleSettings::is_default")]
    pub document: RoleSettings,
}

/// Combines the largest products between query and document vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaxSim {
    /// Sum (ColBERT).
    Sum,
    /// Mean (bge-m3).
    Mean,
}

impl MultiVectorSettings {
    /// Text form for a role.
    pub fn role(&self, role: TextRole) -> &RoleSettings {
        match role {
            TextRole::Query => &self.query,
            TextRole::Document => &self.document,
        }
    }

    /// Selects a text's vectors from `values`, one per token in `ids`, and concatenates them.
    pub fn vectors(&self, role: TextRole, ids: &[u32], values: &[f32]) -> Vec<f32> {
        let skipped = &self.role(role).skipped;
        let tokens = ids
            .iter()
            .zip(values.chunks_exact(self.dimensions))
            .skip(usize::from(self.skips_first));
        let kept = tokens.filter(|(id, _)| skipped.binary_search(id).is_err());
        kept.flat_map(|(_, vector)| vector).copied().collect()
    }

    /// As [`vectors`](Self::vectors), each with length 1.
    pub fn unit_vectors(&self, role: TextRole, ids: &[u32], values: &[f32]) -> Vec<f32> {
        let mut vectors = self.vectors(role, ids, values);
        vectors
            .chunks_exact_mut(self.dimensions)
            .for_each(normalize);
        vectors
    }

    /// Scores a document for a query as the model's authors do. A text without vectors scores 0.
    pub fn raw_score(&self, query: &Query, document: &[f32]) -> f32 {
        match self.score {
            MaxSim::Sum => query.largest_products(document).iter().sum(),
            MaxSim::Mean => mean_product(query, document),
        }
    }
}

/// The mean of the largest products of query and document vectors. A text without vectors scores 0.
pub fn mean_product(query: &Query, document: &[f32]) -> f32 {
    let largest = query.largest_products(document);
    largest.iter().sum::<f32>() / largest.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> MultiVectorSettings {
        MultiVectorSettings {
            output: "token_embeddings".into(),
            dimensions: 2,
            skips_first: false,
            score: MaxSim::Sum,
            query: RoleSettings::default(),
            document: RoleSettings {
                skipped: vec![4],
                ..RoleSettings::default()
            },
        }
    }

    #[test]
    fn vectors_of_skipped_tokens_are_left_out() {
        let values = [3.0, 4.0, 1.0, 1.0, 0.0, 2.0];
        let of = |role| settings().unit_vectors(role, &[1, 4, 2], &values);
        assert_eq!(of(TextRole::Document), [0.6, 0.8, 0.0, 1.0]);
        assert_eq!(of(TextRole::Query).len(), 6);
        let raw = settings().vectors(TextRole::Document, &[1, 4, 2], &values);
        assert_eq!(raw, [3.0, 4.0, 0.0, 2.0]);
    }

    #[test]
    fn scores_are_sums_or_means_of_the_largest_products() {
        let (query, document) = ([1.0, 0.0, 0.0, 1.0], [0.5, 0.1, 0.25, -0.5, 0.0, 0.25]);
        let (query, settings) = (Query::new(&query, 2), settings());
        assert_eq!(settings.raw_score(&query, &document), 0.75);
        assert_eq!(mean_product(&query, &document), 0.375);
        let mean = MultiVectorSettings {
            score: MaxSim::Mean,
            ..settings
        };
        assert_eq!(mean.raw_score(&query, &document), 0.375);
        assert_eq!(mean.raw_score(&query, &[]), 0.0);
        assert_eq!(mean.raw_score(&Query::new(&[], 2), &document), 0.0);
    }
}
