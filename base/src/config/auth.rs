//! Authentication.

use std::{fmt, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::choice::some_of;

/// How callers authenticate, and where the keys are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct AuthConfig {
    /// By default [`AuthMode::Keys`] if there are keys.
    #[serde(deserialize_with = "some_of")]
    pub mode: Option<AuthMode>,
    /// Key hashes, as printed by `kivu key`.
    pub keys: Vec<String>,
    /// File with such hashes, one per line.
    pub keys_file: Option<PathBuf>,
    /// Name or ARN of an AWS Secrets Manager secret with such hashes, one per line.
    pub keys_secret: Option<String>,
    /// The interval at which the file or the secret is read again, in seconds.
    pub refresh_s: u64,
    /// Name or ARN of an Amazon DynamoDB table that counts requests for keys with a limit per day; without it, each
    /// process counts its own.
    pub quota_table: Option<String>,
    /// The secret that a trusted proxy sends in `x-kivu-proxy-secret`; requests without it are rejected.
    pub proxy_secret: Option<Secret>,
    /// Name or ARN of the AWS Secrets Manager secret that contains it.
    pub proxy_secret_id: Option<String>,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            mode: None,
            keys: Vec::new(),
            keys_file: None,
            keys_secret: None,
            refresh_s: 300,
            quota_table: None,
            proxy_secret: None,
            proxy_secret_id: None,
        }
    }
}

/// How callers authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMode {
    /// An API key.
    Keys,
    /// An AWS signature, verified by API Gateway.
    Iam,
    /// A token, verified by API Gateway.
    Jwt,
    /// Every request is allowed.
    None,
}

/// A secret string that `Debug` does not print.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("…")
    }
}
