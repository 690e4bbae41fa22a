//! Opening a bundle: nothing is used that does not match its manifest.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::manifest::{File, Manifest};
use crate::{
    error::{Error, Result},
    tokenizer::Tokenizer,
};

/// The name of the file that says what a bundle is.
pub const MANIFEST: &str = "manifest.toml";

/// The name of the tokenizer's file.
pub const TOKENIZER: &str = "tokenizer.json";

/// The name of the same tokenizer in a form that is loaded quickly, where there is one.
pub const PIECES: &str = "tokenizer.pieces";

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
        let manifest = Manifest::parse(&text)
            .map_err(|error| Error::model_because(format!("`{}` is no bundle", folder.display()), error))?;
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
        check(file, &path, bytes.len() as u64, blake3::hash(&bytes))?;
        Ok(bytes)
    }

    /// Reads the tokenizer, from its [`PIECES`] if it has them.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self.manifest.file(PIECES) {
            Some(_) => Tokenizer::from_pieces(self.read(PIECES)?),
            None => Tokenizer::from_json(&self.read(TOKENIZER)?),
        }
    }

    /// Checks the size and the digest of each file but those in `except`.
    pub fn verify(&self, except: &[&str]) -> Result<()> {
        for file in self.manifest.files.iter().filter(|file| !except.contains(&file.name.as_str())) {
            let path = self.path(&file.name);
            let mut hash = blake3::Hasher::new();
            let size = read_through(&path, |piece| {
                hash.update(piece);
            })?;
            check(file, &path, size, hash.finalize())?;
        }
        Ok(())
    }
}

fn check(file: &File, path: &Path, size: u64, digest: blake3::Hash) -> Result<()> {
    if size != file.size {
        return Err(Error::model(format!(
            "expected `{}` to have {} bytes, but found {size}; the bundle is damaged: build or fetch it again",
            path.display(),
            file.size
        )));
    }
    let digest = digest.to_hex();
    if digest.as_str() != file.blake3 {
        return Err(Error::model(format!(
            "expected `{}` to have the BLAKE3 {}, but found {digest}; the bundle is damaged: \
             build or fetch it again",
            path.display(),
            file.blake3
        )));
    }
    Ok(())
}

/// The entry of the file at `path` in a manifest, under the name `name`.
pub fn describe(path: &Path, name: String) -> Result<File> {
    let (mut sha256, mut blake3) = (Sha256::new(), blake3::Hasher::new());
    let size = read_through(path, |piece| {
        sha256.update(piece);
        blake3.update(piece);
    })?;
    Ok(File { name, size, sha256: hex(&sha256.finalize()), blake3: blake3.finalize().to_hex().to_string() })
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256_of(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    read_through(path, |piece| hash.update(piece))?;
    Ok(hex(&hash.finalize()))
}

/// Reads a file piece by piece; gives its size.
fn read_through(path: &Path, mut take: impl FnMut(&[u8])) -> Result<u64> {
    let unreadable = || Error::io(format!("cannot read `{}`", path.display()));
    let mut file = fs::File::open(path).map_err(unreadable())?;
    let (mut size, mut piece) = (0, vec![0; 64 * 1024]);
    loop {
        let read = file.read(&mut piece).map_err(unreadable())?;
        if read == 0 {
            return Ok(size);
        }
        size += read as u64;
        take(&piece[..read]);
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
