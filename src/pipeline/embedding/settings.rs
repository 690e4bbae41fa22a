//! The settings of an embedding model: its outputs, limits and prompts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result, quoted},
    pipeline::{
        multi_vector::MultiVectorSettings,
        pooling::Pooling,
        roles::{self, RoleSettings, TextRole, UnknownRole},
        sparse::{SparseSettings, StaticQueries},
    },
};

/// A kind of vectors that a text can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum VectorKind {
    /// A vector for the text.
    Dense,
    /// A weight for each token of the vocabulary.
    Sparse,
    /// A vector for each token of the text.
    MultiVector,
}

impl fmt::Display for VectorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dense => "dense",
            Self::Sparse => "sparse",
            Self::MultiVector => "multi_vector",
        })
    }
}

/// The settings of an embedding model, from its files. It has at least one output, and all of them come from one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Table", into = "Table")]
pub struct EmbeddingSettings {
    /// The settings of dense vectors, if the model has them.
    pub dense: Option<DenseSettings>,
    /// The settings of sparse vectors, if the model has them.
    pub sparse: Option<SparseSettings>,
    /// The settings of multi-vectors, for late interaction, if the model has them.
    pub multi_vector: Option<Box<MultiVectorSettings>>,
    /// The maximum number of tokens of a text, special tokens included.
    pub max_tokens: usize,
    /// The name of the default prompt.
    pub default_prompt: Option<String>,
    /// The texts that are put before inputs, by name.
    pub prompts: BTreeMap<String, String>,
}

/// How the vector of a text is read from an output of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseSettings {
    /// The name of the output: a vector for each token, or for each text if the graph pools.
    pub output: String,
    /// How the vectors of tokens become the vector of their text.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1 by default.
    pub normalize: bool,
    /// The number of values per vector.
    pub dimensions: usize,
}

/// The settings in a manifest, where those of dense vectors are among the others.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    output: Option<String>,
    pooling: Option<Pooling>,
    normalize: Option<bool>,
    dimensions: Option<usize>,
    max_tokens: usize,
    default_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    prompts: BTreeMap<String, String>,
    sparse: Option<SparseSettings>,
    multi_vector: Option<Box<MultiVectorSettings>>,
}

impl TryFrom<Table> for EmbeddingSettings {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        let Table { max_tokens, default_prompt, prompts, sparse, multi_vector, .. } = table;
        let dense = match (table.output, table.pooling, table.normalize, table.dimensions) {
            (Some(output), Some(pooling), Some(normalize), Some(dimensions)) => {
                Some(DenseSettings { output, pooling, normalize, dimensions })
            }
            (None, None, None, None) if sparse.is_some() || multi_vector.is_some() => None,
            _ => {
                return Err(
                    "expected `output`, `pooling`, `normalize` and `dimensions` in `embedding`, but \
                            found only some of them"
                        .to_owned(),
                );
            }
        };
        Ok(Self { dense, sparse, multi_vector, max_tokens, default_prompt, prompts })
    }
}

impl From<EmbeddingSettings> for Table {
    fn from(settings: EmbeddingSettings) -> Self {
        let EmbeddingSettings { dense, sparse, multi_vector, max_tokens, default_prompt, prompts } = settings;
        let (mut output, mut pooling, mut normalize, mut dimensions) = (None, None, None, None);
        if let Some(dense) = dense {
            output = Some(dense.output);
            pooling = Some(dense.pooling);
            normalize = Some(dense.normalize);
            dimensions = Some(dense.dimensions);
        }
        Self {
            output,
            pooling,
            normalize,
            dimensions,
            max_tokens,
            default_prompt,
            prompts,
            sparse,
            multi_vector,
        }
    }
}

impl EmbeddingSettings {
    /// The kinds of vectors of the model, and the number of dimensions of each.
    pub fn outputs(&self) -> Vec<(VectorKind, usize)> {
        let dense = self.dense.as_ref().map(|dense| (VectorKind::Dense, dense.dimensions));
        let sparse = self.sparse.as_ref().map(|sparse| (VectorKind::Sparse, sparse.dimensions));
        let multi = self.multi_vector.as_ref().map(|multi| (VectorKind::MultiVector, multi.dimensions));
        [dense, sparse, multi].into_iter().flatten().collect()
    }

    /// The place of vectors of this kind among the outputs of the model; `None` if it has none.
    pub fn place(&self, kind: VectorKind) -> Option<usize> {
        self.outputs().iter().position(|(found, _)| *found == kind)
    }

    /// Whether the model has vectors of this kind.
    pub fn has(&self, kind: VectorKind) -> bool {
        self.place(kind).is_some()
    }

    /// The settings of dense vectors; an error for a model without them.
    pub fn dense(&self) -> Result<&DenseSettings> {
        self.dense.as_ref().ok_or_else(|| self.lacks(VectorKind::Dense))
    }

