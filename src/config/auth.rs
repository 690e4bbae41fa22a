//! Authentication.

use std::{fmt, path::PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};

/// How callers authenticate, and where the keys are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// By default [`AuthMode::Keys`] if there are keys.
    pub mode: Option<AuthMode>,
    /// Hashes of keys, as printed by `kivu key`.
    pub keys: Vec<String>,
    /// A file of such hashes, one per line.
    pub keys_file: Option<PathBuf>,
    /// The name or ARN of a secret in AWS Secrets Manager with such hashes, one per line.
    pub keys_secret: Option<String>,
    /// The interval at which the file or the secret is read again, in seconds.
    pub refresh_s: u64,
    /// The name or ARN of a table in Amazon DynamoDB that counts the requests of keys with a limit per day; without it,
    /// each process counts its own.
    pub quota_table: Option<String>,
    /// The secret that a trusted proxy sends in `x-kivu-front`; requests without it are rejected.
    #[serde(alias = "front")]
    pub proxy_secret: Option<Secret>,
    /// The name or ARN of a secret in AWS Secrets Manager with this secret.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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

impl<'de> Deserialize<'de> for AuthMode {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        super::choice::one_of(value)
    }
}

/// A text that `Debug` hides.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("…")
    }
}
