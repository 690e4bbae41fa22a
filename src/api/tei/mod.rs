//! The dialect of text-embeddings-inference (TEI).

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{
        StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

pub(super) mod classify;
pub(super) mod embedding;
pub(super) mod info;
pub(super) mod tokens;
pub(super) mod usage;

use super::{App, openapi::schemas, rejection::Rejection, request, translate};
use crate::{
    config::Limits,
    model::Pipeline,
    tokenizer::{Side, Truncation},
};

/// An error in TEI's shape: `{"error": …, "error_type": …}`.
#[derive(Debug)]
pub(super) struct Failure(Rejection);

impl<E: Into<Rejection>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// An error of the routes that TEI has.
#[derive(Serialize, ToSchema)]
#[schema(as = TeiFailure)]
pub(super) struct FailureBody {
    error: String,
    /// `Validation`, `Overloaded` or `Backend`.
    error_type: &'static str,
}

impl FailureBody {
    pub(super) fn new(rejection: &Rejection) -> Self {
        let error_type = match rejection.status {
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            status if status.is_server_error() => "Backend",
            _ => "Validation",
        };
        Self { error: rejection.message.clone(), error_type }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if self.0.status == StatusCode::UNAUTHORIZED {
            // TEI says no more than that.
            let mut response = self.0.respond(&());
            *response.body_mut() = Body::empty();
            response.headers_mut().remove(CONTENT_TYPE);
            response.headers_mut().remove(CONTENT_LENGTH);
            return response;
        }
        let body = FailureBody::new(&self.0);
        self.0.respond(&body)
    }
}

pub(super) type Answer = Result<Response, Failure>;

/// Whether the server is up and its models are loaded
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, description = "It is; no body.")))]
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// The first model's task
///
/// Body and answer are those of `/embed`, `/predict`, `/rerank` or a translation, by what the first model is for;
/// those of `/similarity` if `inputs` has a `source_sentence`.
#[utoipa::path(
    post, path = "/", tag = "TEI",
    request_body(content = DefaultRequest, example = json!({ "inputs": "hello", "dimensions": 2 })),
    responses((
        status = 200, description = "What the task's own route answers.", body = schemas::TaskAnswer,
        example = json!([[-0.804_534_4, 0.593_906_05]])
    ))
)]
pub(super) async fn default_task(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read::<Value>(&app, request).await?;
    let is_similarity = body.get("inputs").is_some_and(|inputs| inputs.get("source_sentence").is_some());
    if is_similarity {
        return embedding::answer_similarity(&app, request::from_value(body)?, deadline, started).await;
    }
    let name = body.get("model").and_then(Value::as_str).map(str::to_owned);
    match app.model(name.as_deref())?.pipeline {
        Pipeline::Classification(_) => {
            classify::answer_predict(&app, request::from_value(body)?, deadline, started).await
        }
        Pipeline::Ranking(_) => {
            classify::answer_rerank(&app, request::from_value(body)?, deadline, started).await
        }
        Pipeline::Translation(_) => {
            translate::answer_hub(&app, name.as_deref(), request::from_value(body)?, deadline, started).await
        }
        Pipeline::Embedding(_) | Pipeline::ZeroShot(_) => {
            embedding::answer_embed(&app, body, deadline, started).await
        }
    }
}

/// What `POST /` reads: the body of a task.
pub(super) struct DefaultRequest;

impl utoipa::PartialSchema for DefaultRequest {
    fn schema() -> schemas::Shape {
        schemas::any_of([
            schemas::of::<embedding::EmbedRequest>(),
            schemas::of::<embedding::SimilarityRequest>(),
            schemas::of::<classify::PredictRequest>(),
            schemas::of::<classify::RerankRequest>(),
            schemas::of::<translate::HubRequest>(),
        ])
    }
}

impl ToSchema for DefaultRequest {}

pub(super) fn truncation(limits: &Limits, asked: Option<bool>, side: Option<Side>) -> Truncation {
    if asked.unwrap_or(limits.truncate) { Truncation::At(side.unwrap_or_default()) } else { Truncation::Off }
}
