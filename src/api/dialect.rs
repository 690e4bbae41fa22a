//! The dialects, each of which tells errors in a shape of its own.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use super::{kserve, openai, rejection::Rejection, rerank, tei};

/// What a client of a path expects an error to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Tei,
    /// The hub says why a key is refused; TEI's way, which is also the hub's else, would be no word at all.
    Hub,
    OpenAi,
    Jina,
    Cohere,
    KServe,
}

impl Dialect {
    /// The dialect that a path belongs to.
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

    /// A rejection as a response.
    pub(super) fn respond(self, rejection: Rejection) -> Response {
        match self.telling(rejection.status) {
            Self::Jina => rerank::JinaFailure::from(rejection).into_response(),
            Self::Cohere => rerank::CohereFailure::from(rejection).into_response(),
            Self::KServe => kserve::Failure::from(rejection).into_response(),
            Self::OpenAi => openai::Failure::from(rejection).into_response(),
            Self::Tei | Self::Hub => tei::Failure::from(rejection).into_response(),
        }
    }

    /// The body of a rejection, and the name of its shape; none where there is no body.
    pub(super) fn body(self, rejection: &Rejection) -> Option<(&'static str, Value)> {
        let message = rejection.message.clone();
        match self.telling(rejection.status) {
            Self::Jina => written("JinaFailure", &rerank::JinaFailureBody { detail: message }),
            Self::Cohere => written("CohereFailure", &rerank::CohereFailureBody { message }),
            Self::KServe => written("KServeFailure", &kserve::FailureBody { error: message }),
            Self::OpenAi => written("OpenAiFailure", &openai::FailureBody::new(rejection)),
            Self::Tei | Self::Hub if rejection.status == StatusCode::UNAUTHORIZED => None,
            Self::Tei | Self::Hub => written("TeiFailure", &tei::FailureBody::new(rejection)),
        }
    }

    /// The status that a dialect tells: KServe's has none for a value that can be read and not be used.
    pub(super) fn status(self, status: StatusCode) -> StatusCode {
        match (self, status) {
            (Self::KServe, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
            (_, status) => status,
        }
    }

    /// Whose shape a status is told in.
    fn telling(self, status: StatusCode) -> Self {
        match self {
            Self::Hub if status == StatusCode::UNAUTHORIZED => Self::KServe,
            dialect => dialect,
        }
    }
}

fn written<B: Serialize>(shape: &'static str, body: &B) -> Option<(&'static str, Value)> {
    Some((shape, serde_json::to_value(body).ok()?))
}
