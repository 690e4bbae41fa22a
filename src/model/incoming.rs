//! Models whose files arrive in pieces.

use std::collections::BTreeMap;

use super::{Model, loaded::require_native};
use crate::repository::{
    Bundle,
    bundle::{MemoryFile, loaded_files},
    manifest::File,
};
use kivu_base::{Error, Result, config::Config};
use kivu_core::backend::native::Buffer;

/// Receives a bundle's files in pieces (WebAssembly). They are hashed on arrival, and none is in memory twice.
#[derive(Debug)]
pub struct IncomingModel {
    bundle: Bundle,
    files: BTreeMap<String, IncomingFile>,
}

#[derive(Debug)]
struct IncomingFile {
    contents: Buffer,
    size: u64,
    hash: blake3::Hasher,
}

impl IncomingModel {
    /// A model with the manifest `text`, without its files yet; allocates memory for them.
    ///
    /// # Errors
    /// The manifest is invalid, or the bundle is for ONNX Runtime.
    pub fn new(text: &str) -> Result<Self> {
        let bundle = Bundle::in_memory(text, BTreeMap::new())?;
        require_native(&Config::default(), bundle.manifest())?;
        let files = loaded_files(bundle.manifest());
        let files = files
            .map(|file| Ok((file.name.clone(), IncomingFile::new(file)?)))
            .collect::<Result<_>>()?;
        Ok(Self { bundle, files })
    }

    /// The files that loading reads.
    pub fn required(&self) -> impl Iterator<Item = &File> {
        loaded_files(self.bundle.manifest())
    }

    /// Appends a piece of `length` bytes to the file `name`: `copy` fills the slice, which is shorter if the piece exceeds
    /// the file's size.
    pub fn fill(&mut self, name: &str, length: usize, copy: impl FnOnce(&mut [u8])) -> Result<()> {
        let Some(file) = self.files.get_mut(name) else {
            let model = &self.bundle.manifest().name;
            return Err(Error::model(format!(
                "expected a file that `{model}` loads, but found `{name}`"
            )));
        };
        file.hash.update(file.contents.fill_with(length, copy));
        file.size += length as u64;
        Ok(())
    }

    /// Opens the model.
    ///
    /// # Errors
    /// A file is incomplete or damaged.
    pub fn open(self) -> Result<Model> {
        let files = self
            .files
            .into_iter()
            .map(|(name, file)| (name, file.finish()));
        Model::from_bundle(self.bundle.with_files(files.collect()))
    }
}

impl IncomingFile {
    fn new(file: &File) -> Result<Self> {
        // The longest allocation, in whole words.
        const MAX_BYTES: u64 = isize::MAX as u64 & !7;
        if file.size > MAX_BYTES {
            return Err(Error::model(format!(
                "expected files with at most {MAX_BYTES} bytes, but found that `{}` has {}",
                file.name, file.size
            )));
        }
        Ok(Self {
            contents: Buffer::new(file.size as usize),
            size: 0,
            hash: blake3::Hasher::new(),
        })
    }

    fn finish(self) -> MemoryFile {
        MemoryFile {
            contents: self.contents.filled(),
            size: self.size,
            digest: self.hash.finalize(),
        }
    }
}
