//! TEI's `/embed`, `/embed_sparse`, `/embed_all` and `/similarity`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    app::App,
    inputs,
    rejection::Reply,
    request::{self, Call, Context, model_name},
    response::{characters, with_usage},
    vectors::{EncodingFormat, Form, Vector},
};
use crate::{
    error::{Error, Result},
    json_schemas::{Inputs, OneText, Texts},
    pipeline::{
        Input,
        embedding::{EmbeddingPipeline, Embeddings, TextVectors, VectorKind},
        pooling::cosine,
        sparse::SparseVector,
        vectors::VectorType,
    },
    task::embedding::{Embedder, EmbeddingParameters},
    tokenizer::Side,
};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub(super) struct EmbedOptions {
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// Whether texts beyond the model's limit are truncated; otherwise they are rejected.
    truncate: Option<bool>,
    /// The end at which a text is truncated.
    truncation_direction: Option<Side>,
    /// Prompt to put before each text, by name; token ids get none.
    prompt_name: Option<String>,
    /// Whether vectors are scaled to length 1; true by default.
    normalize: Option<bool>,
    /// Number of leading values to keep per vector.
    #[schemars(range(min = 1))]
    dimensions: Option<usize>,
    /// `float` by default; also type names, as in `output_dtype`.
    encoding_format: Option<EncodingFormat>,
    /// The values' type; `float` by default.
    output_dtype: Option<VectorType>,
    /// The vector kinds that `/embed` returns for each text, in an object.
    #[schemars(length(min = 1))]
    outputs: Option<Vec<VectorKind>>,
    /// Number of largest weights to keep per sparse vector; all by default.
    #[schemars(range(min = 1))]
    max_active_dims: Option<usize>,
    /// Whether sparse weights include their tokens' words; false by default.
    words: Option<bool>,
}

/// The body of `/embed`, `/embed_all` and `/embed_sparse`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used; `parse` reads the body")]
pub(super) struct EmbedRequest {
    inputs: Inputs,
    #[serde(flatten)]
    options: EmbedOptions,
}

impl EmbedOptions {
    /// Refuses values that no route takes, also where the route does not use them.
    fn check(&self) -> Result<()> {
        if self.outputs.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid(
                "expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list",
            ));
        }
        inputs::above_zero("max_active_dims", self.max_active_dims)
    }

    /// TEI normalizes by default, whatever the model's own settings. `model` is the name that selects the model.
    fn parameters(self, app: &App, model: Option<&str>) -> EmbeddingParameters {
        EmbeddingParameters {
            truncate: self.truncate,
            truncation_direction: self.truncation_direction,
            prompt_name: self.prompt_name.or_else(|| app.named_prompt(model)),
            normalize: Some(self.normalize.unwrap_or(true)),
            dimensions: self.dimensions,
            output_dtype: self.output_dtype.or_else(|| self.encoding_format?.vector_type()),
            outputs: self.outputs,
            max_active_dims: self.max_active_dims,
            words: self.words,
        }
    }
}

/// A body's inputs, character count and options.
fn parse(context: &Context, mut body: Value) -> Result<(Vec<Input>, usize, EmbedOptions)> {
    let inputs = body.as_object_mut().and_then(|body| body.remove("inputs"));
    let inputs = inputs.ok_or_else(|| Error::invalid("expected an object with `inputs`, but found none"))?;
    let options: EmbedOptions = request::from_value(body)?;
    options.check()?;
    let inputs = inputs::read("inputs", inputs, &context.texts)?;
    let characters = characters(inputs.iter().flat_map(Input::texts));
    Ok((inputs, characters, options))
}

/// A token's weight in a sparse vector.
#[derive(Serialize, JsonSchema)]
pub(super) struct SparseValue {
    /// The token's id.
    index: u32,
    value: f32,
    /// The token in the vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    word: Option<String>,
}

/// The requested vectors for a text.
#[derive(Serialize, JsonSchema)]
pub(super) struct VectorsByKind {
    #[serde(skip_serializing_if = "Option::is_none")]
    dense: Option<Vector>,
    /// Vocabulary tokens that represent the text, with their weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    sparse: Option<Vec<SparseValue>>,
    /// A vector per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    multi_vector: Option<Vec<Vec<f32>>>,
}

