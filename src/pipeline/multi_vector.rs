//! Multi-vectors for late interaction: a vector for each token of a query and of a document, with the results of PyLate,
//! sentence-transformers (`MultiVectorEncoder`) and FlagEmbedding.

use serde::{Deserialize, Serialize};

use super::pooling::normalize;
use crate::{backend::native::Query, tokenizer::Encoding};

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

/// The form of texts in a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoleSettings {
    /// The token that is inserted after the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marker: Option<u32>,
    /// The maximum number of tokens, the marker included, if it is below that of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Tokens that texts are filled up with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expansion: Option<Expansion>,
    /// Tokens whose vectors are left out, in ascending order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<u32>,
}

/// Tokens that a text is filled up with, whose vectors count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expansion {
    /// The token.
    pub token: u32,
    /// The number of tokens that texts have at least.
    pub length: usize,
    /// Whether other tokens attend to these.
    pub is_attended: bool,
}

/// The role of a text in late interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRole {
    /// A text to search for.
    Query,
    /// A text to find.
    Document,
}

impl RoleSettings {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Inserts the marker into an encoded text, and fills it up.
    pub(super) fn complete(&self, mut encoding: Encoding) -> Encoding {
        let fill = |encoding: &mut Encoding, place: usize, token, count| {
            let place = place.min(encoding.ids.len());
            encoding.ids.splice(place..place, std::iter::repeat_n(token, count));
            encoding.type_ids.splice(place..place, std::iter::repeat_n(0, count));
        };
        if let Some(marker) = self.marker {
            fill(&mut encoding, 1, marker, 1);
            encoding.truncated_from = encoding.truncated_from.map(|found| found + 1);
        }
        if let Some(Expansion { token, length, is_attended }) = self.expansion {
            let count = length.saturating_sub(encoding.len());
            fill(&mut encoding, usize::MAX, token, count);
            encoding.unattended = if is_attended { 0 } else { count };
        }
        encoding
    }
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
            query: RoleSettings {
                marker: Some(7),
                expansion: Some(Expansion { token: 9, length: 6, is_attended: false }),
                ..RoleSettings::default()
            },
            document: RoleSettings { skipped: vec![4], ..RoleSettings::default() },
        }
    }

    #[test]
    fn queries_get_a_marker_and_are_filled_up() {
        let encoding =
            |ids: &[u32]| Encoding { ids: ids.into(), type_ids: vec![0; ids.len()], ..Encoding::default() };
        let found = settings().query.complete(encoding(&[1, 5, 2]));
        assert_eq!((&found.ids[..], found.unattended), (&[1, 7, 5, 2, 9, 9][..], 2));
        assert_eq!(found.type_ids.len(), 6);
        let long = settings().query.complete(encoding(&[1, 5, 5, 5, 5, 2]));
        assert_eq!((long.len(), long.unattended), (7, 0));
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
