//! TEI's `/embed`, `/embed_sparse`, `/embed_all` and `/similarity`.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, SeqAccess},
};
use serde_json::{Map, Value};

use super::hub_body::HubBody;
use crate::{
    bodies::{
        inputs,
        rejection::ApiResult,
        request::{self, Context, JsonRequest, RequestBody},
        response::with_usage,
        vectors::{EncodingFormat, Form, Vector},
    },
    fields::known,
    service::models::caller_models::CallerModels,
};
use kivu::{
    Error, Result,
    json::{self, Content, FromJson, Kind, Tree, check},
    json_schemas::{Inputs, OneText, Texts},
    pipeline::{
        Input,
        embedding::{EmbeddingPipeline, Embeddings, VectorKind, similarity::cosine},
    },
    task::embedding::EmbeddingParameters,
};

/// Options for `/embed`, `/embed_all`, `/embed_sparse` and `/similarity`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct EmbedOptions {
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// `float` by default; also type names, as in `output_dtype`.
    encoding_format: Option<EncodingFormat>,
    #[serde(flatten, deserialize_with = "json::flattened")]
    parameters: EmbeddingParameters,
}

/// The body of `/embed`, `/embed_all` and `/embed_sparse`.
#[derive(Default, JsonSchema)]
pub struct EmbedRequest {
    #[schemars(with = "Inputs")]
    inputs: Option<Content>,
    // Options are checked after the model is found.
    #[serde(flatten)]
    #[schemars(with = "EmbedOptions")]
    options: Map<String, Value>,
    /// The name that selects the model.
    #[serde(skip)]
    pub name: Option<String>,
}

impl EmbedRequest {
    /// The inputs, and checked options.
    fn read(self, context: &Context) -> Result<(Vec<Input>, EmbedOptions)> {
        let inputs = self
            .inputs
            .ok_or_else(|| Error::invalid("expected an object with `inputs`, but found none"))?;
        let options: EmbedOptions = request::from_value(Value::Object(self.options))?;
        options.check()?;
        Ok((inputs::read("inputs", inputs, &context.texts)?, options))
    }
}

impl RequestBody for EmbedRequest {
    const FIELDS: &str = "body.embed";
}

impl<'de> FromJson<'de> for EmbedRequest {
    fn scalar(_: Value) -> Self {
        Self::default()
    }

    fn text(_: Cow<'_, str>) -> Self {
        Self::default()
    }

    fn list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error> {
        Kind::list(items).map(|_| Self::default())
    }

    fn object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        let mut request = Self::default();
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "inputs" if request.inputs.is_some() => {
                    return Err(A::Error::duplicate_field("inputs"));
                }
                "inputs" => request.inputs = Some(fields.next_value()?),
                _ => {
                    let Tree(value) = fields.next_value()?;
                    json::add_field(&mut request.options, name, value)?;
                }
            }
        }
        request.name = request
            .options
            .get("model")
            .and_then(Value::as_str)
            .map(str::to_owned);
        Ok(request)
    }
}

impl<'de> Deserialize<'de> for EmbedRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json::from_any(deserializer)
    }
}

impl EmbedOptions {
    /// Refuses values that no route takes, also where the route does not use them.
    fn check(&self) -> Result<()> {
        if self.parameters.outputs.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid(
                "expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list",
            ));
        }
        inputs::one_value([
            ("output_dtype", self.parameters.output_dtype),
            (
                "encoding_format",
                self.encoding_format.and_then(EncodingFormat::packed_type),
            ),
        ])?;
        inputs::above_zero("max_active_dims", self.parameters.max_active_dims)
    }

    /// TEI normalizes by default, whatever the model's own settings. `model` is the name that selects the model.
    fn parameters(self, models: &CallerModels, model: Option<&str>) -> Result<EmbeddingParameters> {
        let Self {
            encoding_format,
            parameters,
            ..
        } = self;
        let prompt_name = inputs::one_role([
            ("prompt_name", parameters.prompt_name),
            ("model", models.named_prompt(model)),
        ])?;
        Ok(EmbeddingParameters {
            prompt_name,
            normalize: Some(parameters.normalize.unwrap_or(true)),
            output_dtype: parameters
                .output_dtype
                .or_else(|| encoding_format?.vector_type()),
            ..parameters
        })
    }
}