    /// The settings of sparse vectors; an error for a model without them.
    pub fn sparse(&self) -> Result<&SparseSettings> {
        self.sparse.as_ref().ok_or_else(|| self.lacks(VectorKind::Sparse))
    }

    /// The settings of multi-vectors; an error for a model without them.
    pub fn multi_vector(&self) -> Result<&MultiVectorSettings> {
        self.multi_vector.as_deref().ok_or_else(|| self.lacks(VectorKind::MultiVector))
    }

    pub(super) fn lacks(&self, kind: VectorKind) -> Error {
        let found: Vec<_> = self.outputs().iter().map(|(kind, _)| kind.to_string()).collect();
        Error::invalid(format!(
            "expected a model with `{kind}` vectors, but found one with {}; `GET /models` lists the `outputs` of each \
             model",
            quoted(&found)
        ))
    }

    /// The prompt with this name or for this role, or the default prompt.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok(None) };
        let prompts = &self.prompts;
        let of_role = || prompts.get(roles::prompt(prompts, name).ok()??);
        let prompt = prompts.get(name).or_else(of_role).map(String::as_str);
        // Texts in these roles may differ by more than prompts.
        let has_roles = self.multi_vector.is_some() || self.static_queries().is_some();
        if prompt.is_some() || has_roles && roles::text_role(name).is_some() {
            return Ok(prompt);
        }
        let known: Vec<_> = prompts.keys().collect();
        let known = if known.is_empty() { "none".into() } else { quoted(&known) };
        Err(Error::invalid(format!("unknown prompt `{name}`; the model's prompts: {known}")))
    }

    /// The name of the prompt for a role, such as `query` or `search_document`, or with this name. `None`, which is the
    /// default prompt, if the model has no prompt for the role.
    pub fn prompt_name(&self, role: &str) -> Result<Option<&str>> {
        let prompts = &self.prompts;
        if let Some((name, _)) = prompts.get_key_value(role) {
            return Ok(Some(name));
        }
        roles::prompt(prompts, role).map_err(|UnknownRole| {
            let prompts = prompts.keys().map(String::as_str);
            let known: BTreeSet<_> = UnknownRole::known().into_iter().chain(prompts).collect();
            let known: Vec<_> = known.into_iter().collect();
            let role: String = role.chars().take(40).collect();
            Error::invalid(format!(
                "expected a role among {}, but found `{}`",
                quoted(&known),
                role.escape_debug()
            ))
        })
    }

    /// Queries that the model does not read.
    pub fn static_queries(&self) -> Option<&StaticQueries> {
        self.sparse.as_ref()?.queries.as_deref()
    }

    /// The form of texts in a role, if the model has one for it.
    pub(in crate::pipeline) fn form(&self, role: TextRole) -> Option<&RoleSettings> {
        let of_queries = self.static_queries().filter(|_| role == TextRole::Query);
        let form = of_queries.map(|queries| &queries.form);
        let form = form.or_else(|| self.multi_vector.as_ref().map(|multi| multi.role(role)));
        form.filter(|form| **form != RoleSettings::default())
    }

    /// The role of texts with a prompt of this name: documents, unless the name is one for queries.
    pub(in crate::pipeline) fn text_role(&self, name: Option<&str>) -> TextRole {
        let name = name.or(self.default_prompt.as_deref());
        name.and_then(roles::text_role).unwrap_or(TextRole::Document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::sparse::SparseValues;

    const DENSE: &str =
        "output = \"x\"\npooling = \"cls\"\nnormalize = true\ndimensions = 8\nmax_tokens = 16\n";

    #[test]
    fn manifests_of_dense_models_are_as_they_were() {
        let settings: EmbeddingSettings = toml::from_str(DENSE).unwrap();
        assert_eq!(settings.outputs(), [(VectorKind::Dense, 8)]);
        assert_eq!(toml::to_string(&settings).unwrap(), DENSE);
        let partial = DENSE.replace("pooling = \"cls\"\n", "");
        assert!(toml::from_str::<EmbeddingSettings>(&partial).is_err());
        assert!(toml::from_str::<EmbeddingSettings>("max_tokens = 16").is_err());
    }

    #[test]
    fn a_model_without_the_requested_output_is_refused() {
        let mut settings: EmbeddingSettings = toml::from_str(DENSE).unwrap();
        settings.dense = None;
        settings.sparse = Some(SparseSettings {
            output: "largest_logits".into(),
            dimensions: 30,
            values: SparseValues::Vocabulary { logarithms: 1 },
            queries: None,
        });
        let text = toml::to_string(&settings).unwrap();
        assert_eq!(toml::from_str::<EmbeddingSettings>(&text).unwrap(), settings);
        insta::assert_snapshot!(
            settings.dense().unwrap_err(),
            @"expected a model with `dense` vectors, but found one with `sparse`; `GET /models` lists the `outputs` of each model"
        );
    }
}
