//! TEI's `/embed`, `/embed_all` and `/similarity`.

use std::{sync::Arc, time::Instant};

use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Answer, truncation,
    usage::{characters, with_usage},
};
use crate::{
    api::{App, inputs, openapi::schemas, request},
    backend::Deadline,
    config::Limits,
    error::Error,
    pipeline::{
        embedding::{EmbeddingOptions, Input},
        pooling::cosine,
    },
    tokenizer::Side,
};

/// What the routes that embed have in common. TEI's routes have no model; ours may name one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = EmbedOptions)]
pub(in crate::api) struct Options {
    /// The model's name; the first that embeds if there is none.
    model: Option<String>,
    /// Whether texts that are too long are cut; if not, they are refused.
    truncate: Option<bool>,
    /// The end that gives way.
    truncation_direction: Option<Side>,
    /// The prompt that is put before each text; token ids get none.
    prompt_name: Option<String>,
    /// Whether vectors are scaled to length 1, which they are by default.
    normalize: Option<bool>,
    /// Keep the first so many values of each vector.
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
}

/// What `/embed` and `/embed_all` read.
#[derive(ToSchema)]
#[expect(dead_code, reason = "read in two steps, so that errors name the field; this is their sum")]
pub(in crate::api) struct EmbedRequest {
    /// A text, texts, token ids, or lists of token ids.
    #[schema(schema_with = schemas::inputs)]
    inputs: Value,
    #[serde(flatten)]
    options: Options,
}

impl Options {
    /// TEI scales vectors to length 1 unless told otherwise, whatever the model's own files say.
    fn embedding(&self, limits: &Limits) -> EmbeddingOptions {
        EmbeddingOptions {
            truncation: truncation(limits, self.truncate, self.truncation_direction),
            normalize: Some(self.normalize.unwrap_or(true)),
            prompt_name: self.prompt_name.clone(),
            dimensions: self.dimensions,
            max_values: limits.values,
        }
    }
}

/// The inputs and the options, which TEI has side by side in one object.
fn inputs_and_options(mut body: Value) -> Result<(Value, Options), Error> {
    let inputs = body.as_object_mut().and_then(|body| body.remove("inputs"));
    let inputs = inputs.ok_or_else(|| Error::invalid("expected an object with `inputs`, but found none"))?;
    Ok((inputs, request::from_value(body)?))
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(in crate::api) struct SimilarityRequest {
    inputs: SimilarityInputs,
    pub(in crate::api) model: Option<String>,
    #[serde(default, deserialize_with = "request::object")]
    parameters: Option<Options>,
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `source_sentence` and `sentences`")]
struct SimilarityInputs {
    /// The text that the others are compared with.
    #[schema(schema_with = schemas::one_text)]
    source_sentence: Value,
    #[schema(schema_with = schemas::texts)]
    sentences: Value,
}

/// One vector a text
#[utoipa::path(
    post, path = "/embed", tag = "TEI",
    request_body(content = EmbedRequest, examples(
        ("one" = (summary = "A text", value = json!({ "inputs": "What is deep learning?" }))),
        ("several" = (
            summary = "Texts, and the first values only",
            value = json!({ "inputs": ["What is deep learning?", "I like you"], "dimensions": 4 })
        ))
    )),
    responses((
        status = 200, description = "A list of vectors, also for one text.", body = Vec<Vec<f32>>,
        example = json!([[-0.865_332_7, -0.418_959, 0.275_070_07, 0.003_049_813_4]])
    ))
)]
pub(in crate::api) async fn embed(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    answer_embed(&app, body, deadline, started).await
}

pub(in crate::api) async fn answer_embed(
    app: &App,
    body: Value,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    let (inputs, options) = inputs_and_options(body)?;
    let inputs = inputs::read("inputs", inputs, app.limits.texts)?;
    let characters = characters(&inputs);
    let (_, pipeline) = app.embedding(options.model.as_deref())?;
    let embeddings = pipeline.embed(inputs, &options.embedding(&app.limits), deadline).await?;
    Ok(with_usage(&embeddings.vectors, &embeddings.usage, characters, started))
}

/// One vector a token
#[utoipa::path(
    post, path = "/embed_all", tag = "TEI",
    request_body(content = EmbedRequest, example = json!({ "inputs": "hello" })),
    responses((
        status = 200, description = "A list of vectors for each text, as the model gives them.",
        body = Vec<Vec<Vec<f32>>>, example = json!([[[0.119_353_04, 0.033_278_216]]])
    ))
)]
pub(in crate::api) async fn embed_all(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    let (inputs, options) = inputs_and_options(body)?;
    let inputs = inputs::read("inputs", inputs, app.limits.texts)?;
    let characters = characters(&inputs);
    let (_, pipeline) = app.embedding(options.model.as_deref())?;
    let embeddings = pipeline.embed_all(inputs, &options.embedding(&app.limits), deadline).await?;
    Ok(with_usage(&embeddings.vectors, &embeddings.usage, characters, started))
}

/// How near sentences are to a source sentence
#[utoipa::path(
    post, path = "/similarity", tag = "TEI",
    request_body(content = SimilarityRequest, example = json!({ "inputs": {
        "source_sentence": "What is Deep Learning?",
        "sentences": ["What is Machine Learning?", "How do I bake bread?"]
    } })),
    responses((
        status = 200, description = "The cosine of each sentence with the source sentence.", body = Vec<f32>,
        example = json!([0.688_939_5, 0.030_420_69])
    ))
)]
pub(in crate::api) async fn similarity(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    answer_similarity(&app, body, deadline, started).await
}

pub(in crate::api) async fn answer_similarity(
    app: &App,
    body: SimilarityRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    // The source sentence counts among the texts of the request.
    let limit = app.limits.texts.saturating_sub(1).max(1);
    let mut inputs = inputs::texts("inputs.source_sentence", body.inputs.source_sentence, 1)?;
    inputs.extend(inputs::texts("inputs.sentences", body.inputs.sentences, limit)?);
    let inputs: Vec<Input> = inputs.into_iter().map(Input::Text).collect();
    let characters = characters(&inputs);
    let options = body.parameters.unwrap_or_default();
    let (_, pipeline) = app.embedding(body.model.or(options.model.clone()).as_deref())?;
    let embeddings = pipeline.embed(inputs, &options.embedding(&app.limits), deadline).await?;
    let (source, sentences) = embeddings.vectors.split_at(1);
    let similarities: Vec<f32> = sentences.iter().map(|sentence| cosine(&source[0], sentence)).collect();
    Ok(with_usage(&similarities, &embeddings.usage, characters, started))
}
