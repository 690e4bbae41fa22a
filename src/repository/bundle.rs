//! Bundles: folders or S3 prefixes with a manifest and the files that it lists. Files are verified when they are read.

use std::{
    collections::BTreeMap,
    fmt,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    manifest::{File, Manifest},
    s3::{Object, Store, Url},
};
use kivu_base::{Error, Result, foreign_file, hexadecimal::hex, regular_file};
use kivu_text::Tokenizer;

/// Manifest file name.
pub const MANIFEST: &str = "manifest.toml";

/// Tokenizer file name.
pub const TOKENIZER: &str = "tokenizer.json";

/// Compiled tokenizer file name. Loads faster than [`TOKENIZER`]; some bundles lack it.
pub const PIECES: &str = "tokenizer.pieces";

/// File name for an embedding model's vector ranges; earlier versions' bundles have none.
pub const RANGES: &str = "ranges.bin";

/// Maximum memory reserved for a file before it is read, since a manifest may state any size.
const MAX_RESERVED_BYTES: u64 = 64 * 1024 * 1024;

/// A bundle with a valid manifest. Its other files may be damaged or missing until they are read.
#[derive(Clone, Debug)]
pub struct Bundle {
    home: Home,
    manifest: Manifest,
    digest: String,
}

/// A bundle's location.
#[derive(Clone, Debug)]
pub enum Home {
    /// A local folder.
    Folder(PathBuf),
    /// An S3 prefix.
    S3(Arc<dyn Store>, Url),
    /// The files in memory, by name.
    Memory(BTreeMap<String, MemoryFile>),
}

/// A file in memory, which was hashed when it arrived.
#[derive(Clone, Debug)]
pub struct MemoryFile {
    /// At most as many bytes as the manifest states.
    pub contents: Bytes,
    /// How many bytes arrived.
    pub size: u64,
    /// BLAKE3 of the contents.
    pub digest: blake3::Hash,
}

impl From<Bytes> for MemoryFile {
    fn from(contents: Bytes) -> Self {
        Self {
            size: contents.len() as u64,
            digest: blake3::hash(&contents),
            contents,
        }
    }
}

impl Bundle {
    /// Opens the bundle in a local folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let text = regular_file::read_to_string(&path).map_err(|source| match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                let found = match folder.metadata() {
                    Ok(metadata) if metadata.is_dir() => format!("no `{MANIFEST}`"),
                    Ok(_) => "a file".to_owned(),
                    Err(_) => "no such folder".to_owned(),
                };
                let folder = folder.display();
                Error::model(format!(
                    "expected a bundle in `{folder}`, but found {found}"
                ))
                .with_hint("`kivu build` makes bundles")
            }
            _ => Error::Io {
                action: format!("cannot read `{}`", path.display()).into(),
                source,
            },
        })?;
        Self::parse(&text, Home::Folder(folder.to_owned()), &folder.display())
    }

    /// The bundle with the manifest `text`, whose files are in memory.
    pub fn in_memory(text: &str, files: BTreeMap<String, MemoryFile>) -> Result<Self> {
        Self::parse(text, Home::Memory(files), &MANIFEST)
    }

    /// The bundle with these files in memory.
    pub fn with_files(self, files: BTreeMap<String, MemoryFile>) -> Self {
        Self {
            home: Home::Memory(files),
            ..self
        }
    }

    /// The bundle with the manifest `text`; errors name `place`.
    pub fn parse(text: &str, home: Home, place: &dyn fmt::Display) -> Result<Self> {
        let manifest = Manifest::parse(text)
            .map_err(|error| Error::model_because(format!("`{place}` is not a bundle"), error))?;
        Ok(Self {
            home,
            manifest,
            digest: hex(&Sha256::digest(text)),
        })
    }

    /// The manifest, which was parsed when the bundle was opened.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// SHA-256 of the manifest, which identifies the bundle.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Where the files are.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// A file's path; for a bundle in S3, its URL, for messages only.
    pub fn path(&self, name: &str) -> PathBuf {
        match &self.home {
            Home::Folder(folder) => folder.join(name),
            Home::S3(_, url) => url.join(name).to_string().into(),
            Home::Memory(_) => name.into(),
        }
    }

    /// Reads and verifies a file. Bytes in memory are shared.
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        match &self.home {
            Home::Memory(files) => {
                self.stream(name, |_| ())?;
                Ok(files
                    .get(name)
                    .map(|file| file.contents.clone())
                    .unwrap_or_default())
            }
            Home::Folder(_) | Home::S3(..) => Ok(self.read(name)?.into()),
        }
    }

    /// Reads and verifies a file.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.file(name)?.size.min(MAX_RESERVED_BYTES) as usize);
        self.stream(name, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    /// Reads the tokenizer, from [`PIECES`] if it exists.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self.manifest.file(PIECES) {
            Some(_) => Tokenizer::from_compiled(self.bytes(PIECES)?),
            None => Tokenizer::from_json(&self.bytes(TOKENIZER)?),
        }
    }

    /// Passes a file to `take` in pieces, in order. An error at the end means that the file is not the one that the
    /// manifest lists.
    pub fn stream(&self, name: &str, take: impl FnMut(&[u8])) -> Result<()> {
        self.stream_file(self.file(name)?, take)
    }

    fn stream_file(&self, file: &File, mut take: impl FnMut(&[u8])) -> Result<()> {
        let name = &*file.name;
        let mut hash = blake3::Hasher::new();
        let mut hashed = |piece: &[u8]| {
            hash.update(piece);
            take(piece);
        };
        let size = match &self.home {
            Home::Folder(folder) => read_through(&folder.join(name), hashed)?,
            Home::S3(store, url) => {
                // Without an ETag: the content hash is verified instead.
                let object = Object {
                    size: file.size,
                    ..Object::default()
                };
                for piece in store.pieces(&url.join(name), &object, 0..file.size)? {
                    piece?.iter().for_each(|chunk| hashed(chunk));
                }
                file.size
            }
            Home::Memory(files) => {
                let found = files.get(name).ok_or_else(|| {
                    Error::model(format!(
                        "expected `{name}` among the files of `{}`, but found no such file",
                        self.manifest.name
                    ))
                    .with_hint("pass all files of the bundle")
                })?;
                take(&found.contents);
                return check(file, &self.path(name), found.size, found.digest);
            }
        };
        check(file, &self.path(name), size, hash.finalize())
    }

    fn file(&self, name: &str) -> Result<&File> {
        let unknown = || {
            Error::model(format!(
                "expected `{name}` among the files of `{}`",
                self.manifest.name
            ))
        };
        self.manifest.file(name).ok_or_else(unknown)
    }

    /// Verifies each file's size and digest.
    pub fn verify(&self) -> Result<()> {
        let mut files = self.manifest.files.iter();
        files.try_for_each(|file| self.stream_file(file, |_| ()))
    }
}

