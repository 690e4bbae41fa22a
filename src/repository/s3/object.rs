//! Objects, uploads and write conditions.

use std::{collections::BTreeMap, fmt, io};

use serde::{Deserialize, Serialize};

use super::url::Url;
use kivu_base::Error;

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

impl Object {
    /// Whether this is the version with this id or, without two ids to compare, has this ETag, which may lack its
    /// quotes.
    pub fn is_version(&self, version: Option<&str>, etag: Option<&str>) -> bool {
        if let (Some(found), Some(expected)) = (self.version.as_deref(), version) {
            return found == expected;
        }
        let unquoted = |etag: &str| etag.trim_matches('"').to_owned();
        etag.is_none_or(|etag| etag.is_empty() || unquoted(etag) == unquoted(&self.etag))
    }
}

/// Why an object is not the current one at its key any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is another object, or another version.
    Replaced,
    /// There is none.
    Deleted,
}

impl Change {
    /// The error for a job with the object at `url`.
    pub fn error(self, url: &Url) -> Error {
        Error::Io {
            action: format!("expected `{url}` to stay as it was while it is read").into(),
            source: self.into(),
        }
    }

    /// The change that caused an error.
    pub fn of(error: &Error) -> Option<Self> {
        let Error::Io { source, .. } = error else {
            return None;
        };
        source.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replaced => "the object was replaced",
            Self::Deleted => "the object was deleted",
        })
    }
}

impl std::error::Error for Change {}

impl From<Change> for io::Error {
    fn from(change: Change) -> Self {
        Self::new(io::ErrorKind::StaleNetworkFileHandle, change)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_id_and_others_by_etag() {
        let object = |version: Option<&str>| Object {
            etag: "\"e1\"".into(),
            version: version.map(str::to_owned),
            ..Object::default()
        };
        let versioned = object(Some("v2"));
        assert!(versioned.is_version(Some("v2"), Some("e1")));
        // The same contents were uploaded again.
        assert!(!versioned.is_version(Some("v1"), Some("e1")));
        assert!(
            versioned.is_version(None, Some("e1")) && versioned.is_version(None, Some("\"e1\""))
        );
        assert!(versioned.is_version(None, None) && versioned.is_version(None, Some("")));
        assert!(
            !versioned.is_version(None, Some("e2"))
                && !object(None).is_version(Some("v1"), Some("e2"))
        );
    }

    #[test]
    fn a_change_is_found_in_its_error() {
        let url: Url = "s3://files/in/a.csv".parse().unwrap();
        let error = Change::Deleted.error(&url);
        insta::assert_snapshot!(error.chain(), @"expected `s3://files/in/a.csv` to stay as it was while it is read: the object was deleted");
        assert_eq!(Change::of(&error), Some(Change::Deleted));
        assert_eq!(
            Change::of(&Error::io("cannot read")(io::Error::other("a fault"))),
            None
        );
    }
}
