//! The dialects of the API, and the error bodies of each.

use axum::{
    Json,
    body::Body,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::rejection::Rejection;

/// The API whose clients call a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Tei,
    /// The model hub, Ollama and LibreTranslate: TEI's errors, but with a body for 401.
    Hub,
    OpenAi,
    Jina,
    Cohere,
    DeepL,
    KServe,
}

impl Dialect {
    /// The dialect of a path.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/v1/rerank" => Self::Jina,
            "/v2/rerank" | "/v2/embed" | "/v1/embed" => Self::Cohere,
            "/v2/translate" | "/v2/languages" => Self::DeepL,
            "/languages" => Self::Hub,
            "/embeddings" => Self::OpenAi,
            _ if path.starts_with("/api/") => Self::Hub,
            _ if path.starts_with("/models/") => Self::Hub,
            _ if path == "/v2" || path.starts_with("/v2/") => Self::KServe,
            _ if path.starts_with("/v1/") => Self::OpenAi,
            _ => Self::Tei,
        }
    }

    /// The status that a dialect uses: KServe has no 422.
    pub(super) fn status(self, status: StatusCode) -> StatusCode {
        match (self, status) {
            (Self::KServe, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
            (_, status) => status,
        }
    }

    /// The error body of a rejection, after the name of its schema; TEI sends none with 401.
    pub(super) fn body(self, rejection: &Rejection) -> Option<(&'static str, Value)> {
        let Rejection { status, message, .. } = rejection;
        Some(match self {
            Self::Tei if *status == StatusCode::UNAUTHORIZED => return None,
            Self::Hub if *status == StatusCode::UNAUTHORIZED => ("KServeError", json!({ "error": message })),
            Self::Tei | Self::Hub => {
                let error_type = match *status {
                    StatusCode::TOO_MANY_REQUESTS => "Overloaded",
                    status if status.is_server_error() => "Backend",
                    _ => "Validation",
                };
                ("TeiError", json!({ "error": message, "error_type": error_type }))
            }
            Self::OpenAi => {
                let (kind, code) = match *status {
                    StatusCode::NOT_FOUND if rejection.is_unknown_model() => {
                        ("invalid_request_error", Some("model_not_found"))
                    }
                    StatusCode::UNAUTHORIZED => ("invalid_request_error", Some("invalid_api_key")),
                    StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
                    status if status.is_server_error() => ("server_error", None),
                    _ => ("invalid_request_error", None),
                };
                // The message names the field.
                let error = json!({ "message": message, "type": kind, "param": null, "code": code });
                ("OpenAiError", json!({ "error": error }))
            }
            Self::Jina => ("JinaError", json!({ "detail": message })),
            Self::Cohere | Self::DeepL => ("CohereError", json!({ "message": message })),
            Self::KServe => ("KServeError", json!({ "error": message })),
        })
    }

    /// Completes the response of a rejected request: status, headers and body.
    pub(super) fn complete(self, rejection: &Rejection, response: &mut Response) {
        *response.status_mut() = self.status(rejection.status);
        let headers = response.headers_mut();
        match rejection.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from(rejection.retry_after_s));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        headers.remove(CONTENT_LENGTH);
        *response.body_mut() = match self.body(rejection) {
            Some((_, body)) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Json(body).into_response().into_body()
            }
            None => Body::empty(),
        };
    }
}