/// A token's weight in a sparse vector.
#[derive(Serialize, JsonSchema)]
pub struct SparseValue {
    /// The token's id.
    index: u32,
    /// The token's weight, above 0.
    value: f32,
    /// The token in the vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    word: Option<String>,
}

/// One list of vectors, or of objects with all requested kinds.
#[derive(Serialize)]
#[serde(untagged)]
enum EmbedResponse {
    ByKind(Vec<VectorsByKind>),
    Dense(Vec<Vector>),
    Sparse(Vec<Vec<SparseValue>>),
}

/// The requested vectors for a text.
#[derive(Serialize, JsonSchema)]
pub struct VectorsByKind {
    #[serde(skip_serializing_if = "Option::is_none")]
    dense: Option<Vector>,
    /// Vocabulary tokens that represent the text, with their weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    sparse: Option<Vec<SparseValue>>,
    /// A vector per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    multi_vector: Option<Vec<Vec<f32>>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct SimilarityRequest {
    /// The sentences to compare.
    inputs: SimilarityInputs,
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// Embedding options, with defaults for all.
    parameters: Option<EmbedOptions>,
}

impl SimilarityRequest {
    pub fn model(&self) -> Option<&str> {
        let parameters = self.parameters.as_ref();
        self.model
            .as_deref()
            .or_else(|| parameters?.model.as_deref())
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `source_sentence` and `sentences`")]
struct SimilarityInputs {
    /// The text that the others are compared with.
    #[schemars(with = "OneText")]
    source_sentence: Content,
    /// The texts that are compared with it: one, or a list.
    #[schemars(with = "Texts")]
    sentences: Content,
}

/// Embed texts
pub async fn embed(JsonRequest(context, body): JsonRequest<EmbedRequest>) -> ApiResult {
    let (_, pipeline) = context.embedding(body.name.as_deref()).await?;
    embed_as(&context, pipeline, body, VectorKind::Dense).await
}

/// Embed texts as token weights
pub async fn embed_sparse(JsonRequest(context, body): JsonRequest<EmbedRequest>) -> ApiResult {
    let (_, pipeline) = context
        .embedding_with(body.name.as_deref(), VectorKind::Sparse)
        .await?;
    embed_as(&context, pipeline, body, VectorKind::Sparse).await
}

/// Embed each token
///
/// A late-interaction model returns a document's projected vectors, or a query's if `prompt_name` is `query`.
pub async fn embed_all(JsonRequest(context, body): JsonRequest<EmbedRequest>) -> ApiResult {
    let (_, pipeline) = match context.embedding(body.name.as_deref()).await? {
        // The first model that has token vectors; before there were others, the first with dense vectors.
        (_, pipeline) if body.name.is_none() && !pipeline.settings().has(VectorKind::Dense) => {
            context
                .embedding_with(None, VectorKind::MultiVector)
                .await?
        }
        found => found,
    };
    embed_as(&context, pipeline, body, VectorKind::MultiVector).await
}

/// Embeds with a model, like the route for its first vector kind.
pub async fn embed_by_default(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    body: EmbedRequest,
) -> ApiResult {
    let has_outputs = body
        .options
        .get("outputs")
        .is_some_and(|outputs| !outputs.is_null());
    let first = pipeline.settings().outputs().first().map(|(kind, _)| *kind);
    let kind = first.filter(|_| !has_outputs).unwrap_or(VectorKind::Dense);
    embed_as(context, pipeline, body, kind).await
}

/// Embeds like the route for vectors of `kind`. Only the one for dense vectors has other `outputs`.
async fn embed_as(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    mut body: EmbedRequest,
    kind: VectorKind,
) -> ApiResult {
    let name = body.name.take();
    let (inputs, options) = body.read(context)?;
    if kind != VectorKind::Dense {
        inputs::above_zero("dimensions", options.parameters.dimensions)?;
        let outputs = options.parameters.outputs.as_deref();
        if outputs.is_some_and(|outputs| outputs != [kind]) {
            return Err(Error::invalid(format!(
                "expected `{kind}` alone in `outputs` on this route, but found others"
            ))
            .with_hint("`/embed` takes several")
            .in_field("outputs")
            .into());
        }
    }
    let format = options.encoding_format;
    let mut parameters = options.parameters(&context.models, name.as_deref())?;
    if kind == VectorKind::MultiVector {
        let options = parameters.options(pipeline, &context.scope())?;
        let embeddings = pipeline
            .embed_all(inputs, &options, context.deadline)
            .await?;
        return Ok(with_usage(context, &embeddings.vectors, &embeddings.usage));
    }
    let requested = parameters
        .outputs
        .take()
        .filter(|_| kind == VectorKind::Dense);
    let is_by_kind = requested.is_some();
    parameters.outputs = requested.or_else(|| Some(vec![kind]));
    let embedder = parameters.prepare(pipeline, &context.scope())?;
    let form = Form::new(&embedder, format);
    if embedder.requested.kinds.contains(&VectorKind::Dense) {
        let dimensions = pipeline.dimensions(embedder.options.dimensions)?;
        context.check_response(inputs.len() * form.min_bytes(dimensions))?;
    }
    let Embeddings { vectors, usage } = embedder.run(inputs, context.deadline).await?;
    let weight = |(index, value)| SparseValue {
        index,
        value,
        word: embedder.word(index),
    };
    let by_kind = vectors.into_iter().map(|text| VectorsByKind {
        dense: text.dense.map(|vector| form.apply(vector)),
        sparse: text
            .sparse
            .map(|vector| vector.0.into_iter().map(weight).collect()),
        multi_vector: text.multi_vector,
    });
    let answer = match kind {
        _ if is_by_kind => EmbedResponse::ByKind(by_kind.collect()),
        VectorKind::Sparse => {
            EmbedResponse::Sparse(by_kind.filter_map(|text| text.sparse).collect())
        }
        _ => EmbedResponse::Dense(by_kind.filter_map(|text| text.dense).collect()),
    };
    Ok(with_usage(context, &answer, &usage))
}

/// Compare sentences with a source sentence
pub async fn similarity(JsonRequest(context, Tree(body)): JsonRequest<Tree>) -> ApiResult {
    let body = similarity_request(body)?;
    let (_, pipeline) = context.embedding(body.model()).await?;
    let name = body.model().map(str::to_owned);
    similarity_with(&context, pipeline, name.as_deref(), body).await
}

/// Parses the body for comparing sentences, whose options may be in `parameters` or beside `inputs`.
pub fn similarity_request(body: Value) -> Result<SimilarityRequest> {
    check(&body, known("body.similarity")?)?;
    match body {
        Value::Object(fields) => request::from_value(HubBody::read(fields, None)?.in_parameters()),
        other => request::from_value(other),
    }
}

pub async fn similarity_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: SimilarityRequest,
) -> ApiResult {
    // The source sentence counts as one of the request's texts.
    let [one, others] =
        [1, context.texts.max().saturating_sub(1).max(1)].map(|max| context.texts.at_most(max));
    let mut texts = inputs::texts("inputs.source_sentence", body.inputs.source_sentence, &one)?;
    texts.extend(inputs::texts(
        "inputs.sentences",
        body.inputs.sentences,
        &others,
    )?);
    let inputs = texts.into_iter().map(Input::Text).collect();
    let options = body.parameters.unwrap_or_default();
    options.check()?;
    let options = options
        .parameters(&context.models, name)?
        .options(pipeline, &context.scope())?;
    let embeddings = pipeline.embed(inputs, &options, context.deadline).await?;
    let (source, sentences) = embeddings.vectors.split_at(1);
    let similarities: Vec<f32> = sentences
        .iter()
        .map(|sentence| cosine(&source[0], sentence))
        .collect();
    Ok(with_usage(context, &similarities, &embeddings.usage))
}
