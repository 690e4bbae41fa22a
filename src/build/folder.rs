//! The files of a bundle that is being built.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    repository::{
        bundle::{PIECES, TOKENIZER, describe},
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
    match Tokenizer::compile(json)? {
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
