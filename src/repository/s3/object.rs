//! Objects, uploads and conditions of writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The smallest part of an upload that S3 accepts, except for the last.
pub const MIN_PART_BYTES: usize = 5 * 1024 * 1024;

/// The properties of an object.
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

/// A condition of a write.
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
    /// The bucket of the future object.
    pub bucket: String,
    /// The key of the future object.
    pub key: String,
    /// The id that the server gave the upload.
    pub id: String,
}

/// An uploaded part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// From 1. The object consists of the parts in the order of their numbers, which may have gaps.
    pub number: i32,
    /// The ETag of the part.
    pub etag: String,
    /// In bytes.
    pub size: u64,
}
