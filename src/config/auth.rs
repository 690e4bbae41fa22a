//! Who may ask, as it is configured.

use std::{fmt, path::PathBuf};

use serde::Deserialize;

/// Who may ask, and where the keys are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// How callers prove who they are; by keys if there are any, where nothing is said.
    pub mode: Option<AuthMode>,
    /// Hashes of keys, as `kivu key` prints them.
    pub keys: Vec<String>,
    /// A file with such hashes, one a line.
    pub keys_file: Option<PathBuf>,
    /// The name or ARN of a secret in AWS Secrets Manager with such hashes, one a line.
    pub keys_secret: Option<String>,
    /// Seconds after which the file or the secret is read again.
    pub refresh_s: u64,
    /// What a proxy in front shows in `x-kivu-front`; requests without it did not come through it.
    pub front: Option<Shown>,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self { mode: None, keys: Vec::new(), keys_file: None, keys_secret: None, refresh_s: 300, front: None }
    }
}

/// How callers prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// By a key.
    Keys,
    /// By an AWS signature, which API Gateway has checked.
    Iam,
    /// By a token, which API Gateway has checked.
    Jwt,
    /// Not at all.
    None,
}

/// A text that is not for logs.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Shown(pub String);

impl fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("…")
    }
}
