//! Opening a bundle: nothing is used that does not match its manifest.

use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    manifest::{File, Manifest},
    s3::{Store, Url},
    staged,
};
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

/// A readable manifest, and the place of the files that it names.
#[derive(Clone, Debug)]
pub struct Bundle {
    home: Home,
    manifest: Manifest,
    digest: String,
}

/// Where a bundle's files lie.
#[derive(Clone, Debug)]
pub enum Home {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// Under a URL of S3.
    S3(Store, Url),
}

impl Bundle {
    /// Reads the manifest in a folder, or under an `s3://` URL. The other files are verified when they are read.
    pub fn open(path: &Path) -> Result<Self> {
        match Url::of(path) {
            Some(url) => staged::open(&Store::open()?, &url?),
            None => Self::open_folder(path),
        }
    }

    /// The bundle whose manifest is `text`, wherever its files are; `place` is for the message.
    pub(super) fn parse(text: &str, home: Home, place: &dyn fmt::Display) -> Result<Self> {
        let manifest = Manifest::parse(text)
            .map_err(|error| Error::model_because(format!("`{place}` is no bundle"), error))?;
        Ok(Self { home, manifest, digest: hex(&Sha256::digest(text)) })
    }

    fn open_folder(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::model(format!(
                "expected a bundle in `{}`, but found no `{MANIFEST}`; `kivu build` makes bundles",
                folder.display()
            )),
            _ => Error::Io { action: format!("cannot read `{}`", path.display()), source },
        })?;
        Self::parse(&text, Home::Folder(folder.to_owned()), &folder.display())
    }

    /// What is known of the bundle.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The SHA-256 of the manifest: the bundle's identity.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Where its files lie.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The path of one of its files; of a bundle in S3 it is good for messages only.
    pub fn path(&self, name: &str) -> PathBuf {
        match &self.home {
            Home::Folder(folder) => folder.join(name),
            Home::S3(_, url) => url.join(name).to_string().into(),
        }
    }

    /// Reads one of its files and checks what was read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.file(name)?.size.min(LARGEST_AT_ONCE) as usize);
        self.stream(name, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    /// Reads the tokenizer, from its [`PIECES`] if it has them.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self.manifest.file(PIECES) {
            Some(_) => Tokenizer::from_compiled(self.read(PIECES)?),
            None => Tokenizer::from_json(&self.read(TOKENIZER)?),
        }
    }

    /// Hands one of its files on piece by piece, in order; fails at the end where it is not what it should be.
    pub fn stream(&self, name: &str, mut take: impl FnMut(&[u8])) -> Result<()> {
        let file = self.file(name)?;
        let mut hash = blake3::Hasher::new();
        let take = |piece: &[u8]| {
            hash.update(piece);
            take(piece);
        };
        let size = match &self.home {
            Home::Folder(folder) => read_through(&folder.join(name), take)?,
            Home::S3(store, url) => staged::read_through(store, &url.join(name), file.size, take)?,
        };
        check(file, &self.path(name), size, hash.finalize())
    }

    fn file(&self, name: &str) -> Result<&File> {
        let unknown =
            || Error::model(format!("expected `{name}` among the files of `{}`", self.manifest.name));
        self.manifest.file(name).ok_or_else(unknown)
    }

    /// Checks the size and the digest of each file but those in `except`.
    pub fn verify(&self, except: &[&str]) -> Result<()> {
        let names = self.manifest.files.iter().map(|file| file.name.as_str());
        names.filter(|name| !except.contains(name)).try_for_each(|name| self.stream(name, |_| ()))
    }
}

/// A manifest may lie about a size: no more memory than this is taken on its word.
const LARGEST_AT_ONCE: u64 = 64 * 1024 * 1024;

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
