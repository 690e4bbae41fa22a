//! The folder of a bundle: written aside, and moved to its place when it is whole.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    repository::{
        bundle::{MANIFEST, PIECES, TOKENIZER, describe},
        manifest::File,
    },
    tokenizer::Tokenizer,
};

/// The entries of all files in `folder`, by name.
pub(super) fn files(folder: &Path) -> Result<Vec<File>> {
    let unreadable = || Error::io(format!("cannot read `{}`", folder.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable())? {
        let entry = entry.map_err(unreadable())?;
        files.push(describe(&entry.path(), entry.file_name().to_string_lossy().into_owned())?);
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(files)
}

/// Refuses to build where files of another kind would be lost.
pub(super) fn require_replaceable(out: &Path) -> Result<()> {
    let is_bundle = out.join(MANIFEST).is_file();
    let is_empty = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if out.exists() && !is_bundle && !is_empty {
        return Err(Error::config(format!(
            "expected `{}` to be a bundle, an empty folder or nothing, but found other files there",
            out.display()
        )));
    }
    Ok(())
}

/// Moves the finished `folder` to `out`, in place of what was there, which comes back if that fails.
pub(super) fn replace(folder: &Path, out: &Path, scratch: &Path) -> Result<()> {
    let failed = || Error::io(format!("cannot write `{}`", out.display()));
    let replaced = scratch.join("replaced");
    if out.exists() {
        fs::rename(out, &replaced).map_err(failed())?;
    }
    fs::rename(folder, out).map_err(|error| {
        // The first error is the one to be told.
        let _ = fs::rename(&replaced, out);
        failed()(error)
    })
}

pub(super) fn create_folder(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path).map_err(Error::io(format!("cannot create `{}`", path.display())))?;
    Ok(path.to_owned())
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(Error::io(format!("cannot write `{}`", path.display())))
}

/// Writes a `tokenizer.json`, and beside it the form of it that is loaded quickly, where there is one.
pub(super) fn write_tokenizer(folder: &Path, json: &[u8]) -> Result<()> {
    write_file(&folder.join(TOKENIZER), json)?;
    match Tokenizer::pieces_of(json)? {
        Some(pieces) => write_file(&folder.join(PIECES), &pieces),
        None => Ok(()),
    }
}

/// The `tokenizer.json` of a source.
pub(super) fn read_tokenizer(folder: &Path) -> Result<Vec<u8>> {
    let path = folder.join(TOKENIZER);
    fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::model(format!(
            "expected `{TOKENIZER}` in `{}`, but found none; the fast tokenizers of `transformers` save it \
             (`save_pretrained`)",
            folder.display()
        )),
        _ => Error::Io { action: format!("cannot read `{}`", path.display()), source },
    })
}
