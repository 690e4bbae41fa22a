//! Uploaded files and batches of requests.

use serde::Deserialize;

/// Files that clients upload, and batches of requests in them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilesConfig {
    /// Folder or `s3://BUCKET/PREFIX`; without it, there are no files.
    pub folder: Option<String>,
    /// Maximum file size in bytes.
    pub bytes: u64,
    /// Maximum files per key, output and error files included.
    pub count: usize,
    /// Maximum requests per batch, and also maximum inputs in all of them.
    pub requests: usize,
    /// Maximum unfinished batches per key.
    pub batches: usize,
}

impl Default for FilesConfig {
    /// The limits of OpenAI, except for the number of files.
    fn default() -> Self {
        Self {
            folder: None,
            bytes: 200 * 1024 * 1024,
            count: 1000,
            requests: 50_000,
            batches: 50,
        }
    }
}
