//! Objects in S3, and in whatever speaks like it: the only place that speaks to the AWS SDK.
//!
//! Everything here may be called from any thread, of an async runtime or not: requests run on threads of their
//! own, which start with the first `s3://` URL that is used. A program that uses none pays nothing.

mod object;
#[cfg_attr(not(feature = "s3"), path = "disabled.rs")]
mod store;

use std::{fmt, path::Path, str::FromStr};

pub use self::{
    object::{Condition, Multipart, Object, Part},
    store::{Pieces, Reader, Store, set_patience},
};
use crate::error::{Error, Result};

const SCHEME: &str = "s3://";
/// The smallest part that S3 takes, but for the last of an upload.
pub const SMALLEST_PART: usize = 5 * 1024 * 1024;
/// The longest key that S3 takes, in bytes.
pub const LONGEST_KEY: usize = 1024;

/// The place of an object, or of all objects whose keys begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// The bucket.
    pub bucket: String,
    /// The key, as it is: nothing in it is escaped.
    pub key: String,
}

impl Url {
    /// The URL that a path on the command line or in the configuration is, if it is one.
    pub fn of(path: &Path) -> Option<Result<Self>> {
        let text = path.to_str()?;
        text.starts_with(SCHEME).then(|| text.parse())
    }

    /// The URL of the same bucket with another key.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { bucket: self.bucket.clone(), key: key.into() }
    }

    /// The URL of `name` under this one.
    pub fn join(&self, name: &str) -> Self {
        let prefix = self.key.trim_end_matches('/');
        self.with_key(if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") })
    }

    /// What stands after the last slash of the key.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (bucket, key) = text
            .strip_prefix(SCHEME)
            .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
            .filter(|(bucket, _)| !bucket.is_empty())
            .ok_or_else(|| Error::config(format!("expected `{SCHEME}BUCKET/KEY`, but found `{text}`")))?;
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

/// A key that S3 takes: one that is too long keeps its beginning and its end, and a digest of the whole
/// stands for what is left out.
pub fn fit_key(key: &str) -> String {
    const END: usize = 64;
    const DIGEST: usize = 16;
    if key.len() <= LONGEST_KEY {
        return key.to_owned();
    }
    let digest = blake3::hash(key.as_bytes()).to_hex();
    let head = &key[..key.floor_char_boundary(LONGEST_KEY - END - DIGEST - 2)];
    let tail = &key[key.ceil_char_boundary(key.len() - END)..];
    // A slash in the tail would make another folder of it.
    format!("{head}~{}~{}", &digest[..DIGEST], tail.replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_they_are_written() {
        let url: Url = "s3://bucket/a b/c+d%20é.jsonl".parse().unwrap();
        assert_eq!((url.bucket.as_str(), url.key.as_str()), ("bucket", "a b/c+d%20é.jsonl"));
        assert_eq!(url.to_string(), "s3://bucket/a b/c+d%20é.jsonl");
        assert_eq!(url.name(), "c+d%20é.jsonl");
        let bucket: Url = "s3://bucket".parse().unwrap();
        assert_eq!(bucket.join("x").key, "x");
        assert_eq!(bucket.join("a/").join("x").key, "a/x");
        for wrong in ["s3://", "s3:///key", "http://a/b"] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
        assert!(Url::of(Path::new("/tmp/s3")).is_none());
    }

    #[test]
    fn keys_that_are_too_long_fit_and_stay_apart() {
        let key = |last: &str| format!("{}{last}.jsonl.report.json", "é/".repeat(400));
        let (one, other) = (fit_key(&key("a")), fit_key(&key("b")));
        assert!(one.len() <= LONGEST_KEY && other.len() <= LONGEST_KEY && one != other);
        assert!(one.ends_with(".jsonl.report.json"), "{one}");
        assert_eq!(fit_key("short"), "short");
    }
}