fn sparse_values(embedder: &Embedder, vector: SparseVector) -> Vec<SparseValue> {
    let value = |(index, value)| SparseValue { index, value, word: embedder.word(index) };
    vector.0.into_iter().map(value).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct SimilarityRequest {
    inputs: SimilarityInputs,
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    parameters: Option<EmbedOptions>,
}

impl SimilarityRequest {
    pub(super) fn model(&self) -> Option<&str> {
        let parameters = self.parameters.as_ref();
        self.model.as_deref().or_else(|| parameters?.model.as_deref())
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `source_sentence` and `sentences`")]
struct SimilarityInputs {
    /// The text that the others are compared with.
    #[schemars(with = "OneText")]
    source_sentence: Value,
    #[schemars(with = "Texts")]
    sentences: Value,
}

/// Embed texts
pub(super) async fn embed(Call(context, body): Call<Value>) -> Reply {
    let name = model_name(&body).map(str::to_owned);
    let (_, pipeline) = context.app.embedding(name.as_deref())?;
    embed_with(&context, pipeline, name.as_deref(), body).await
}

/// Embeds with the model that `name` selects.
pub(super) async fn embed_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: Value,
) -> Reply {
    let (inputs, characters, options) = parse(context, body)?;
    let (format, has_outputs) = (options.encoding_format, options.outputs.is_some());
    let mut parameters = options.parameters(&context.app, name);
    parameters.outputs.get_or_insert_with(|| vec![VectorKind::Dense]);
    let embedder = parameters.prepare(pipeline, &context.scope())?;
    let form = Form::new(&embedder, format);
    let Embeddings { vectors, usage } = embedder.run(inputs, context.deadline).await?;
    if !has_outputs {
        let dense = vectors.into_iter().filter_map(|text| text.dense);
        let vectors: Vec<_> = dense.map(|vector| form.apply(vector)).collect();
        return Ok(with_usage(context, &vectors, &usage, characters));
    }
    let by_kind = |TextVectors { dense, sparse, multi_vector }| VectorsByKind {
        dense: dense.map(|vector| form.apply(vector)),
        sparse: sparse.map(|vector| sparse_values(&embedder, vector)),
        multi_vector,
    };
    let vectors: Vec<_> = vectors.into_iter().map(by_kind).collect();
    Ok(with_usage(context, &vectors, &usage, characters))
}

/// Embeds with a model, like the route for its first vector kind.
pub(super) async fn embed_by_default(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: Value,
) -> Reply {
    let has_outputs = body.get("outputs").is_some_and(|outputs| !outputs.is_null());
    match pipeline.settings().outputs().first() {
        Some((VectorKind::Sparse, _)) if !has_outputs => {
            embed_sparse_with(context, pipeline, name, body).await
        }
        Some((VectorKind::MultiVector, _)) if !has_outputs => {
            embed_all_with(context, pipeline, name, body).await
        }
        _ => embed_with(context, pipeline, name, body).await,
    }
}

/// Embed texts as token weights
pub(super) async fn embed_sparse(Call(context, body): Call<Value>) -> Reply {
    let name = model_name(&body).map(str::to_owned);
    let (_, pipeline) = context.app.embedding_with(name.as_deref(), VectorKind::Sparse)?;
    embed_sparse_with(&context, pipeline, name.as_deref(), body).await
}

async fn embed_sparse_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: Value,
) -> Reply {
    let (inputs, characters, options) = parse(context, body)?;
    inputs::above_zero("dimensions", options.dimensions)?;
    let outputs = Some(vec![VectorKind::Sparse]);
    let parameters = EmbeddingParameters { outputs, ..options.parameters(&context.app, name) };
    let embedder = parameters.prepare(pipeline, &context.scope())?;
    let Embeddings { vectors, usage } = embedder.run(inputs, context.deadline).await?;
    let values = vectors.into_iter().filter_map(|text| text.sparse);
    let vectors: Vec<_> = values.map(|vector| sparse_values(&embedder, vector)).collect();
    Ok(with_usage(context, &vectors, &usage, characters))
}

/// Embed each token
///
/// A late-interaction model returns a document's projected vectors, or a query's if `prompt_name` is `query`.
pub(super) async fn embed_all(Call(context, body): Call<Value>) -> Reply {
    let name = model_name(&body).map(str::to_owned);
    let name = name.as_deref();
    let (_, pipeline) = match name {
        Some(_) => context.app.embedding(name)?,
        // The first model that has token vectors; before there were others, the first with dense vectors.
        None => match context.app.embedding(None)? {
            found @ (_, pipeline) if pipeline.settings().has(VectorKind::Dense) => found,
            _ => context.app.embedding_with(None, VectorKind::MultiVector)?,
        },
    };
    embed_all_with(&context, pipeline, name, body).await
}

async fn embed_all_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: Value,
) -> Reply {
    let (inputs, characters, options) = parse(context, body)?;
    inputs::above_zero("dimensions", options.dimensions)?;
    let options = options.parameters(&context.app, name).options(&context.scope());
    let embeddings = pipeline.embed_all(inputs, &options, context.deadline).await?;
    Ok(with_usage(context, &embeddings.vectors, &embeddings.usage, characters))
}

/// Compare sentences with a source sentence
pub(super) async fn similarity(Call(context, body): Call<SimilarityRequest>) -> Reply {
    let (_, pipeline) = context.app.embedding(body.model())?;
    let name = body.model().map(str::to_owned);
    similarity_with(&context, pipeline, name.as_deref(), body).await
}

pub(super) async fn similarity_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: SimilarityRequest,
) -> Reply {
    // The source sentence counts as one of the request's texts.
    let [one, others] =
        [1, context.texts.max().saturating_sub(1).max(1)].map(|max| context.texts.at_most(max));
    let mut texts = inputs::texts("inputs.source_sentence", body.inputs.source_sentence, &one)?;
    texts.extend(inputs::texts("inputs.sentences", body.inputs.sentences, &others)?);
    let characters = characters(texts.iter().map(String::as_str));
    let inputs = texts.into_iter().map(Input::Text).collect();
    let options = body.parameters.unwrap_or_default();
    options.check()?;
    let options = options.parameters(&context.app, name).options(&context.scope());
    let embeddings = pipeline.embed(inputs, &options, context.deadline).await?;
    let (source, sentences) = embeddings.vectors.split_at(1);
    let similarities: Vec<f32> = sentences.iter().map(|sentence| cosine(&source[0], sentence)).collect();
    Ok(with_usage(context, &similarities, &embeddings.usage, characters))
}
