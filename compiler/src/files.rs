//! Reads and writes files, with errors that name the path.

use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use super::path_id::canonical;
use kivu::{
    error::{Error, Result},
    regular_file,
    repository::bundle::{TOKENIZER, sha256_of},
};

/// Reads a settings file or a vocabulary, whose size is limited.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    regular_file::read_text(path).map_err(Error::io(format!("cannot read `{}`", path.display())))
}

/// Reads a file with weights.
pub(super) fn read_weights(path: &Path) -> Result<Vec<u8>> {
    regular_file::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))
}

/// The `tokenizer.json` in `folder`.
pub(super) fn read_tokenizer(folder: &Path) -> Result<Vec<u8>> {
    read_if_exists(&folder.join(TOKENIZER))?.ok_or_else(|| {
        let folder = folder.display();
        Error::model(format!(
            "expected `{TOKENIZER}` in `{folder}`, but found none; with `transformers`, \
             `AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')` writes it"
        ))
    })
}

/// Whether two `tokenizer.json` files produce the same tokens; ignores truncation and padding.
pub(super) fn are_same_tokenizers(left: &[u8], right: &[u8]) -> Result<bool> {
    let read = |json: &[u8]| {
        let file = serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(json);
        let mut file =
            file.map_err(|error| Error::model_because("cannot read the tokenizer", error))?;
        ["truncation", "padding"]
            .iter()
            .for_each(|field| drop(file.remove(*field)));
        Ok::<_, Error>(file)
    };
    Ok(read(left)? == read(right)?)
}

pub(super) fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(Error::io(format!("cannot write `{}`", path.display())))
}

/// Moves a file; replaces the one at `to`.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::io(format!("cannot write `{}`", to.display())))
}

pub(super) fn create_folder(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path).map_err(Error::io(format!("cannot create `{}`", path.display())))?;
    Ok(path.to_owned())
}

/// A folder's entries with their metadata, ordered by path.
pub(super) fn list(folder: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>> {
    let entries = || {
        let entries =
            fs::read_dir(folder)?.map(|entry| entry.and_then(|it| Ok((it.path(), it.metadata()?))));
        entries.collect::<io::Result<Vec<_>>>()
    };
    let mut entries =
        entries().map_err(Error::io(format!("cannot read `{}`", folder.display())))?;
    entries.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(entries)
}

/// Refuses symbolic links in a model's folder that lead out of it: what they name may be any file on this machine. In
/// the hub's cache, a commit's files are links to the repository's `blobs`.
pub(super) fn check_links(folder: &Path) -> Result<()> {
    let inside = canonical(folder)?;
    let snapshots = inside
        .parent()
        .filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots
        .and_then(Path::parent)
        .map(|own| own.join("blobs"));
    let mut pending = vec![inside.clone()];
    while let Some(folder) = pending.pop() {
        for (path, metadata) in list(&folder)? {
            let name = path.file_name().unwrap_or_default();
            // Nothing is read from hidden folders, which may be large, such as `.git`.
            if metadata.is_dir() && !name.as_encoded_bytes().starts_with(b".") {
                pending.push(path);
                continue;
            }
            // Nothing is behind a link to nowhere.
            let is_link = metadata.is_symlink();
            let Some(target) = is_link.then(|| path.canonicalize().ok()).flatten() else {
                continue;
            };
            let is_blob = blobs
                .as_ref()
                .is_some_and(|blobs| target.parent() == Some(blobs));
            if !target.starts_with(&inside) && !is_blob {
                return Err(Error::model(format!(
                    "`{}` is a symbolic link out of the model's folder, to `{}`; copy the file into the folder",
                    path.display(),
                    target.display()
                )));
            }
        }
    }
    Ok(())
}

/// Refuses a file with a different SHA-256; the error calls the file `name`.
pub(super) fn check_sha256(path: &Path, name: &dyn Display, expected: &str) -> Result<()> {
    let found = sha256_of(path)?;
    if found == expected {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected `{name}` to have the SHA-256 {expected}, but found {found}"
    )))
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse(&read(path)?, path)
}

/// Reads a JSON file; `None` if it does not exist.
pub(super) fn read_json_if_exists<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
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
    fn links_out_of_a_folder_are_refused_but_for_the_hubs_blobs() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join("models--a--b").join(path);
        let link = |target: &str, path: &str| std::os::unix::fs::symlink(target, at(path)).unwrap();
        let commit = at("snapshots/c");
        fs::create_dir_all(commit.join("1_Pooling")).unwrap();
        fs::create_dir_all(at("blobs")).unwrap();
        for file in ["blobs/0", "refs", "snapshots/c/own", "snapshots/other"] {
            fs::write(at(file), "x").unwrap();
        }
        link("../../blobs/0", "snapshots/c/config.json");
        link("../../../blobs/0", "snapshots/c/1_Pooling/config.json");
        link("own", "snapshots/c/inside");
        link("/nowhere", "snapshots/c/dangling");
        check_links(&commit).unwrap();
        for (target, place) in [
            ("../other", "snapshots/c/vocab.txt"),
            ("../../refs", "snapshots/c/1_Pooling/model.safetensors"),
            ("/etc/passwd", "snapshots/c/tokenizer.json"),
            ("/etc", "snapshots/c/2_Dense"),
            ("..", "snapshots/c/onnx"),
        ] {
            link(target, place);
            let error = check_links(&commit).unwrap_err().to_string();
            assert!(
                error.contains("is a symbolic link out of the model's folder"),
                "{target}: {error}"
            );
            fs::remove_file(at(place)).unwrap();
        }
        // Elsewhere, no folder is special.
        let copy = root.path().join("copy");
        fs::rename(at("snapshots/c"), &copy).unwrap();
        fs::create_dir(root.path().join("blobs")).unwrap();
        fs::write(root.path().join("blobs/0"), "x").unwrap();
        fs::remove_file(copy.join("config.json")).unwrap();
        std::os::unix::fs::symlink("../blobs/0", copy.join("config.json")).unwrap();
        assert!(check_links(&copy).is_err());
    }

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
