//! Texts to vectors, with the results of sentence-transformers: prompt, tokenization, model, pooling, normalization.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    encoder::{Encoder, EncodingOptions, Encodings, Granularity, Input, Row},
    pooling::{Pooling, normalise},
    roles::{self, UnknownRole},
    usage::Usage,
    vectors::{Conversion, Ranges, VectorType},
};
use crate::{
    backend::{Deadline, routing::Route},
    error::{Error, Result, quoted},
    tokenizer::{Tokenizer, Truncation},
};

/// The settings of an embedding model, from its sentence-transformers files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSettings {
    /// The name of the output: a vector for each token, or for each text if the graph pools.
    pub output: String,
    /// How the vectors of tokens become the vector of their text.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1 by default.
    pub normalize: bool,
    /// The number of values per vector.
    pub dimensions: usize,
    /// The maximum number of tokens of a text, special tokens included.
    pub max_tokens: usize,
    /// The name of the default prompt.
    pub default_prompt: Option<String>,
    /// Prompts by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
}

impl EmbeddingSettings {
    /// The prompt with this name or for this role, or the default prompt.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok(None) };
        let prompts = &self.prompts;
        let of_role = || prompts.get(roles::prompt(prompts, name).ok()??);
        prompts.get(name).or_else(of_role).map(|prompt| Some(prompt.as_str())).ok_or_else(|| {
            let known: Vec<_> = prompts.keys().collect();
            let known = if known.is_empty() { "none".into() } else { quoted(&known) };
            Error::invalid(format!("unknown prompt `{name}`; the model's prompts: {known}"))
        })
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
}

/// The options of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// Applied to texts of too many tokens.
    pub truncation: Truncation,
    /// Whether vectors are scaled to length 1; the model's setting by default.
    pub normalize: Option<bool>,
    /// The name of a prompt; the model's default prompt by default.
    pub prompt_name: Option<String>,
    /// The number of leading values to keep of each vector.
    pub dimensions: Option<usize>,
    /// The maximum number of values in the response.
    pub max_values: usize,
}

impl EmbeddingOptions {
    /// Options for vectors of length 1 that are compared, and not returned.
    pub(super) fn for_comparison(truncation: Truncation) -> Self {
        let (prompt_name, dimensions) = (None, None);
        Self { truncation, normalize: Some(true), prompt_name, dimensions, max_values: usize::MAX }
    }
}

/// The vectors of a request's texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings<V> {
    /// In the order of the texts.
    pub vectors: Vec<V>,
    /// The tokens and the time that they took.
    pub usage: Usage,
}

/// An embedding model.
#[derive(Clone, Debug)]
pub struct EmbeddingPipeline {
    encoder: Encoder,
    settings: EmbeddingSettings,
    /// The ranges of vectors of 8-bit integers.
    ranges: Option<Arc<Ranges>>,
}

impl EmbeddingPipeline {
    /// A pipeline of a tokenizer and a model. A model with another signature than in the settings is refused.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: EmbeddingSettings,
    ) -> Result<Self> {
        let output = (settings.output.as_str(), settings.dimensions);
        let encoder = Encoder::new(tokenizer, route.into(), output, None, settings.max_tokens)?;
        Ok(Self { encoder, settings, ranges: None })
    }

    /// The same pipeline with the ranges of its vectors, for vectors of 8-bit integers.
    #[must_use]
    pub fn with_ranges(self, ranges: Option<Arc<Ranges>>) -> Self {
        Self { ranges, ..self }
    }

    /// The settings of the model.
    pub fn settings(&self) -> &EmbeddingSettings {
        &self.settings
    }

    /// The tokenizer and the model.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The vector of each text.
    pub async fn embed(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<f32>>> {
        let dimensions = self.dimensions(options.dimensions)?;
        check_values(options.max_values, inputs.len(), dimensions)?;
        let normalize = options.normalize.unwrap_or(self.settings.normalize);
        let encodings = self.encode(inputs, options, deadline).await?;
        let vector = |row: Row<'_>| {
            let mut vector = self.settings.pooling.pool(row.values, row.width);
            vector.truncate(dimensions);
            if normalize {
                normalise(&mut vector);
            }
            vector
        };
        let (vectors, usage) = self.encoder.run(&encodings, Granularity::Texts, deadline, vector).await?;
        Ok(Embeddings { vectors, usage })
    }

    /// The vectors of the tokens of each text, without pooling or normalization. Refused if the graph pools.
    pub async fn embed_all(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<Vec<f32>>>> {
        self.encoder.require_token_vectors(deadline).await?;
        let encodings = self.encode(inputs, options, deadline).await?;
        check_values(options.max_values, encodings.tokens(), self.settings.dimensions)?;
        let vectors = |row: Row<'_>| row.values.chunks_exact(row.width).map(<[f32]>::to_vec).collect();
        let (vectors, usage) = self.encoder.run(&encodings, Granularity::Tokens, deadline, vectors).await?;
        Ok(Embeddings { vectors, usage })
    }

    /// See [`EmbeddingSettings::prompt`].
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        self.settings.prompt(name)
    }

    /// See [`EmbeddingSettings::prompt_name`].
    pub fn prompt_name(&self, role: &str) -> Result<Option<&str>> {
        self.settings.prompt_name(role)
    }

    /// The conversion of normalized vectors with this many dimensions to a type.
    pub fn conversion(&self, wanted: VectorType, dimensions: Option<usize>) -> Result<Conversion> {
        Conversion::new(wanted, self.dimensions(dimensions)?, self.ranges.as_deref())
    }

    /// Refuses a number of dimensions that the model does not have.
    pub fn check_dimensions(&self, requested: Option<usize>) -> Result<()> {
        self.dimensions(requested).map(drop)
    }

    fn dimensions(&self, requested: Option<usize>) -> Result<usize> {
        let max = self.settings.dimensions;
        match requested.unwrap_or(max) {
            dimensions if (1..=max).contains(&dimensions) => Ok(dimensions),
            found => Err(Error::invalid(format!("expected `dimensions` from 1 to {max}, but found {found}"))),
        }
    }

    async fn encode(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Encodings> {
        let prompt = self.prompt(options.prompt_name.as_deref())?;
        let options =
            EncodingOptions { prompt, template: None, truncation: options.truncation, max_bytes: usize::MAX };
        self.encoder.encode(inputs, &options, deadline).await
    }
}

/// Refuses a response of too many values before it is computed.
fn check_values(max: usize, vectors: usize, dimensions: usize) -> Result<()> {
    if vectors.saturating_mul(dimensions) > max {
        return Err(Error::too_large(format!(
            "expected a response of at most {max} numbers, but found {vectors} vectors of {dimensions}; send fewer \
             texts at once"
        )));
    }
    Ok(())
}
