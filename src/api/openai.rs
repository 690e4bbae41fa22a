//! The dialect of OpenAI: `/v1/embeddings` and `/v1/models`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    App, inputs, name_backend,
    openapi::schemas,
    rejection::Rejection,
    request::{self, InPath},
};
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

/// An error of the routes that OpenAI has.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiFailure)]
pub(super) struct FailureBody {
    error: FailureDetails,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiFailureDetails)]
struct FailureDetails {
    message: String,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Nothing here: the message names the field.
    param: Option<String>,
    /// `model_not_found`, `invalid_api_key`, `rate_limit_exceeded` or nothing.
    code: Option<&'static str>,
}

impl FailureBody {
    pub(super) fn new(rejection: &Rejection) -> Self {
        let (kind, code) = match rejection.status {
            StatusCode::NOT_FOUND if rejection.is_unknown_model() => {
                ("invalid_request_error", Some("model_not_found"))
            }
            StatusCode::UNAUTHORIZED => ("invalid_request_error", Some("invalid_api_key")),
            StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
            status if status.is_server_error() => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        Self { error: FailureDetails { message: rejection.message.clone(), kind, param: None, code } }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = FailureBody::new(&self.0);
        self.0.respond(&body)
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `input`")]
struct EmbeddingsRequest {
    /// A text, texts, token ids, or lists of token ids.
    #[schema(schema_with = schemas::inputs)]
    input: Value,
    /// The model's name; the first that embeds if there is none.
    model: Option<String>,
    /// Keep the first so many values of each vector, scaled to length 1 again.
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
    /// `float`, or `base64`: the values as little-endian 32-bit floats.
    #[schema(schema_with = schemas::encoding_format)]
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

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    /// The same values as little-endian bytes.
    Base64(String),
}

#[derive(Serialize, ToSchema)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize, ToSchema)]
struct EmbeddingsAnswer<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: UsageAnswer,
    /// The places of the inputs that were shortened; not there when none was.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    truncated: &'a [usize],
}

#[derive(Serialize, ToSchema)]
#[schema(as = EmbeddingsUsage)]
struct UsageAnswer {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// One vector a text
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "OpenAI",
    request_body(
        content = EmbeddingsRequest,
        example = json!({ "model": "minilm", "input": "What is deep learning?", "dimensions": 4 })
    ),
    responses((
        status = 200, description = "Vectors of length 1, in the order of the texts.", body = EmbeddingsAnswer<'static>,
        example = json!({
            "object": "list",
            "data": [{ "object": "embedding", "index": 0, "embedding": [-0.865, -0.419, 0.275, 0.003] }],
            "model": "minilm",
            "usage": { "prompt_tokens": 7, "total_tokens": 7 }
        })
    ))
)]
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
        max_values: app.limits.values,
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
    name_backend(&mut response, embeddings.usage.location);
    Ok(response)
}

fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelList {
    data: Vec<ModelEntry>,
    object: &'static str,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelEntry {
    created: u64,
    id: String,
    object: &'static str,
    owned_by: &'static str,
}

/// The models that are served
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((
    status = 200, description = "All of them.", body = ModelList,
    example = json!({ "data": [{ "created": 0, "id": "minilm", "object": "model", "owned_by": "kivu" }], "object": "list" })
)))]
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList { data: app.models.iter().map(describe).collect(), object: "list" })
}

/// One of the models that are served
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "OpenAI",
    params(("model" = String, Path, description = "The name of a model that is served.")),
    responses((
        status = 200, description = "It is served.", body = ModelEntry,
        example = json!({ "created": 0, "id": "minilm", "object": "model", "owned_by": "kivu" })
    ))
)]
pub(super) async fn model(
    State(app): State<Arc<App>>,
    InPath(name): InPath<String>,
) -> Result<Json<ModelEntry>, Failure> {
    match app.models.iter().find(|model| model.name == name) {
        Some(model) => Ok(Json(describe(model))),
        None => {
            let known = app.models.iter().map(|model| model.name.clone()).collect();
            Err(Error::UnknownModel { name, known }.into())
        }
    }
}

fn describe(model: &Model) -> ModelEntry {
    ModelEntry { created: 0, id: model.name.clone(), object: "model", owned_by: "kivu" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_holds_little_endian_floats() {
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
    }
}
