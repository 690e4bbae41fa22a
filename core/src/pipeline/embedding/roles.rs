//! Text roles, for which embedding models have prompts, and the text form per role.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use kivu_base::Result;
use kivu_text::{Encoding, Tokenizer, Truncation};

/// A role's text form, where it differs from other texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoleSettings {
    /// The token that is inserted after the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marker: Option<u32>,
    /// Maximum tokens, the marker included, if below the model's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Tokens that texts are padded with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expansion: Option<Expansion>,
    /// Tokens whose vectors are left out, in ascending order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<u32>,
    /// Whether texts get no special tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_bare: bool,
}

/// Padding tokens whose vectors are part of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expansion {
    /// Padding token id, such as the mask token.
    pub token: u32,
    /// Minimum length in tokens.
    pub length: usize,
    /// Whether other tokens attend to these.
    pub is_attended: bool,
}

/// A text's role in a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRole {
    /// A text to search for.
    Query,
    /// A text to find.
    Document,
}

impl TextRole {
    /// Prompt name for this role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
        }
    }
}

impl RoleSettings {
    /// Whether texts in this role have the same form as other texts.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Token ids for a text in this role, for a model that reads at most `limit`.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        let limit = self.max_tokens.unwrap_or(usize::MAX).min(limit);
        let limit = limit.saturating_sub(usize::from(self.marker.is_some()));
        let encoding = match self.is_bare {
            true => tokenizer.encode_bare(text, limit, truncation)?,
            false => tokenizer.encode(text, limit, truncation)?,
        };
        Ok(self.complete(encoding))
    }

    /// Inserts the marker into an encoded text, and pads it.
    fn complete(&self, mut encoding: Encoding) -> Encoding {
        let fill = |encoding: &mut Encoding, place: usize, token, count| {
            let place = place.min(encoding.ids.len());
            encoding
                .ids
                .splice(place..place, std::iter::repeat_n(token, count));
            encoding
                .type_ids
                .splice(place..place, std::iter::repeat_n(0, count));
        };
        if let Some(marker) = self.marker {
            fill(&mut encoding, 1, marker, 1);
            encoding.truncated_from = encoding.truncated_from.map(|found| found + 1);
        }
        if let Some(Expansion {
            token,
            length,
            is_attended,
        }) = self.expansion
        {
            let count = length.saturating_sub(encoding.len());
            fill(&mut encoding, usize::MAX, token, count);
            encoding.unattended = if is_attended { 0 } else { count };
        }
        encoding
    }
}

/// Names of a role in APIs and in model prompts. Prompts are searched in this order.
type Role = &'static [&'static str];

const ROLES: [Role; 5] = [
    &[
        "query",
        "search_query",
        "retrieval_query",
        "retrieval.query",
    ],
    &[
        "document",
        "passage",
        "corpus",
        "search_document",
        "retrieval_document",
        "retrieval.passage",
    ],
    &["classification", "Classification"],
    &["clustering", "Clustering", "separation"],
    &["similarity", "semantic_similarity", "text-matching", "STS"],
];

/// Prompt name for a role: `None` if the model has no prompt for it, an error for an unknown role.
pub fn prompt<'a>(
    prompts: &'a BTreeMap<String, String>,
    role: &str,
) -> Result<Option<&'a str>, UnknownRole> {
    let names = ROLES
        .iter()
        .find(|names| names.contains(&role))
        .ok_or(UnknownRole)?;
    let known = names.iter().find_map(|name| prompts.get_key_value(*name));
    Ok(known.map(|(name, _)| name.as_str()))
}

/// Whether two names mean the same role or prompt.
pub fn are_same(one: &str, other: &str) -> bool {
    one == other
        || ROLES
            .iter()
            .any(|names| names.contains(&one) && names.contains(&other))
}

/// Parses a late-interaction role.
pub fn text_role(name: &str) -> Option<TextRole> {
    let [queries, documents, ..] = ROLES;
    let role = |names: Role, role| names.contains(&name).then_some(role);
    role(queries, TextRole::Query).or_else(|| role(documents, TextRole::Document))
}

/// A word that is not a role name.
pub struct UnknownRole;

impl UnknownRole {
    /// First name per role.
    pub fn known() -> Vec<&'static str> {
        ROLES
            .iter()
            .filter_map(|names| names.first().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_get_a_marker_and_are_filled_up() {
        let encoding = |ids: &[u32]| Encoding {
            ids: ids.into(),
            type_ids: vec![0; ids.len()],
            ..Encoding::default()
        };
        let form = RoleSettings {
            marker: Some(7),
            expansion: Some(Expansion {
                token: 9,
                length: 6,
                is_attended: false,
            }),
            ..RoleSettings::default()
        };
        let found = form.complete(encoding(&[1, 5, 2]));
        assert_eq!(
            (&found.ids[..], found.unattended),
            (&[1, 7, 5, 2, 9, 9][..], 2)
        );
        assert_eq!(found.type_ids.len(), 6);
        let long = form.complete(encoding(&[1, 5, 5, 5, 5, 2]));
        assert_eq!((long.len(), long.unattended), (7, 0));
    }
}
