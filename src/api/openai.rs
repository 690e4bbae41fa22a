//! OpenAI's `/v1/embeddings` and `/v1/models`.

use std::sync::Arc;

use axum::{Json, extract::State};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    app::App,
    inputs,
    rejection::Reply,
    request::{Call, InPath},
    response::with_backend,
};
use crate::{model::Model, pipeline::embedding::EmbeddingOptions};

#[derive(Deserialize)]
#[serde(expecting = "an object with `input`")]
pub(super) struct EmbeddingsRequest {
    /// A text, a list of texts, token ids, or a list of token id lists.
    input: Value,
    /// The name of the model; by default the first embedding model.
    model: Option<String>,
    /// The number of leading values to keep of each vector, which is normalized again.
    dimensions: Option<usize>,
    /// `float` by default.
    encoding_format: Option<EncodingFormat>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    Float,
    /// Little-endian 32-bit floats.
    Base64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    /// Little-endian 32-bit floats.
    Base64(String),
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
struct EmbeddingsResponse<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: Value,
    /// The positions of truncated inputs; absent if there are none.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    truncated: &'a [usize],
}

/// Embed texts
pub(super) async fn embeddings(Call(context, body): Call<EmbeddingsRequest>) -> Reply {
    let app = &context.app;
    let inputs = inputs::read("input", body.input, app.limits.texts)?;
    let (model, pipeline) = app.embedding(body.model.as_deref())?;
    let options = EmbeddingOptions {
        truncation: app.truncation(None, None),
        // OpenAI's vectors are normalized.
        normalize: Some(true),
        prompt_name: None,
        dimensions: body.dimensions,
        max_values: app.limits.values,
    };
    let embeddings = pipeline.embed(inputs, &options, context.deadline).await?;
    let data = embeddings.vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: match body.encoding_format {
            Some(EncodingFormat::Base64) => Vector::Base64(base64(&vector)),
            Some(EncodingFormat::Float) | None => Vector::Float(vector),
        },
    });
    let tokens = embeddings.usage.tokens;
    let answer = EmbeddingsResponse {
        object: "list",
        data: data.collect(),
        model: &model.name,
        usage: json!({ "prompt_tokens": tokens, "total_tokens": tokens }),
        truncated: &embeddings.usage.truncated,
    };
    Ok(with_backend(&answer, embeddings.usage.location))
}

fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

/// List the models
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.models().map(describe).collect();
    Json(json!({ "data": models, "object": "list" }))
}

/// Describe a model
pub(super) async fn model(State(app): State<Arc<App>>, InPath(name): InPath<String>) -> Reply<Json<Value>> {
    Ok(Json(describe(app.model(Some(&name))?)))
}

fn describe(model: &Model) -> Value {
    json!({ "created": 0, "id": model.name, "object": "model", "owned_by": "kivu" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_encodes_little_endian_floats() {
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
    }
}
