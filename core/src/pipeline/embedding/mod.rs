//! Texts to vectors, with the results of sentence-transformers: prompt, tokenization, model, pooling, normalization.
//! One run returns a model's dense, sparse and multi-vectors.

pub mod instructions;
pub mod multi_vector;
pub mod pooling;
pub mod roles;
mod settings;
pub mod similarity;
pub mod sparse;
pub mod vectors;

use std::{ops::Range, sync::Arc};

pub use self::settings::{DenseSettings, EmbeddingSettings, VectorKind};
use super::{
    classification::scores::RankingOptions,
    embedding::{
        multi_vector::mean_product,
        pooling::{Pooling, normalize},
        roles::TextRole,
        similarity::Similarity,
        sparse::{QueryWeights, SparseValues, SparseVector},
        vectors::{Conversion, Ranges, VectorType},
    },
    encoder::{
        Encoder, Granularity, NamedOutput, Row, Vectors,
        chunks::Chunks,
        encoding::{EncodingOptions, Encodings, Input},
        usage::Usage,
    },
};
use crate::backend::{Deadline, TASK_IDS, routing::Route, similarity::Query};
use kivu_base::{Error, Result};
use kivu_text::{Side, Tokenizer, Truncation};

/// Request options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// Applied to texts above the token limit.
    pub truncation: Truncation,
    /// Whether vectors are scaled to length 1; the model's setting by default.
    pub normalize: Option<bool>,
    /// Prompt name; `None` selects the model's default prompt.
    pub prompt_name: Option<String>,
    /// The request's own prompt, in place of the one with the name, which still names the texts' role.
    pub prompt: Option<String>,
    /// Task whose adapters are used; by default the prompt's, if its name is a task's.
    pub task: Option<String>,
    /// Number of leading values to keep per vector.
    pub dimensions: Option<usize>,
    /// Maximum number of values in the response.
    pub max_values: usize,
}

impl EmbeddingOptions {
    /// Options for vectors of length 1 that are compared, and not returned.
    pub fn for_comparison(truncation: Truncation, similarity: Similarity) -> Self {
        Self {
            truncation,
            // Lengths matter to other similarities.
            normalize: (similarity == Similarity::Cosine).then_some(true),
            prompt_name: None,
            prompt: None,
            task: None,
            dimensions: None,
            max_values: usize::MAX,
        }
    }
}

/// The vectors that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedVectors {
    /// At least one kind.
    pub kinds: Vec<VectorKind>,
    /// Number of largest weights to keep per sparse vector.
    pub max_active_dims: Option<usize>,
}

impl RequestedVectors {
    fn only(kind: VectorKind) -> Self {
        Self {
            kinds: vec![kind],
            max_active_dims: None,
        }
    }
}

/// A text's vectors; `None` for kinds that were not requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextVectors {
    /// One vector per text.
    pub dense: Option<Vec<f32>>,
    /// Token weights.
    pub sparse: Option<SparseVector>,
    /// One vector per token.
    pub multi_vector: Option<Vec<Vec<f32>>>,
}

impl TextVectors {
    /// Values in the response; a sparse weight counts as two, with its token id.
    fn values(&self) -> usize {
        let sparse = self.sparse.as_ref().map_or(0, |sparse| 2 * sparse.0.len());
        let multi: usize = self.multi_vector.iter().flatten().map(Vec::len).sum();
        self.dense.as_ref().map_or(0, Vec::len) + sparse + multi
    }
}

/// Vectors for a request's texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings<V> {
    /// In text order.
    pub vectors: Vec<V>,
    /// Token counts and durations.
    pub usage: Usage,
}

/// An embedding model.
#[derive(Clone, Debug)]
pub struct EmbeddingPipeline {
    encoder: Encoder,
    settings: Arc<EmbeddingSettings>,
    /// Ranges for int8 vectors.
    ranges: Option<Arc<Ranges>>,
    /// Weights for queries that skip the model.
    query_weights: Option<Arc<QueryWeights>>,
}

