//! `s3://` URLs.

use std::{fmt, path::Path, str::FromStr};

use kivu_base::{Error, Result, address::shown};

const SCHEME: &str = "s3://";
/// Beginnings of the URLs that name an input or an output somewhere in Kivu.
const KNOWN: [&str; 7] = [
    SCHEME,
    "s3vectors://",
    "postgres://",
    "postgresql://",
    "opensearch+https://",
    "opensearch+http://",
    "arn:",
];
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

    /// Parses an input's or output's location; `None` for a local path.
    ///
    /// # Errors
    /// A URL with another scheme, which must not become a file's name: it may contain a password.
    pub fn of_location(path: &Path) -> Result<Option<Self>> {
        let text = path.to_string_lossy();
        if text.starts_with(SCHEME) {
            return text.parse().map(Some);
        }
        foreign(&text).map_or(Ok(None), Err)
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
                foreign(text).unwrap_or_else(|| {
                    Error::config(format!(
                        "expected `{SCHEME}BUCKET/KEY`, but found `{}`",
                        shown(text)
                    ))
                })
            })?;
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

/// The error for a text that looks like a URL, unless it is one in S3. It shows at most the scheme.
fn foreign(text: &str) -> Option<Error> {
    let text = text.trim_start();
    let (head, rest) = text.split_once('/').unwrap_or((text, ""));
    let (name, after) = head.split_once(':')?;
    let known = KNOWN.iter().find(|known| {
        let known = known.trim_end_matches(['/', ':']);
        known.eq_ignore_ascii_case(name)
    });
    let is_url = known.is_some() || head.ends_with(':') && !rest.is_empty();
    if !is_url || text.starts_with(SCHEME) {
        return None;
    }
    Some(match known {
        Some(known) if text.starts_with(known) => Error::config(format!(
            "this program has no support for URLs with `{name}:` here"
        )),
        Some(known) => Error::config(format!(
            "the URL begins with `{name}:`, but has another form"
        ))
        .with_hint(format!("begin it with `{known}`")),
        None => {
            let shown = if after.is_empty() { name } else { "…" };
            Error::config(format!(
                "URLs with `{shown}:` are not supported here, only those that begin with `{}`",
                KNOWN.join("`, `")
            ))
            .with_hint("a path with a colon begins with `./`")
        }
    })
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
    fn urls_of_other_schemes_are_no_paths() {
        let refused = |text: &str| Url::of_location(Path::new(text)).unwrap_err().to_string();
        insta::assert_snapshot!(refused("Postgres://me:secret@host/db?table=t"), @"the URL begins with `Postgres:`, but has another form; begin it with `postgres://`");
        insta::assert_snapshot!(refused("postgres://me:secret@host/db?table=t"), @"this program has no support for URLs with `postgres:` here");
        insta::assert_snapshot!(refused("https://me:secret@host/out.csv"), @"URLs with `https:` are not supported here, only those that begin with `s3://`, `s3vectors://`, `postgres://`, `postgresql://`, `opensearch+https://`, `opensearch+http://`, `arn:`; a path with a colon begins with `./`");
        insta::assert_snapshot!(refused("s3://me:secret@bucket/out.csv"), @"expected `s3://BUCKET/KEY`, but found `s3://bucket/out.csv`");
        for text in [
            "S3://me:secret@bucket/key",
            "s3:/secret/key",
            "postgre://me:secret@host/db",
            "POSTGRESQL://me:secret@host/db",
            "postgres:me:secret@host/db",
            "postgres:/me:secret@host/db",
            "jdbc:postgresql://me:secret@host/db",
            " postgres://me:secret@host/db",
            "“postgres://me:secret@host/db",
            "me:secret@host:/db",
            "OpenSearch+https://me:secret@host/docs",
            "opensearch://me:secret@host/docs",
            "ARN:aws:s3vectors:secret",
            "file:///secret/a.csv",
        ] {
            assert!(
                !refused(text).contains("secret"),
                "{text}: {}",
                refused(text)
            );
            assert!(
                !text
                    .parse::<Url>()
                    .unwrap_err()
                    .to_string()
                    .contains("secret"),
                "{text}"
            );
        }
        for path in [
            "a.csv",
            "./S3://a",
            "/tmp/a:b/c",
            "a:b.csv",
            "out/2026-01-01T10:00:00",
            "postgres",
            "s3",
            "-",
        ] {
            assert_eq!(Url::of_location(Path::new(path)).unwrap(), None, "{path}");
        }
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
