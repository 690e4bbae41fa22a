//! Opening a bundle: nothing is used that does not match its manifest.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::manifest::{File, Manifest};
use crate::error::{Error, Result};

/// The name of the file that says what a bundle is.
pub const MANIFEST: &str = "manifest.toml";

/// The name of the tokenizer's file.
pub const TOKENIZER: &str = "tokenizer.json";

/// A folder with a readable manifest.
#[derive(Clone, Debug)]
pub struct Bundle {
    folder: PathBuf,
    manifest: Manifest,
    digest: String,
}

impl Bundle {
    /// Reads the manifest in `folder`. The other files are verified by [`Bundle::verify`].
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::model(format!(
                "expected a bundle in `{}`, but found no `{MANIFEST}`; `kivu build` makes bundles",
                folder.display()
            )),
            _ => Error::Io { action: format!("cannot read `{}`", path.display()), source },
        })?;
        let manifest = Manifest::parse(&text).map_err(|error| {
            Error::model_because(format!("`{}` is no bundle", folder.display()), error)
        })?;
        Ok(Self { folder: folder.to_owned(), manifest, digest: hex(&Sha256::digest(&text)) })
    }

    /// What is known of the bundle.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The SHA-256 of the manifest: the bundle's identity.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The path of one of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Reads one of its files and checks what was read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.manifest.file(name).ok_or_else(|| {
            Error::model(format!("expected `{name}` among the files of `{}`", self.manifest.name))
        })?;
        let path = self.path(name);
        let bytes = fs::read(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        check(file, &path, bytes.len() as u64, &hex(&Sha256::digest(&bytes)))?;
        Ok(bytes)
    }

    /// Checks the size and the SHA-256 of each file but those in `except`.
    pub fn verify(&self, except: &[&str]) -> Result<()> {
        for file in self.manifest.files.iter().filter(|file| !except.contains(&file.name.as_str())) {
            let path = self.path(&file.name);
            let (size, sha256) = digest_file(&path)?;
            check(file, &path, size, &sha256)?;
        }
        Ok(())
    }
}

fn check(file: &File, path: &Path, size: u64, sha256: &str) -> Result<()> {
    if size != file.size {
        return Err(Error::model(format!(
            "expected `{}` to have {} bytes, but found {size}; the bundle is damaged: build or fetch it again",
            path.display(),
            file.size
        )));
    }
    if sha256 != file.sha256 {
        return Err(Error::model(format!(
            "expected `{}` to have the SHA-256 {}, but found {sha256}; the bundle is damaged: \
             build or fetch it again",
            path.display(),
            file.sha256
        )));
    }
    Ok(())
}

/// The size and SHA-256 of a file, read piece by piece.
pub fn digest_file(path: &Path) -> Result<(u64, String)> {
    let unreadable = || Error::io(format!("cannot read `{}`", path.display()));
    let mut file = fs::File::open(path).map_err(unreadable())?;
    let (mut hash, mut size, mut piece) = (Sha256::new(), 0, vec![0; 256 * 1024]);
    loop {
        let read = file.read(&mut piece).map_err(unreadable())?;
        if read == 0 {
            return Ok((size, hex(&hash.finalize())));
        }
        size += read as u64;
        hash.update(&piece[..read]);
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
