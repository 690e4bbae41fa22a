//! The dialect of OpenAI: `/v1/embeddings` and `/v1/models`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{App, inputs, name_backend, rejection::Rejection, request};
use crate::{
    error::Error,
    model::Model,
    pipeline::embedding::EmbeddingOptions,
    tokenizer::{Side, Truncation},
};

/// An error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug)]
pub(super) struct Failure(Rejection);

impl<E: Into<Rejection>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (kind, code) = match self.0.status {
            StatusCode::NOT_FOUND if self.0.is_unknown_model() => {
                ("invalid_request_error", Some("model_not_found"))
            }
            StatusCode::UNAUTHORIZED => ("invalid_request_error", Some("invalid_api_key")),
            StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
            status if status.is_server_error() => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        let error = json!({ "message": self.0.message, "type": kind, "param": Value::Null, "code": code });
        self.0.respond(&json!({ "error": error }))
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `input`")]
struct EmbeddingsRequest {
    input: Value,
    model: Option<String>,
    dimensions: Option<usize>,
    encoding_format: Option<Value>,
}

#[derive(Clone, Copy)]
enum EncodingFormat {
    Float,
    Base64,
}

impl EncodingFormat {
    fn read(value: Option<&Value>) -> Result<Self, Error> {
        match value.map(|value| (value, value.as_str())) {
            None | Some((Value::Null, _) | (_, Some("float"))) => Ok(Self::Float),
            Some((_, Some("base64"))) => Ok(Self::Base64),
            Some(_) => Err(Error::invalid(
                "expected `encoding_format` to be `float` or `base64`, but found something else",
            )),
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    /// The same values as little-endian bytes.
    Base64(String),
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
struct EmbeddingsAnswer<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: UsageAnswer,
    /// The places of the inputs that were shortened; not there when none was.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    truncated: &'a [usize],
}

#[derive(Serialize)]
struct UsageAnswer {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(super) async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Result<Response, Failure> {
    let (body, deadline): (EmbeddingsRequest, _) = request::read(&app, request).await?;
    let format = EncodingFormat::read(body.encoding_format.as_ref())?;
    let inputs = inputs::read("input", body.input, app.limits.texts)?;
    let (model, pipeline) = app.embedding(body.model.as_deref())?;
    let truncation = if app.limits.truncate { Truncation::At(Side::Right) } else { Truncation::Off };
    let options = EmbeddingOptions {
        truncation,
        // OpenAI's vectors have length 1.
        normalize: Some(true),
        prompt_name: None,
        dimensions: body.dimensions,
        most_values: app.limits.values,
    };
    let embeddings = pipeline.embed(inputs, &options, deadline).await?;
    let data = embeddings.vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: match format {
            EncodingFormat::Float => Vector::Float(vector),
            EncodingFormat::Base64 => Vector::Base64(base64(&vector)),
        },
    });
    let tokens = embeddings.usage.tokens;
    let answer = EmbeddingsAnswer {
        object: "list",
        data: data.collect(),
        model: &model.name,
        usage: UsageAnswer { prompt_tokens: tokens, total_tokens: tokens },
        truncated: &embeddings.usage.truncated,
    };
    let mut response = Json(answer).into_response();
    name_backend(&mut response, embeddings.usage.place);
    Ok(response)
}

fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> = app.models.iter().map(describe).collect();
    Json(json!({ "object": "list", "data": data }))
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    match app.models.iter().find(|model| model.name == name) {
        Some(model) => Ok(Json(describe(model))),
        None => {
            let known = app.models.iter().map(|model| model.name.clone()).collect();
            Err(Error::UnknownModel { name, known }.into())
        }
    }
}

fn describe(model: &Model) -> Value {
    json!({ "id": model.name, "object": "model", "created": 0, "owned_by": "kivu" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_holds_little_endian_floats() {
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
    }
}
