//! The roles of texts, for which embedding models have prompts.

use std::collections::BTreeMap;

use super::multi_vector::TextRole;

/// A role, after the names that it has in APIs and among the prompts of models. Prompts are searched for in this order.
type Role = &'static [&'static str];

const ROLES: [Role; 5] = [
    &["query", "search_query", "retrieval_query", "retrieval.query"],
    &["document", "passage", "corpus", "search_document", "retrieval_document", "retrieval.passage"],
    &["classification", "Classification"],
    &["clustering", "Clustering", "separation"],
    &["similarity", "semantic_similarity", "text-matching", "STS"],
];

/// The name of the prompt for a role: `None` if there is no prompt for it, an error if there is no such role.
pub(super) fn prompt<'a>(
    prompts: &'a BTreeMap<String, String>,
    role: &str,
) -> Result<Option<&'a str>, UnknownRole> {
    let names = ROLES.iter().find(|names| names.contains(&role)).ok_or(UnknownRole)?;
    let known = names.iter().find_map(|name| prompts.get_key_value(*name));
    Ok(known.map(|(name, _)| name.as_str()))
}

/// The role of texts in late interaction that has this name.
pub(super) fn text_role(name: &str) -> Option<TextRole> {
    let [queries, documents, ..] = ROLES;
    let role = |names: Role, role| names.contains(&name).then_some(role);
    role(queries, TextRole::Query).or_else(|| role(documents, TextRole::Document))
}

/// A word that names no role.
pub(super) struct UnknownRole;

impl UnknownRole {
    /// The first name of each role.
    pub(super) fn known() -> Vec<&'static str> {
        ROLES.iter().filter_map(|names| names.first().copied()).collect()
    }
}
