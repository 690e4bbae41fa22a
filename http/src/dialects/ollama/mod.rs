//! Ollama's `/api/embed` and `/api/embeddings`, and its routes about models.

mod keep_alive;
pub mod models;
pub mod pull;

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::keep_alive::KeepAlive;
use crate::bodies::{
    inputs::{self, RequestTexts},
    rejection::ApiResult,
    request::{Context, OllamaCall, RequestBody},
    response::by_model,
    vectors::Form,
};
use kivu::{
    Error, Result,
    error::at_text,
    json::Content,
    json_schemas::{OptionalText, OptionalTexts},
    model::{Model, ModelState},
    pipeline::embedding::Embeddings,
    task::{
        TruncationParameters,
        embedding::EmbeddingParameters,
        tokens::{TextToken, TokenParameters},
    },
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `input`")]
pub struct OllamaEmbedRequest {
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// A text or text list. Nothing or an empty text returns no vectors: clients load models this way.
    #[serde(default)]
    #[schemars(with = "Option<OptionalTexts>")]
    input: Content,
    /// Whether texts beyond the model's limit are truncated; otherwise they are rejected.
    truncate: Option<bool>,
    /// Number of leading values to keep per vector, which is normalized again.
    #[schemars(range(min = 1))]
    dimensions: Option<usize>,
    /// How long the model stays loaded after this request, if models are loaded on demand.
    keep_alive: Option<KeepAlive>,
    /// Options of Ollama's models.
    options: Option<OllamaOptions>,
}

impl RequestBody for OllamaEmbedRequest {
    const FIELDS: &str = "Ollama.embed";
}

/// Ollama's options, most of which have no effect on vectors.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
#[schemars(inline)]
struct OllamaOptions {
    /// Texts with more tokens are refused.
    #[schemars(range(min = 1))]
    num_ctx: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `prompt`")]
pub struct OllamaEmbeddingsRequest {
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// A text. Nothing or an empty text gives no vector.
    #[serde(default)]
    #[schemars(with = "Option<OptionalText>")]
    prompt: Content,
    /// How long the model stays loaded after this request, if models are loaded on demand.
    keep_alive: Option<KeepAlive>,
    /// Options of Ollama's models.
    options: Option<OllamaOptions>,
}

impl RequestBody for OllamaEmbeddingsRequest {
    const FIELDS: &str = "Ollama.embeddings";
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedResponse")]
pub struct EmbedResponse<'a> {
    /// The name of the model that ran.
    model: &'a str,
    /// A vector per text.
    embeddings: Vec<Vec<f32>>,
    /// In nanoseconds.
    total_duration: u64,
    /// In nanoseconds; 0 if the model was loaded before the request.
    load_duration: u64,
    /// Number of tokens.
    prompt_eval_count: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddingsResponse")]
pub struct EmbeddingsResponse {
    /// The vector; empty without a text.
    embedding: Vec<f32>,
}

/// Embed texts, as Ollama does
pub async fn embed(OllamaCall(context, body): OllamaCall<OllamaEmbedRequest>) -> ApiResult {
    let parameters = EmbeddingParameters {
        truncation: TruncationParameters {
            truncate: body.truncate,
            truncation_direction: None,
        },
        normalize: Some(true),
        dimensions: body.dimensions,
        prompt_name: context.models.named_prompt(body.model.as_deref()),
        ..EmbeddingParameters::default()
    };
    let request = Request {
        model: body.model,
        keep_alive: body.keep_alive,
        options: body.options,
        parameters,
        field: ("input", body.input, context.texts.clone()),
    };
    let found = embed_with(&context, request).await?;
    let answer = EmbedResponse {
        model: &found.model.name,
        embeddings: found.embeddings.vectors,
        total_duration: nanoseconds(context.started.elapsed()),
        load_duration: nanoseconds(found.load_time),
        prompt_eval_count: found.embeddings.usage.tokens,
    };
    Ok(by_model(&answer, &found.embeddings.usage))
}

/// Embed a text, as earlier versions of Ollama do; the model's own settings say whether vectors have length 1
pub async fn embeddings(
    OllamaCall(context, body): OllamaCall<OllamaEmbeddingsRequest>,
) -> ApiResult {
    let prompt_name = context.models.named_prompt(body.model.as_deref());
    let parameters = EmbeddingParameters {
        prompt_name,
        ..EmbeddingParameters::default()
    };
    let request = Request {
        model: body.model,
        keep_alive: body.keep_alive,
        options: body.options,
        parameters,
        field: ("prompt", body.prompt, context.texts.at_most(1)),
    };
    let mut found = embed_with(&context, request).await?;
    let answer = EmbeddingsResponse {
        embedding: found.embeddings.vectors.pop().unwrap_or_default(),
    };
    Ok(by_model(&answer, &found.embeddings.usage))
}

struct Request {
    model: Option<String>,
    keep_alive: Option<KeepAlive>,
    options: Option<OllamaOptions>,
    parameters: EmbeddingParameters,
    /// The field with the texts, which may be empty, and how many there may be.
    field: (&'static str, Content, RequestTexts),
}

/// Vectors, with the model that they come from.
struct Embedded<'a> {
    model: &'a Model,
    load_time: Duration,
    embeddings: Embeddings<Vec<f32>>,
}

async fn embed_with<'a>(context: &'a Context, request: Request) -> Result<Embedded<'a>> {
    let (looked_up, was_loaded) = (Instant::now(), is_loaded(context, request.model.as_deref()));
    let (model, pipeline) = context.embedding(request.model.as_deref()).await?;
    let load_time = if was_loaded {
        Duration::ZERO
    } else {
        looked_up.elapsed()
    };
    if let Some(keep_alive) = &request.keep_alive {
        context.app.catalog.keep(&model.name, keep_alive.duration());
    }
    let (field, content, limit) = request.field;
    let is_empty = match &content {
        Content::Text(text) => text.is_empty(),
        Content::List(texts) => texts.count == 0,
        other => other.is_null(),
    };
    let embedded = |embeddings| Embedded {
        model,
        load_time,
        embeddings,
    };
    if is_empty {
        return Ok(embedded(Embeddings {
            vectors: Vec::new(),
            usage: Default::default(),
        }));
    }
    let texts = inputs::texts(field, content, &limit)?;
    if let Some(limit) = request.options.and_then(|options| options.num_ctx)
        && limit < pipeline.settings().max_tokens
    {
        let parameters = TokenParameters {
            prompt_name: request.parameters.prompt_name.clone(),
            ..TokenParameters::default()
        };
        let reader = model.token_reader(parameters)?;
        let reader = reader.with_max_tokens(context.app.limits.values);
        check_tokens(&reader.run(texts.clone(), context.deadline).await?, limit)?;
    }
    let inputs: Vec<_> = texts.into_iter().map(kivu::pipeline::Input::Text).collect();
    let options = request.parameters.options(pipeline, &context.scope())?;
    let dimensions = pipeline.dimensions(options.dimensions)?;
    context.check_response(inputs.len() * Form::FLOATS.min_bytes(dimensions))?;
    let found = pipeline.embed(inputs, &options, context.deadline).await?;
    Ok(embedded(found))
}

/// Refuses texts that Ollama would truncate at a token limit below the model's.
fn check_tokens(texts: &[Vec<TextToken>], limit: usize) -> Result<()> {
    let is_long = |tokens: &Vec<_>| tokens.len() > limit;
    texts.iter().position(is_long).map_or(Ok(()), |place| {
        let error = Error::invalid(format!(
            "expected at most {limit} tokens, the request's `options.num_ctx`, but found {}",
            texts[place].len()
        ))
        .with_hint("leave it out");
        Err(at_text(error, place, texts.len()))
    })
}

fn is_loaded(context: &Context, name: Option<&str>) -> bool {
    name.is_none()
        || context
            .models
            .find(name)
            .is_ok_and(|model| model.state() == ModelState::Loaded)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