impl EmbeddingPipeline {
    /// Joins a tokenizer and a model. Fails if the model's signature differs from the settings.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: EmbeddingSettings,
    ) -> Result<Self> {
        let output = |name: &str, width, vectors| NamedOutput {
            name: name.into(),
            width,
            vectors,
        };
        let dense = settings
            .dense
            .as_ref()
            .map(|dense| output(&dense.output, dense.dimensions, Vectors::Any));
        let sparse = settings.sparse.as_ref().map(|sparse| {
            let vectors = match sparse.values {
                SparseValues::Tokens { .. } => Vectors::PerToken,
                _ => Vectors::PerText,
            };
            output(&sparse.output, sparse.width(), vectors)
        });
        let multi = settings
            .multi_vector
            .as_ref()
            .map(|multi| output(&multi.output, multi.dimensions, Vectors::PerToken));
        let outputs = [dense, sparse, multi].into_iter().flatten().collect();
        let route: Route = route.into();
        if !settings.tasks.is_empty()
            && route
                .signature()
                .inputs
                .iter()
                .all(|input| input.name != TASK_IDS)
        {
            return Err(Error::model(format!(
                "expected the input `{TASK_IDS}` in the graph of a model with `tasks`, but found none"
            )));
        }
        let encoder = Encoder::new(tokenizer, route, outputs, None, settings.max_tokens)?;
        Ok(Self {
            encoder,
            settings: settings.into(),
            ranges: None,
            query_weights: None,
        })
    }

    /// Adds ranges for int8 vectors.
    #[must_use]
    pub fn with_ranges(self, ranges: Option<Arc<Ranges>>) -> Self {
        Self { ranges, ..self }
    }

    /// Adds query weights, which the settings must declare.
    #[must_use]
    pub fn with_query_weights(self, query_weights: Option<Arc<QueryWeights>>) -> Self {
        Self {
            query_weights,
            ..self
        }
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &EmbeddingSettings {
        &self.settings
    }

    /// The encoder, with the tokenizer and the token limit.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Dense vectors, one per text.
    pub async fn embed(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<f32>>> {
        let requested = RequestedVectors::only(VectorKind::Dense);
        let Embeddings { vectors, usage } = self
            .embed_kinds(inputs, &requested, options, deadline)
            .await?;
        Ok(Embeddings {
            vectors: vectors.into_iter().filter_map(|text| text.dense).collect(),
            usage,
        })
    }

    /// Refuses a request for vectors that the model does not have.
    pub fn check(&self, requested: &RequestedVectors) -> Result<()> {
        let settings = &self.settings;
        for kind in &requested.kinds {
            match kind {
                VectorKind::Dense => drop(settings.dense()?),
                VectorKind::Sparse => settings.sparse()?.check_limit(requested.max_active_dims)?,
                VectorKind::MultiVector => drop(settings.multi_vector()?),
            }
        }
        Ok(())
    }

    /// The requested vectors per text, from one run.
    pub async fn embed_kinds(
        &self,
        inputs: Vec<Input>,
        requested: &RequestedVectors,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<TextVectors>> {
        self.check(requested)?;
        let settings = &self.settings;
        let place = |kind| {
            settings
                .place(kind)
                .filter(|_| requested.kinds.contains(&kind))
        };
        let dense = settings.dense.as_ref().zip(place(VectorKind::Dense));
        let sparse = settings.sparse.as_ref().zip(place(VectorKind::Sparse));
        let multi = settings
            .multi_vector
            .as_ref()
            .zip(place(VectorKind::MultiVector));
        let dimensions = dense.map_or(Ok(0), |_| self.dimensions(options.dimensions))?;
        check_values(options.max_values, inputs.len(), dimensions)?;
        let encodings = self.encode(inputs, options, deadline).await?;
        if let Some((multi, _)) = multi {
            check_values(options.max_values, encodings.tokens(), multi.dimensions)?;
        }
        let role = settings.text_role(options.prompt_name.as_deref());
        let of_model = settings
            .sparse
            .as_ref()
            .and_then(|sparse| sparse.max_active_dims);
        let limit = requested.max_active_dims.or(of_model).unwrap_or(usize::MAX);
        let vectors = |index: usize, rows: &[Row<'_>]| {
            let ids = encodings.ids(index);
            TextVectors {
                dense: dense
                    .map(|(dense, place)| dense_vector(dense, dimensions, options, rows[place])),
                sparse: sparse
                    .map(|(sparse, place)| sparse.vector(ids, rows[place].values).truncated(limit)),
                multi_vector: multi.map(|(multi, place)| {
                    let vectors = match options.normalize {
                        Some(false) => multi.vectors(role, ids, rows[place].values),
                        _ => multi.unit_vectors(role, ids, rows[place].values),
                    };
                    vectors
                        .chunks_exact(multi.dimensions)
                        .map(<[f32]>::to_vec)
                        .collect()
                }),
            }
        };
        let (vectors, usage) = match &self.query_weights {
            Some(weights) if role == TextRole::Query => {
                let vector = |index| weights.vector(encodings.ids(index)).truncated(limit);
                let vectors = |index| TextVectors {
                    sparse: Some(vector(index)),
                    ..TextVectors::default()
                };
                (
                    (0..encodings.count()).map(vectors).collect(),
                    encodings.usage_without_run(),
                )
            }
            _ => {
                self.encoder
                    .run_all(&encodings, Granularity::Texts, deadline, vectors)
                    .await?
            }
        };
        let dense = vectors.iter().filter_map(|text| text.dense.as_ref());
        let multi = vectors.iter().flat_map(|text| &text.multi_vector).flatten();
        check_finite(dense.chain(multi))?;
        let values: usize = vectors.iter().map(TextVectors::values).sum();
        if values > options.max_values {
            return Err(too_many(
                options.max_values,
                &format!("{values} in {} texts", vectors.len()),
            ));
        }
        Ok(Embeddings { vectors, usage })
    }

    /// Vectors per chunk, for a text that the model reads as a whole. Fails if the text exceeds the model's token
    /// limit, or if the model pools the first token or in its graph.
    pub async fn embed_chunks(
        &self,
        chunks: &Chunks,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<f32>>> {
        let dense = self.settings.dense()?;
        if dense.pooling == Pooling::Cls {
            return Err(Error::invalid(
                "late chunking is not supported: the model pools the first token, not all tokens",
            ));
        }
        let dimensions = self.dimensions(options.dimensions)?;
        check_values(options.max_values, chunks.count(), dimensions)?;
        self.encoder.require_token_vectors(deadline).await?;
        let (text, ends) = chunks.prompted(self.prompt_of(options)?);
        let tokenizer = self.encoder.input_tokenizer(deadline).await?;
        let (mut encodings, parts) = tokenizer.encode_parts(text, ends).await?;
        encodings.set_task(self.task(options)?);
        encodings.refuse(&self.settings.placeholders)?;
        let vectors = |row: Row<'_>| -> Vec<Vec<f32>> {
            let part = |tokens: &Range<usize>| {
                let values = &row.values[tokens.start * row.width..tokens.end * row.width];
                dense_vector(dense, dimensions, options, Row { values, ..row })
            };
            parts.iter().map(part).collect()
        };
        let (vectors, usage) = self
            .encoder
            .run(&encodings, Granularity::Tokens, deadline, vectors)
            .await?;
        check_finite(vectors.iter().flatten())?;
        Ok(Embeddings {
            vectors: vectors.into_iter().flatten().collect(),
            usage,
        })
    }

    /// Token vectors per text: multi-vectors if the model has them, or else its own vectors without pooling or
    /// normalization. Fails if the graph pools.
    pub async fn embed_all(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Embeddings<Vec<Vec<f32>>>> {
        if self.settings.has(VectorKind::MultiVector) {
            let requested = RequestedVectors::only(VectorKind::MultiVector);
            let Embeddings { vectors, usage } = self
                .embed_kinds(inputs, &requested, options, deadline)
                .await?;
            let vectors = vectors
                .into_iter()
                .filter_map(|text| text.multi_vector)
                .collect();
            return Ok(Embeddings { vectors, usage });
        }
        let lacks = || self.settings.lacks(VectorKind::MultiVector);
        let dense = self.settings.dense.as_ref().ok_or_else(lacks)?;
        self.encoder.require_token_vectors(deadline).await?;
        let encodings = self.encode(inputs, options, deadline).await?;
        check_values(options.max_values, encodings.tokens(), dense.dimensions)?;
        let vectors = |row: Row<'_>| {
            row.values
                .chunks_exact(row.width)
                .map(<[f32]>::to_vec)
                .collect()
        };
        let (vectors, usage) = self
            .encoder
            .run(&encodings, Granularity::Tokens, deadline, vectors)
            .await?;
        Ok(Embeddings { vectors, usage })
    }

    /// Late-interaction scores between a query and each text; raw scores equal the model authors' implementation.
    /// Scores are computed while texts are read, so the vectors of all texts are never in memory together.
    pub async fn late_interaction(
        &self,
        query: String,
        texts: Vec<String>,
        RankingOptions {
            truncation,
            raw_scores,
        }: RankingOptions,
        deadline: Deadline,
    ) -> Result<(Vec<f32>, Usage)> {
        let multi = self.settings.multi_vector()?;
        let place = self
            .settings
            .place(VectorKind::MultiVector)
            .unwrap_or_default();
        let vectors = |role| {
            move |ids: &[u32], rows: &[Row<'_>]| multi.unit_vectors(role, ids, rows[place].values)
        };
        let of_role = |role: TextRole| EmbeddingOptions {
            prompt_name: Some(role.name().to_owned()),
            ..EmbeddingOptions::for_comparison(truncation, Similarity::Cosine)
        };
        let query = vec![Input::Text(query)];
        let query = self
            .encode(query, &of_role(TextRole::Query), deadline)
            .await?;
        let of_query = vectors(TextRole::Query);
        let of_query = |index: usize, rows: &[Row<'_>]| {
            let vectors = of_query(query.ids(index), rows);
            check_finite([&vectors]).map(|()| Query::new(&vectors, multi.dimensions))
        };
        let (queries, of_query) = self
            .encoder
            .run_all(&query, Granularity::Texts, deadline, of_query)
            .await?;
        let queries: Vec<Query> = queries.into_iter().collect::<Result<_>>()?;
        let texts = texts.into_iter().map(Input::Text).collect();
        let texts = self
            .encode(texts, &of_role(TextRole::Document), deadline)
            .await?;
        let of_text = vectors(TextRole::Document);
        let score = |index: usize, rows: &[Row<'_>]| {
            let document = of_text(texts.ids(index), rows);
            check_finite([&document]).map(|()| match raw_scores {
                true => multi.raw_score(&queries[0], &document),
                false => mean_product(&queries[0], &document).clamp(0.0, 1.0),
            })
        };
        let (scores, usage) = self
            .encoder
            .run_all(&texts, Granularity::Texts, deadline, score)
            .await?;
        let usage = usage.after_query(&of_query, scores.len());
        Ok((scores.into_iter().collect::<Result<_>>()?, usage))
    }

    /// See [`EmbeddingSettings::prompt`].
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        self.settings.prompt(name)
    }

    /// The prompt for a request.
    fn prompt_of<'a>(&'a self, options: &'a EmbeddingOptions) -> Result<Option<&'a str>> {
        match &options.prompt {
            Some(prompt) => Ok(Some(prompt)),
            None => self.settings.prompt(options.prompt_name.as_deref()),
        }
    }

    /// Number of tokens in a request's own prompt that pooling leaves out.
    fn unpooled(&self, prompt: &str) -> Result<usize> {
        if self.settings.unpooled.is_none() || prompt.is_empty() {
            return Ok(0);
        }
        let (tokenizer, limit) = (self.encoder.tokenizer(), self.encoder.max_tokens());
        let found = tokenizer
            .encode(prompt, limit, Truncation::At(Side::Right))?
            .len();
        let [_, after] = tokenizer.special_ids();
        Ok(found.saturating_sub(usize::from(!after.is_empty())))
    }

    /// See [`EmbeddingSettings::prompt_name`].
    pub fn prompt_name(&self, role: &str) -> Result<Option<&str>> {
        self.settings.prompt_name(role)
    }

    /// Converts normalized vectors with this many dimensions to a vector type.
    pub fn conversion(&self, wanted: VectorType, dimensions: Option<usize>) -> Result<Conversion> {
        Conversion::new(wanted, self.dimensions(dimensions)?, self.ranges.as_deref())
    }

    /// Fails if the model does not have this many dimensions.
    pub fn check_dimensions(&self, requested: Option<usize>) -> Result<()> {
        self.dimensions(requested).map(drop)
    }

    /// Number of values in a dense vector, of which `requested` are kept.
    pub fn dimensions(&self, requested: Option<usize>) -> Result<usize> {
        let max = self.settings.dense()?.dimensions;
        match requested.unwrap_or(max) {
            dimensions if (1..=max).contains(&dimensions) => Ok(dimensions),
            found => Err(Error::invalid(format!(
                "expected `dimensions` from 1 to {max}, but found {found}"
            ))
            .in_field("dimensions")),
        }
    }

    async fn encode(
        &self,
        inputs: Vec<Input>,
        options: &EmbeddingOptions,
        deadline: Deadline,
    ) -> Result<Encodings> {
        let settings = &self.settings;
        let (name, task) = (options.prompt_name.as_deref(), self.task(options)?);
        let options = EncodingOptions {
            prompt: self.prompt_of(options)?,
            unpooled: match &options.prompt {
                Some(prompt) => self.unpooled(prompt)?,
                None => settings.unpooled(name)?,
            },
            role: settings.form(settings.text_role(name)),
            ..EncodingOptions::new(options.truncation)
        };
        let mut encodings = self
            .encoder
            .input_tokenizer(deadline)
            .await?
            .encode(inputs, &options)
            .await?;
        encodings.set_task(task);
        encodings.refuse(&settings.placeholders)?;
        Ok(encodings)
    }

    /// The number of a request's task; 0 for none.
    fn task(&self, options: &EmbeddingOptions) -> Result<u32> {
        let settings = &self.settings;
        match (
            &options.task,
            &options.prompt,
            options.prompt_name.as_deref(),
        ) {
            (Some(task), ..) => Ok(settings.task_number(settings.task_name(task)?)),
            // A text that replaces the default prompt.
            (None, Some(_), None) if settings.default_task.is_none() => Ok(0),
            (None, _, name) => settings.task_of_prompt(name),
        }
    }
}

fn dense_vector(
    dense: &DenseSettings,
    dimensions: usize,
    options: &EmbeddingOptions,
    row: Row<'_>,
) -> Vec<f32> {
    let mut vector = dense.pooling.pool(row.values, row.width);
    vector.truncate(dimensions);
    if options.normalize.unwrap_or(dense.normalize) {
        normalize(&mut vector);
    }
    vector
}

/// Refuses vectors or scores whose sums or lengths exceeded the range of floats, though the model's values are finite.
pub(crate) fn check_finite<'a>(vectors: impl IntoIterator<Item = &'a Vec<f32>>) -> Result<()> {
    let mut values = vectors.into_iter().flatten();
    match values.all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err(Error::inference(
            "expected results within the range of floats, but found larger ones",
        )),
    }
}

/// Refuses a response with too many values before it is computed.
fn check_values(max: usize, vectors: usize, dimensions: usize) -> Result<()> {
    if vectors.saturating_mul(dimensions) > max {
        return Err(too_many(max, &format!("{vectors} vectors of {dimensions}")));
    }
    Ok(())
}

fn too_many(max: usize, found: &str) -> Error {
    Error::too_large(format!(
        "expected a response of at most {max} numbers, but found {found}"
    ))
    .with_hint("send fewer texts at once")
}
