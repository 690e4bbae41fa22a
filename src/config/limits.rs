//! Limits of requests.

use std::time::Duration;

use serde::Deserialize;

/// The limits of a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The maximum number of texts in a request.
    pub texts: usize,
    /// The maximum number of tokens in a text, if below the model's own limit.
    pub tokens: Option<usize>,
    /// Whether texts of too many tokens are truncated if the request does not specify it.
    pub truncate: bool,
    /// The maximum size of a request's body. The default is Lambda's limit.
    pub body_bytes: usize,
    /// The maximum memory of the bodies of all requests, in bytes; more if the largest request needs it.
    pub buffer_bytes: usize,
    /// The maximum number of values in a response: texts or tokens, times dimensions. A value takes about twelve
    /// bytes.
    pub values: usize,
    /// The maximum number of concurrent requests.
    pub requests: usize,
    /// The deadline of a request, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            texts: 1024,
            tokens: None,
            truncate: true,
            body_bytes: 6 * 1024 * 1024,
            buffer_bytes: 256 * 1024 * 1024,
            values: 1_500_000,
            requests: 512,
            timeout_ms: 60_000,
        }
    }
}

impl Limits {
    /// [`Self::timeout_ms`] as a duration.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
