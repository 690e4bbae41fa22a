//! Objects, and what is done to them, as data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An object as it was when somebody asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its size in bytes.
    pub size: u64,
    /// The server's mark of its contents; empty where any will do.
    pub etag: String,
    /// Its version, in buckets that keep versions.
    pub version: Option<String>,
    /// What whoever wrote it said of it.
    pub metadata: BTreeMap<String, String>,
}

/// What must be true of an object for it to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// It is not there.
    IsAbsent,
    /// It is there with that mark.
    IsStill(String),
}

impl Condition {
    /// The values of `If-None-Match` and `If-Match`.
    #[cfg(feature = "s3")]
    pub(super) fn headers(&self) -> [Option<String>; 2] {
        match self {
            Self::None => [None, None],
            Self::IsAbsent => [Some("*".into()), None],
            Self::IsStill(etag) => [None, Some(etag.clone())],
        }
    }
}

/// An upload in parts, under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multipart {
    /// The bucket of the object to be.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// The server's name for the upload.
    pub id: String,
}

/// A part that the server has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its number; the object is made of parts in the order of their numbers, which may have gaps.
    pub number: i32,
    /// The server's mark of its contents.
    pub etag: String,
    /// Its size in bytes.
    pub size: u64,
}
