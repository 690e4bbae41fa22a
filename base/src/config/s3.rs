use std::time::Duration;

use serde::Deserialize;

/// S3. AWS environment variables set its endpoint and credentials.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct S3Config {
    /// Milliseconds for which a failed request is retried.
    pub timeout_ms: u64,
}

impl Default for S3Config {
    fn default() -> Self {
        Self { timeout_ms: 60_000 }
    }
}

impl S3Config {
    /// [`Self::timeout_ms`] as a duration.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
