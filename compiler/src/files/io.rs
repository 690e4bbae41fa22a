//! Reads and writes files, with errors that name the path.

use std::{
    fmt::Display,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};

use kivu::{
    Error, Result,
    error::Message,
    foreign_file, regular_file,
    repository::bundle::{TOKENIZER, sha256_of},
};

/// Reads a settings file or a vocabulary, whose size is limited.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = regular_file::read_text(path);
    check_contents(path, bytes.map_err(Error::cannot("read", path.display()))?)
}

/// Reads a file with weights.
pub fn read_weights(path: &Path) -> Result<Vec<u8>> {
    let bytes = regular_file::read(path);
    check_contents(path, bytes.map_err(Error::cannot("read", path.display()))?)
}

/// Refuses what stands in place of the file at `path`.
fn check_contents(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>> {
    match foreign_file::stand_in(&bytes) {
        None => Ok(bytes),
        Some(found) => {
            let is_found = |found: &str| format!("`{}` is {found}", path.display());
            Err(Error::model(found.map(is_found)))
        }
    }
}

/// Recognizes the format of the file at `path` by its first bytes.
pub fn known_format(path: &Path) -> Option<Message> {
    const HEAD_BYTES: u64 = 256;
    let mut head = Vec::new();
    let file = regular_file::open(path).ok()?;
    file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    foreign_file::format(&head)
}

/// The error for contents that are not those of `expected`, such as `an ONNX file`.
pub fn is_not(path: &Path, expected: &str, bytes: &[u8]) -> Message {
    let path = path.display();
    match foreign_file::format(bytes) {
        Some(found) => found.map(|found| format!("`{path}` is not {expected}, but {found}")),
        None => Message::new(format!("`{path}` is not {expected}")),
    }
}

/// The `tokenizer.json` in `folder`.
pub fn read_tokenizer(folder: &Path) -> Result<Vec<u8>> {
    read_if_exists(&folder.join(TOKENIZER))?.ok_or_else(|| {
        let folder = folder.display();
        Error::model(format!(
            "expected `{TOKENIZER}` in `{folder}`, but found none"
        ))
        .with_hint(format!(
            "with `transformers`, \
             `AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')` writes it"
        ))
    })
}

/// Parses a `tokenizer.json`.
pub fn parse_tokenizer<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|error| Error::model_because("cannot read the tokenizer", error))
}

/// Whether two `tokenizer.json` files produce the same tokens; ignores truncation and padding.
pub fn are_same_tokenizers(left: &[u8], right: &[u8]) -> Result<bool> {
    let read = |json: &[u8]| {
        let mut file: serde_json::Map<_, serde_json::Value> = parse_tokenizer(json)?;
        ["truncation", "padding"]
            .iter()
            .for_each(|field| drop(file.remove(*field)));
        Ok::<_, Error>(file)
    };
    Ok(read(left)? == read(right)?)
}

pub fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(Error::cannot("write", path.display()))
}

/// Moves a file; replaces the one at `to`.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::cannot("write", to.display()))
}

pub fn create_folder(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path).map_err(Error::cannot("create", path.display()))?;
    Ok(path.to_owned())
}

/// A folder's entries with their metadata, ordered by path.
pub fn list(folder: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>> {
    let entries = || {
        let entries =
            fs::read_dir(folder)?.map(|entry| entry.and_then(|it| Ok((it.path(), it.metadata()?))));
        entries.collect::<io::Result<Vec<_>>>()
    };
    let mut entries = entries().map_err(Error::cannot("read", folder.display()))?;
    entries.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(entries)
}

/// Refuses a file with a different SHA-256; the error calls the file `name`.
pub fn check_sha256(path: &Path, name: &dyn Display, expected: &str) -> Result<()> {
    let found = sha256_of(path)?;
    if found == expected {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected `{name}` to have the SHA-256 {expected}, but found {found}"
    )))
}

pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse(&read(path)?, path)
}

/// Reads a JSON file; `None` if it does not exist.
pub fn read_json_if_exists<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    read_if_exists(path)?
        .map(|bytes| parse(&bytes, path))
        .transpose()
}

fn parse<T: DeserializeOwned>(json: &[u8], path: &Path) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|error| Error::model_because(format!("cannot read `{}`", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("model.safetensors");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let refusal = read(&link).unwrap_err().chain();
        assert!(refusal.ends_with("but found a device"), "{refusal}");
        assert!(matches!(
            read(&folder.path().join("none")),
            Err(Error::Io { .. })
        ));
    }
}
