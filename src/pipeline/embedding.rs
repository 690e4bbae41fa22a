//! Texts to vectors, as sentence-transformers makes them: prompt, tokens, model, pooling, length 1.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use serde::{Deserialize, Serialize};

use super::{
    Encodings, Usage, encode_each,
    encoder::{Encoder, Granularity, OutputSpec, Row, reads_types},
    pooling::{Pooling, normalise},
};
use crate::{
    backend::{Deadline, routing::Route},
    error::{Error, Result, quoted},
    tokenizer::{Tokenizer, Truncation},
};

/// How a model makes vectors: what its sentence-transformers files say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSettings {
    /// The output that is pooled: one vector a token, or one a text where the graph has pooled already.
    pub output: String,
    /// How a text's vectors become one.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1 unless a request says otherwise.
    pub normalize: bool,
    /// The number of values in a vector.
    pub dimensions: usize,
    /// The most tokens of a text, special tokens included.
    pub max_tokens: usize,
    /// The prompt that is put before texts for which no other is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_prompt: Option<String>,
    /// The prompts that a request can name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
}

/// What is to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text, not empty.
    Text(String),
    /// Token ids made elsewhere, taken as they are.
    Ids(Vec<u32>),
}

/// What a request may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// What to do with texts that are too long.
    pub truncation: Truncation,
    /// Whether vectors are scaled to length 1; the model's own setting if nothing is said.
    pub normalize: Option<bool>,
    /// The name of a prompt.
    pub prompt_name: Option<String>,
    /// Keep only that many values of each vector.
    pub dimensions: Option<usize>,
    /// The most numbers in the answer.
    pub max_values: usize,
}

/// The vectors of a request's texts, with what was done to get them.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings<V> {
    /// One a text, in the order of the texts.
    pub vectors: Vec<V>,
    /// What was done to the texts.
    pub usage: Usage,
}

/// A model that makes vectors.
#[derive(Clone, Debug)]
pub struct EmbeddingPipeline {
    tokenizer: Arc<Tokenizer>,
    encoder: Encoder,
    settings: EmbeddingSettings,
}

impl EmbeddingPipeline {
    /// Puts tokenizer and backend together; a backend of another signature is refused.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: EmbeddingSettings,
    ) -> Result<Self> {
        let route = route.into();
        let wanted = OutputSpec {
            output: settings.output.clone(),
            width: Some(settings.dimensions),
            labels: None,
            padding_id: tokenizer.padding_id(),
            reads_types: reads_types(route.signature()),
        };
        let encoder = Encoder::new(route, wanted)?;
        Ok(Self { tokenizer, encoder, settings })
    }

    /// How the model makes vectors.
    pub fn settings(&self) -> &EmbeddingSettings {
        &self.settings
    }

    /// The step that runs the model.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The tokenizer that the model reads with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// One vector a text.
    pub async fn embed(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<f32>>> {
        let dimensions = self.dimensions(options.dimensions)?;
        within(options.max_values, inputs.len(), dimensions)?;
        let normalize = options.normalize.unwrap_or(self.settings.normalize);
        let encodings = self.encode(inputs, options, deadline).await?;
        self.run(&encodings, Granularity::Texts, deadline, |row| {
            let mut vector = self.settings.pooling.pool(row.values, row.width);
            vector.truncate(dimensions);
            if normalize {
                normalise(&mut vector);
            }
            vector
        })
        .await
    }

    /// One vector a token of each text, as the model gives them: neither shortened nor scaled.
    ///
    /// A model whose graph pools by itself has none to give.
    pub async fn embed_all(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<Vec<f32>>>> {
        self.encoder.require_tokens(&self.settings.output, deadline).await?;
        let encodings = self.encode(inputs, options, deadline).await?;
        within(options.max_values, encodings.tokens(), self.settings.dimensions)?;
        let vectors = |row: Row<'_>| row.values.chunks_exact(row.width).map(<[f32]>::to_vec).collect();
        self.run(&encodings, Granularity::Tokens, deadline, vectors).await
    }

    /// The prompt that a request's texts get, if any.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        let Some(name) = name.or(self.settings.default_prompt.as_deref()) else { return Ok(None) };
        self.settings.prompts.get(name).map(|prompt| Some(prompt.as_str())).ok_or_else(|| {
            let known: Vec<_> = self.settings.prompts.keys().collect();
            let known = if known.is_empty() { "none".into() } else { quoted(&known) };
            Error::invalid(format!("unknown prompt `{name}`; the model's prompts: {known}"))
        })
    }

    /// Refuses a number of dimensions that vectors cannot be cut to.
    pub fn check_dimensions(&self, asked: Option<usize>) -> Result<()> {
        self.dimensions(asked).map(drop)
    }

    fn dimensions(&self, asked: Option<usize>) -> Result<usize> {
        let most = self.settings.dimensions;
        match asked {
            None => Ok(most),
            Some(dimensions) if (1..=most).contains(&dimensions) => Ok(dimensions),
            Some(dimensions) => {
                Err(Error::invalid(format!("expected `dimensions` from 1 to {most}, but found {dimensions}")))
            }
        }
    }

    async fn run<V: Send>(
        &self,
        encodings: &Encodings,
        need: Granularity,
        deadline: Deadline,
        finish: impl Fn(Row<'_>) -> V + Send + Sync,
    ) -> Result<Embeddings<V>> {
        let started = Instant::now();
        let (vectors, location) = self.encoder.run(encodings, need, deadline, finish).await?;
        let usage = Usage::of(encodings, location, started.elapsed());
        Ok(Embeddings { vectors, usage })
    }

    async fn encode(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Encodings> {
        let prompt = self.prompt(options.prompt_name.as_deref())?.map(str::to_owned);
        let limit = self.encoder.most_tokens(self.settings.max_tokens, deadline).await?;
        let (keeps_text, truncation) = (self.encoder.may_read_text(), options.truncation);
        let tokenizer = Arc::clone(&self.tokenizer);
        let size: usize = inputs.iter().map(Input::size).sum();
        let work = move || {
            encode_each(inputs.into_iter(), deadline, |input| match input {
                Input::Text(text) => {
                    let text = match &prompt {
                        None => text,
                        Some(prompt) => format!("{prompt}{text}"),
                    };
                    let encoding = tokenizer.encode(&text, limit, truncation)?;
                    let text = keeps_text.then(|| tokenizer.kept_part(text, &encoding, limit, truncation));
                    Ok((encoding, text.transpose()?))
                }
                Input::Ids(ids) => Ok((tokenizer.accept(ids, limit, truncation)?, None)),
            })
        };
        Encodings::make(size, deadline, work).await
    }
}

/// Refuses an answer of more numbers than allowed, before the work for it begins.
fn within(limit: usize, vectors: usize, dimensions: usize) -> Result<()> {
    let found = vectors.saturating_mul(dimensions);
    if found > limit {
        return Err(Error::too_large(format!(
            "expected an answer of at most {limit} numbers, but found {vectors} vectors of {dimensions}; \
             send fewer texts at once"
        )));
    }
    Ok(())
}

impl Input {
    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ids(ids) => ids.len() * size_of::<u32>(),
        }
    }
}
