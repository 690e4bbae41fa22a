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
use serde::Serialize;
use utoipa::ToSchema;

use super::rejection::Rejection;

/// Seconds before a client may retry a request to a server that is overloaded or unavailable.
const RETRY_AFTER_SECONDS: &str = "1";

/// The API whose clients call a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Tei,
    /// The model hub: TEI's errors, but with a body for 401.
    Hub,
    OpenAi,
    Jina,
    Cohere,
    KServe,
}

impl Dialect {
    /// The dialect of a path.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/v1/rerank" => Self::Jina,
            "/v2/rerank" => Self::Cohere,
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

    /// The error body of a rejection; TEI sends none with 401.
    pub(super) fn body(self, rejection: &Rejection) -> Option<ErrorBody> {
        let message = rejection.message.clone();
        Some(match self {
            Self::Tei if rejection.status == StatusCode::UNAUTHORIZED => return None,
            Self::Hub if rejection.status == StatusCode::UNAUTHORIZED => {
                ErrorBody::KServe(KServeError { error: message })
            }
            Self::Tei | Self::Hub => ErrorBody::Tei(TeiError::new(rejection)),
            Self::OpenAi => ErrorBody::OpenAi(OpenAiError::new(rejection)),
            Self::Jina => ErrorBody::Jina(JinaError { detail: message }),
            Self::Cohere => ErrorBody::Cohere(CohereError { message }),
            Self::KServe => ErrorBody::KServe(KServeError { error: message }),
        })
    }

    /// Completes the response of a rejected request: status, headers and body.
    pub(super) fn complete(self, rejection: &Rejection, response: &mut Response) {
        *response.status_mut() = self.status(rejection.status);
        let headers = response.headers_mut();
        match rejection.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        headers.remove(CONTENT_LENGTH);
        *response.body_mut() = match self.body(rejection) {
            Some(body) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Json(body).into_response().into_body()
            }
            None => Body::empty(),
        };
    }
}

/// The error body of a dialect.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ErrorBody {
    Tei(TeiError),
    OpenAi(OpenAiError),
    KServe(KServeError),
    Cohere(CohereError),
    Jina(JinaError),
}

/// An error of TEI and the model hub.
#[derive(Serialize, ToSchema)]
pub(super) struct TeiError {
    error: String,
    /// `Validation`, `Overloaded` or `Backend`.
    error_type: &'static str,
}

impl TeiError {
    fn new(rejection: &Rejection) -> Self {
        let error_type = match rejection.status {
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            status if status.is_server_error() => "Backend",
            _ => "Validation",
        };
        Self { error: rejection.message.clone(), error_type }
    }
}

/// An error of OpenAI.
#[derive(Serialize, ToSchema)]
pub(super) struct OpenAiError {
    error: OpenAiErrorDetails,
}

#[derive(Serialize, ToSchema)]
struct OpenAiErrorDetails {
    message: String,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Always `null`: the message names the field.
    param: Option<String>,
    /// `model_not_found`, `invalid_api_key`, `rate_limit_exceeded` or `null`.
    code: Option<&'static str>,
}

impl OpenAiError {
    fn new(rejection: &Rejection) -> Self {
        let (kind, code) = match rejection.status {
            StatusCode::NOT_FOUND if rejection.is_unknown_model() => {
                ("invalid_request_error", Some("model_not_found"))
            }
            StatusCode::UNAUTHORIZED => ("invalid_request_error", Some("invalid_api_key")),
            StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
            status if status.is_server_error() => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        let message = rejection.message.clone();
        Self { error: OpenAiErrorDetails { message, kind, param: None, code } }
    }
}

/// An error of KServe v2.
#[derive(Serialize, ToSchema)]
pub(super) struct KServeError {
    error: String,
}

/// An error of Cohere.
#[derive(Serialize, ToSchema)]
pub(super) struct CohereError {
    message: String,
}

/// An error of Jina.
#[derive(Serialize, ToSchema)]
pub(super) struct JinaError {
    detail: String,
}
