//! Request limits.

use std::time::Duration;

use serde::Deserialize;

/// Default for [`Limits::texts`]. A job's row takes as many labels as a request with one text does by default.
pub const MAX_TEXTS: usize = 1024;

/// Request limits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Limits {
    /// Maximum texts per request.
    pub texts: usize,
    /// Maximum tokens per text, if below the model's own limit.
    pub tokens: Option<usize>,
    /// Whether texts above the token limit are truncated if the request does not specify it.
    pub truncate: bool,
    /// Maximum body size in bytes. The default is Lambda's limit.
    pub body_bytes: usize,
    /// Maximum memory for all requests' bodies, in bytes; more if the largest request needs it.
    pub buffer_bytes: usize,
    /// Maximum values per response: texts or tokens, times dimensions. A value takes about twelve bytes.
    pub values: usize,
    /// Maximum concurrent requests.
    pub requests: usize,
    /// Request deadline in milliseconds.
    pub timeout_ms: u64,
    /// Time after which `kivu serve` closes a connection without a further request, in milliseconds. The default is above
    /// the 60 s of load balancers, which must close idle connections first.
    pub idle_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            texts: MAX_TEXTS,
            tokens: None,
            truncate: true,
            body_bytes: 6 * 1024 * 1024,
            buffer_bytes: 256 * 1024 * 1024,
            values: 1_500_000,
            requests: 512,
            timeout_ms: 60_000,
            idle_ms: 75_000,
        }
    }
}

impl Limits {
    /// [`Self::timeout_ms`] as a duration.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
