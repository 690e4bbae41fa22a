//! Rejected requests, and the HTTP status for every error.

use std::sync::Arc;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

use kivu::Error;

/// When clients should retry by default, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// Handler result.
pub type ApiResult<T = Response> = Result<T, Rejection>;

/// A status and a message for the client, with the cause for the log.
///
/// As a response it has no body yet: the router writes it in the dialect of the request's path.
#[derive(Clone, Debug)]
pub struct Rejection {
    pub status: StatusCode,
    pub message: String,
    /// When to retry, in seconds; sent with the statuses 429 and 503.
    pub retry_after_s: u64,
    error: Option<Arc<Error>>,
}

impl Rejection {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after_s: RETRY_AFTER_S,
            error: None,
        }
    }

    /// A rejection whose message hides its cause from the client.
    pub fn because(
        status: StatusCode,
        message: impl Into<String>,
        error: impl Into<Arc<Error>>,
    ) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after_s: RETRY_AFTER_S,
            error: Some(error.into()),
        }
    }

    pub fn is_unknown_model(&self) -> bool {
        matches!(
            self.error.as_deref(),
            Some(Error::UnknownModel { .. } | Error::NoModel)
        )
    }

    /// The path of the request's field that the message is about.
    pub fn field(&self) -> Option<&str> {
        self.error
            .as_ref()
            .filter(|_| self.status.is_client_error())?
            .field()
    }

    /// The whole error chain, for the log.
    pub fn chain(&self) -> String {
        self.error
            .as_ref()
            .map_or_else(|| self.message.clone(), |error| error.chain())
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Malformed { .. } => StatusCode::BAD_REQUEST,
            Error::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::UnknownModel { .. } | Error::NoModel => StatusCode::NOT_FOUND,
            Error::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
            Error::Inference { .. } => StatusCode::BAD_GATEWAY,
            Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Error::Model { .. } | Error::Config { .. } | Error::Io { .. } => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let message = match status {
            // The message may have a path.
            StatusCode::INTERNAL_SERVER_ERROR => {
                "internal error; the server's log has the cause".to_owned()
            }
            _ => error.to_string(),
        };
        Self::because(status, message, error)
    }
}
