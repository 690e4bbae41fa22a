//! `s3://` URLs.

use std::{fmt, path::Path, str::FromStr};

use crate::{
    address::shown,
    error::{Error, Result},
};

const SCHEME: &str = "s3://";
/// The longest key that S3 accepts, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// An object's location, or a key prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// Bucket name.
    pub bucket: String,
    /// The key, without any escaping.
    pub key: String,
}

impl Url {
    /// Parses a path from the command line or the configuration; `None` unless it begins with `s3://`.
    pub fn of(path: &Path) -> Option<Result<Self>> {
        let text = path.to_str()?;
        text.starts_with(SCHEME).then(|| text.parse())
    }

    /// URL for another key in the same bucket.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self {
            bucket: self.bucket.clone(),
            key: key.into(),
        }
    }

    /// URL for `name` under this one, with one slash between.
    pub fn join(&self, name: &str) -> Self {
        let prefix = self.key.trim_end_matches('/');
        self.with_key(if prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{prefix}/{name}")
        })
    }

    /// The key after its last slash.
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
            .filter(|(bucket, _)| !bucket.is_empty() && !bucket.contains('@'))
            .ok_or_else(|| {
                Error::config(format!(
                    "expected `{SCHEME}BUCKET/KEY`, but found `{}`",
                    shown(text)
                ))
            })?;
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

/// Shortens a key to [`MAX_KEY_BYTES`]. A longer key keeps its beginning and its end, with a digest of the
/// whole key in between.
pub fn fit_key(key: &str) -> String {
    const END: usize = 64;
    const DIGEST: usize = 16;
    if key.len() <= MAX_KEY_BYTES {
        return key.to_owned();
    }
    let digest = blake3::hash(key.as_bytes()).to_hex();
    let head = &key[..key.floor_char_boundary(MAX_KEY_BYTES - END - DIGEST - 2)];
    let tail = &key[key.ceil_char_boundary(key.len() - END)..];
    // A slash in the tail would add a folder.
    format!("{head}~{}~{}", &digest[..DIGEST], tail.replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        let url: Url = "s3://bucket/a b/c+d%20é.jsonl".parse().unwrap();
        assert_eq!(
            (url.bucket.as_str(), url.key.as_str()),
            ("bucket", "a b/c+d%20é.jsonl")
        );
        assert_eq!(url.to_string(), "s3://bucket/a b/c+d%20é.jsonl");
        assert_eq!(url.name(), "c+d%20é.jsonl");
        let bucket: Url = "s3://bucket".parse().unwrap();
        assert_eq!(bucket.join("x").key, "x");
        assert_eq!(bucket.join("a/").join("x").key, "a/x");
        for wrong in [
            "s3://",
            "s3:///key",
            "http://a/b",
            "s3://me:word@bucket/key",
        ] {
            let error = wrong.parse::<Url>().unwrap_err().to_string();
            assert!(!error.contains("word"), "{error}");
        }
        assert!(Url::of(Path::new("/tmp/s3")).is_none());
    }

    #[test]
    fn long_keys_are_shortened_and_stay_distinct() {
        let key = |last: &str| format!("{}{last}.jsonl.report.json", "é/".repeat(400));
        let (one, other) = (fit_key(&key("a")), fit_key(&key("b")));
        assert!(one.len() <= MAX_KEY_BYTES && other.len() <= MAX_KEY_BYTES && one != other);
        assert!(one.ends_with(".jsonl.report.json"), "{one}");
        assert_eq!(fit_key("short"), "short");
    }
}
