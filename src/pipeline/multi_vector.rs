//! Multi-vectors for late interaction: a vector for each token of a query and of a document, with the results of PyLate,
//! sentence-transformers (`MultiVectorEncoder`) and FlagEmbedding.

use serde::{Deserialize, Serialize};

use super::{
    pooling::normalize,
    roles::{RoleSettings, TextRole},
};
use crate::backend::native::Query;

/// How multi-vectors are read from an output of the graph, and how texts are prepared for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiVectorSettings {
    /// The name of the output: a vector for each token.
    pub output: String,
    /// The number of values per vector.
    pub dimensions: usize,
    /// Whether the first token has no vector (bge-m3).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips_first: bool,
    /// The score of a document.
    pub score: MaxSim,
    /// The form of queries.
    #[serde(default, skip_serializing_if = "RoleSettings::is_default")]
    pub query: RoleSettings,
    /// The form of documents.
    #[serde(default, skip_serializing_if = "RoleSettings::is_default")]
    pub document: RoleSettings,
}

/// The combination of the largest products of the vectors of a query with those of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaxSim {
    /// They are added (ColBERT).
    Sum,
    /// Their mean is taken (bge-m3).
    Mean,
}

impl MultiVectorSettings {
    /// The form of texts in a role.
    pub fn role(&self, role: TextRole) -> &RoleSettings {
        match role {
            TextRole::Query => &self.query,
            TextRole::Document => &self.document,
        }
    }

    /// The vectors of a text, one after the other, from those of all tokens with these ids.
    pub fn vectors(&self, role: TextRole, ids: &[u32], values: &[f32], normalized: bool) -> Vec<f32> {
        let skipped = &self.role(role).skipped;
        let tokens = ids.iter().zip(values.chunks_exact(self.dimensions)).skip(usize::from(self.skips_first));
        let kept = tokens.filter(|(id, _)| skipped.binary_search(id).is_err());
        let mut vectors: Vec<f32> = kept.flat_map(|(_, vector)| vector).copied().collect();
        if normalized {
            vectors.chunks_exact_mut(self.dimensions).for_each(normalize);
        }
        vectors
    }

    /// The score of a document by the vectors of a query, as the authors of the model compute it, or, unless `is_raw`,
    /// their mean from 0 to 1. A text without vectors has the score 0.
    pub fn score(&self, query: &Query, document: &[f32], is_raw: bool) -> f32 {
        let largest = query.largest_products(document);
        let sum: f32 = largest.iter().sum();
        let mean = sum / largest.len().max(1) as f32;
        match (is_raw, self.score) {
            (true, MaxSim::Sum) => sum,
            (true, MaxSim::Mean) => mean,
            (false, _) => mean.clamp(0.0, 1.0),
        }
    }
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
            document: RoleSettings { skipped: vec![4], ..RoleSettings::default() },
        }
    }

    #[test]
    fn vectors_of_skipped_tokens_are_left_out() {
        let values = [3.0, 4.0, 1.0, 1.0, 0.0, 2.0];
        let of = |role| settings().vectors(role, &[1, 4, 2], &values, true);
        assert_eq!(of(TextRole::Document), [0.6, 0.8, 0.0, 1.0]);
        assert_eq!(of(TextRole::Query).len(), 6);
        let raw = settings().vectors(TextRole::Document, &[1, 4, 2], &values, false);
        assert_eq!(raw, [3.0, 4.0, 0.0, 2.0]);
    }

    #[test]
    fn scores_are_sums_or_means_of_the_largest_products() {
        let (query, document) = ([1.0, 0.0, 0.0, 1.0], [0.5, 0.1, 0.25, -0.5, 0.0, 0.25]);
        let (query, settings) = (Query::new(&query, 2), settings());
        assert_eq!(settings.score(&query, &document, true), 0.75);
        assert_eq!(settings.score(&query, &document, false), 0.375);
        let mean = MultiVectorSettings { score: MaxSim::Mean, ..settings };
        assert_eq!(mean.score(&query, &document, true), 0.375);
        assert_eq!(mean.score(&query, &[], true), 0.0);
        assert_eq!(mean.score(&Query::new(&[], 2), &document, true), 0.0);
    }
}
