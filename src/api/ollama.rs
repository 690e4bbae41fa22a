//! Ollama's `/api/embed`, `/api/embeddings`, `/api/tags`, `/api/show` and `/api/version`.

use std::sync::Arc;

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    app::App,
    inputs::{self, RequestTexts},
    rejection::Reply,
    request::{Call, Context},
    response::with_backend,
};
use crate::{
    error::Result,
    json::Content,
    json_schemas::{Object, OptionalText, OptionalTexts},
    model::{Entry, Model},
    pipeline::embedding::Embeddings,
    task::embedding::EmbeddingParameters,
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `input`")]
pub(super) struct OllamaEmbedRequest {
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
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `prompt`")]
pub(super) struct OllamaEmbeddingsRequest {
    /// Model name; the default is the first embedding model.
    model: Option<String>,
    /// A text. Nothing or an empty text gives no vector.
    #[serde(default)]
    #[schemars(with = "Option<OptionalText>")]
    prompt: Content,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `model`")]
pub(super) struct OllamaShowRequest {
    /// Model name; the default is the first model.
    model: Option<String>,
    /// The older name for `model`.
    name: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedResponse")]
pub(super) struct EmbedResponse<'a> {
    model: &'a str,
    embeddings: Vec<Vec<f32>>,
    /// In nanoseconds.
    total_duration: u64,
    /// In nanoseconds; 0, since models are loaded before the first request.
    load_duration: u64,
    /// Number of tokens.
    prompt_eval_count: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddingsResponse")]
pub(super) struct EmbeddingsResponse {
    embedding: Vec<f32>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaTags")]
pub(super) struct Tags {
    models: Vec<ListedModel>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
struct ListedModel {
    details: Details,
    digest: String,
    model: String,
    name: String,
    /// Total file size in bytes.
    size: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaDetails")]
struct Details {
    families: [String; 1],
    family: String,
    format: &'static str,
    parameter_size: &'static str,
    parent_model: &'static str,
    quantization_level: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaShowResponse")]
pub(super) struct ShowResponse {
    capabilities: Vec<&'static str>,
    details: Details,
    #[schemars(with = "Object")]
    model_info: Value,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaVersion")]
pub(super) struct Version {
    version: &'static str,
}

/// Embed texts, as Ollama does
pub(super) async fn embed(Call(context, body): Call<OllamaEmbedRequest>) -> Reply {
    let app = &context.app;
    let parameters = EmbeddingParameters {
        truncate: body.truncate,
        normalize: Some(true),
        dimensions: body.dimensions,
        prompt_name: app.named_prompt(body.model.as_deref()),
        ..EmbeddingParameters::default()
    };
    let (model, found) = embed_with(
        &context,
        body.model.as_deref(),
        ("input", body.input, context.texts.clone()),
        &parameters,
    )
    .await?;
    let answer = EmbedResponse {
        model: &model.name,
        embeddings: found.vectors,
        total_duration: u64::try_from(context.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count: found.usage.tokens,
    };
    Ok(with_backend(&answer, found.usage.location))
}

/// Embed a text, as earlier versions of Ollama do; the model's own settings say whether vectors have length 1
pub(super) async fn embeddings(Call(context, body): Call<OllamaEmbeddingsRequest>) -> Reply {
    let prompt_name = context.app.named_prompt(body.model.as_deref());
    let parameters = EmbeddingParameters { prompt_name, ..EmbeddingParameters::default() };
    let (_, mut found) = embed_with(
        &context,
        body.model.as_deref(),
        ("prompt", body.prompt, context.texts.at_most(1)),
        &parameters,
    )
    .await?;
    let answer = EmbeddingsResponse { embedding: found.vectors.pop().unwrap_or_default() };
    Ok(with_backend(&answer, found.usage.location))
}

async fn embed_with<'a>(
    context: &'a Context,
    name: Option<&str>,
    (field, texts, limit): (&str, Content, RequestTexts),
    parameters: &EmbeddingParameters,
) -> Result<(&'a Model, Embeddings<Vec<f32>>)> {
    let (model, pipeline) = context.embedding(name).await?;
    let is_empty = match &texts {
        Content::Text(text) => text.is_empty(),
        Content::List(texts) => texts.count == 0,
        other => other.is_null(),
    };
    if is_empty {
        return Ok((model, Embeddings { vectors: Vec::new(), usage: Default::default() }));
    }
    let texts = inputs::texts(field, texts, &limit)?;
    let inputs = texts.into_iter().map(crate::pipeline::Input::Text).collect();
    Ok((model, pipeline.embed(inputs, &parameters.options(&context.scope()), context.deadline).await?))
}

/// List the models, as Ollama does
pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Tags> {
    let model = |model: &Arc<Entry>| ListedModel {
        details: details(model),
        digest: model.digest.clone(),
        model: model.name.clone(),
        name: model.name.clone(),
        size: model.size(),
    };
    Json(Tags { models: app.models().iter().map(model).collect() })
}

/// Describe a model, as Ollama does
pub(super) async fn show(Call(context, body): Call<OllamaShowRequest>) -> Reply<Json<ShowResponse>> {
    let model = context.entry(body.model.as_deref().or(body.name.as_deref())).await?;
    let family = family(&model);
    let mut info = json!({ "general.architecture": family });
    info[format!("{family}.context_length")] = model.max_tokens.into();
    let mut capabilities = Vec::new();
    if let Some(dense) = model.settings().and_then(|own| own.embedding()?.dense.as_ref()) {
        info[format!("{family}.embedding_length")] = dense.dimensions.into();
        capabilities.push("embedding");
    }
    Ok(Json(ShowResponse { capabilities, details: details(&model), model_info: info }))
}

fn details(model: &Entry) -> Details {
    let family = family(model);
    Details {
        families: [family.clone()],
        family,
        format: "onnx",
        parameter_size: "",
        parent_model: "",
        quantization_level: model.manifest.weights.precision.to_string(),
    }
}

/// The architecture without its head's suffix, in lower case: `bert` for `BertModel`.
fn family(model: &Entry) -> String {
    let name = model.manifest.source.architecture.to_lowercase();
    let end = ["model", "for"].iter().filter_map(|suffix| name.find(suffix)).min();
    end.filter(|end| *end > 0).map_or_else(|| name.clone(), |end| name[..end].to_owned())
}

/// Return the version
pub(super) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