/// Fails unless the file at `path`, read with this size in bytes and BLAKE3, is the one in the manifest.
pub fn check(file: &File, path: &Path, size: u64, digest: blake3::Hash) -> Result<()> {
    let damaged = |expected: String, found: String| {
        Err(Error::model(format!(
            "expected `{}` to have {expected}, but found {found}",
            path.display()
        ))
        .with_hint("the bundle is damaged: build or fetch it again"))
    };
    let digest = digest.to_hex();
    // Only short files stand in place of others.
    let bytes = (size != file.size && size < 1024).then(|| regular_file::read(path).ok());
    if let Some(found) = bytes.flatten().as_deref().and_then(foreign_file::stand_in) {
        let is_found = |found: &str| format!("`{}` is {found}", path.display());
        Err(Error::model(found.map(is_found)))
    } else if size != file.size {
        damaged(format!("{} bytes", file.size), size.to_string())
    } else if digest.as_str() != file.blake3 {
        damaged(format!("the BLAKE3 {}", file.blake3), digest.to_string())
    } else {
        Ok(())
    }
}

/// The files that loading reads: all but the tokenizer's JSON, if its compiled form is there.
pub fn loaded_files(manifest: &Manifest) -> impl Iterator<Item = &File> {
    let is_compiled = manifest.file(PIECES).is_some();
    manifest
        .files
        .iter()
        .filter(move |file| !(is_compiled && file.name == TOKENIZER))
}

/// Manifest entry for the file at `path`.
pub fn describe(path: &Path, name: String) -> Result<File> {
    let (mut sha256, mut blake3) = (Sha256::new(), blake3::Hasher::new());
    let size = read_through(path, |piece| {
        sha256.update(piece);
        blake3.update(piece);
    })?;
    Ok(File {
        name,
        size,
        sha256: hex(&sha256.finalize()),
        blake3: blake3.finalize().to_hex().to_string(),
    })
}

/// A file's SHA-256, in lower-case hexadecimal.
pub fn sha256_of(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    read_through(path, |piece| hash.update(piece))?;
    Ok(hex(&hash.finalize()))
}

/// Passes a file to `take` in pieces and returns its size in bytes.
fn read_through(path: &Path, mut take: impl FnMut(&[u8])) -> Result<u64> {
    let unreadable = || Error::cannot("read", path.display());
    let mut file = regular_file::open(path).map_err(unreadable())?;
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
