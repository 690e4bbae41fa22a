//! From errors to HTTP: the one place that knows which status an error has.

use std::sync::Arc;

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::error::Error;

/// An error on its way to a client; each dialect gives it its own shape.
#[derive(Clone, Debug)]
pub(crate) struct Rejection {
    pub(crate) status: StatusCode,
    /// What the client is told.
    pub(crate) message: String,
    error: Option<Arc<Error>>,
}

/// Seconds after which a server that is overloaded, or waits for another, may be asked again.
const RETRY_AFTER_SECONDS: &str = "1";

impl Rejection {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error: None }
    }

    /// One whose cause is for the log only.
    pub(super) fn because(
        status: StatusCode,
        message: impl Into<String>,
        error: impl Into<Arc<Error>>,
    ) -> Self {
        Self { status, message: message.into(), error: Some(error.into()) }
    }

    /// The answer with the shape that a dialect gives it; the log finds the rejection in the answer's extensions.
    pub(crate) fn respond<B: Serialize>(self, body: &B) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }

    /// Whether the fault is this server's, and so belongs into its log.
    pub(crate) fn is_ours(&self) -> bool {
        self.status.is_server_error()
    }

    /// Whether a model was asked for that is not there, rather than a route.
    pub(crate) fn is_unknown_model(&self) -> bool {
        matches!(self.error.as_deref(), Some(Error::UnknownModel { .. }))
    }

    /// The whole chain of causes, for the log.
    pub(crate) fn chain(&self) -> String {
        self.error.as_ref().map_or_else(|| self.message.clone(), |error| error.chain())
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Malformed { .. } => StatusCode::BAD_REQUEST,
            Error::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::UnknownModel { .. } => StatusCode::NOT_FOUND,
            Error::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
            Error::Inference { .. } => StatusCode::BAD_GATEWAY,
            Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Error::Model { .. } | Error::Config { .. } | Error::Io { .. } => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self { status, message: error.to_string(), error: Some(Arc::new(error)) }
    }
}
