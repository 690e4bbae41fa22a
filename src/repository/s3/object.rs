//! Objects, uploads and write conditions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Smallest upload part that S3 accepts, except for the last.
pub const MIN_PART_BYTES: usize = 5 * 1024 * 1024;

/// Object properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// In bytes.
    pub size: u64,
    /// The ETag; when reading, an empty one matches any contents.
    pub etag: String,
    /// The version, in buckets with versioning.
    pub version: Option<String>,
    /// User-defined metadata, without the prefix `x-amz-meta-`.
    pub metadata: BTreeMap<String, String>,
}

/// Write condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// The object is written in any case.
    #[default]
    None,
    /// The object does not exist (`If-None-Match: *`).
    IsAbsent,
    /// The object has this ETag (`If-Match`).
    IsStill(String),
}

/// A multipart upload that is not complete yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multipart {
    /// Destination bucket.
    pub bucket: String,
    /// Destination key.
    pub key: String,
    /// The id that the server gave the upload.
    pub id: String,
}

/// An uploaded part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// From 1. The object joins its parts in number order, which may have gaps.
    pub number: i32,
    /// The part's ETag.
    pub etag: String,
    /// In bytes.
    pub size: u64,
}
