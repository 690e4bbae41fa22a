//! Repository names: `ORG/NAME`, or `ORG/NAME@REVISION`; also as their addresses.

use std::{fmt, str::FromStr};

use kivu::{Error, Result, hexadecimal::is_hex};

/// Default branch.
const MAIN: &str = "main";
/// The hub's length limit.
const MAX_LENGTH: usize = 96;

/// Prefixes of repository addresses, and the part between name and revision.
const ADDRESSES: [(&str, &str); 3] = [
    ("hf://", "@"),
    ("https://huggingface.co/", "/tree/"),
    ("https://hf.co/", "/tree/"),
];

/// A model repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryName {
    /// `ORG/NAME`.
    pub id: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

impl RepositoryName {
    /// Whether `text` has the form of a repository name. Paths such as `./model`, `a/b/c` and `/a` do not.
    pub fn is_name(text: &str) -> bool {
        text.parse::<Self>().is_ok()
    }

    /// The part after the slash.
    pub fn short(&self) -> &str {
        self.id.split_once('/').map_or(&self.id, |(_, name)| name)
    }

    /// The repository's folder name in a cache.
    pub fn folder(&self) -> String {
        self.id.replace('/', "--")
    }

    /// Whether the revision is a commit.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }
}

impl FromStr for RepositoryName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let address = ADDRESSES.iter().find_map(|(start, revision)| {
            let name = text.strip_prefix(start)?;
            Some((name.strip_suffix('/').unwrap_or(name), *revision))
        });
        let (name, separator) = address.unwrap_or((text, "@"));
        let (id, revision) = name.split_once(separator).unwrap_or((name, MAIN));
        let is_valid = id.len() <= MAX_LENGTH
            && id.split('/').count() == 2
            && id.split('/').all(is_part)
            && !revision.is_empty()
            && revision.split('/').all(is_part);
        if !is_valid {
            return Err(Error::config(format!(
                "expected a Hugging Face hub repository, as ORG/NAME or ORG/NAME@REVISION, but found `{text}`"
            )));
        }
        Ok(Self {
            id: id.to_owned(),
            revision: revision.to_owned(),
        })
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.id)?;
        if self.revision == MAIN {
            Ok(())
        } else {
            write!(formatter, "@{}", self.revision)
        }
    }
}

/// The hub's naming rules, which also exclude paths that lead out of a folder.
fn is_part(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty()
        && part.chars().all(is_plain)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
        && !part.ends_with(".git")
}

/// Whether `text` is a full commit hash.
pub fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_two_parts_and_may_have_a_revision() {
        let name: RepositoryName = "BAAI/bge-small-en-v1.5".parse().unwrap();
        assert_eq!(
            (name.short(), name.revision.as_str()),
            ("bge-small-en-v1.5", "main")
        );
        assert_eq!(name.folder(), "BAAI--bge-small-en-v1.5");
        for text in [
            "a/b",
            "a/b@v1.0",
            "a/b@refs/pr/1",
            "a_b/c.d@0123456789abcdef0123456789abcdef01234567",
        ] {
            assert_eq!(text.parse::<RepositoryName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn addresses_of_repositories_are_names() {
        for (address, name) in [
            ("hf://a/b", "a/b"),
            ("hf://a/b@v1.0", "a/b@v1.0"),
            ("https://huggingface.co/a/b", "a/b"),
            ("https://huggingface.co/a/b/", "a/b"),
            ("https://hf.co/a/b/tree/refs/pr/1", "a/b@refs/pr/1"),
        ] {
            assert_eq!(
                address.parse::<RepositoryName>().unwrap().to_string(),
                name,
                "{address}"
            );
        }
        for address in [
            "hf://a",
            "hf://datasets/a/b",
            "https://huggingface.co/a",
            "https://huggingface.co/datasets/a/b",
            "https://huggingface.co/a/b/blob/main/config.json",
            "https://huggingface.co/a/b?x=1",
            "https://user:word@huggingface.co/a/b",
            "https://example.org/a/b",
        ] {
            assert!(!RepositoryName::is_name(address), "{address}");
        }
    }

    #[test]
    fn paths_and_other_urls_are_not_names() {
        let paths = [
            "", "a", "a/", "/a", "a/b/c", "./a", "../a", "a/..", "a/b@", "a/b@../c", "a/b@c//d",
            "a b/c", "-a/b", "a/b.git", "a--b/c", "~/a", "s3://a/b", "a/b?c", "a\\b/c", "é/b",
        ];
        for path in paths {
            assert!(!RepositoryName::is_name(path), "{path}");
        }
        assert!(!RepositoryName::is_name(&format!("a/{}", "b".repeat(95))));
    }
}
