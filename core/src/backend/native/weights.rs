//! Weight bytes: a mapped file, or memory.

use std::path::Path;

use bytes::Bytes;
use kivu_engine::array::Array;

#[cfg(not(target_family = "wasm"))]
use kivu_base::regular_file;
use kivu_base::{Error, Result};

/// Maps the file at `path` into memory.
///
/// The caller checks that the file does not change: see [`MappedFiles`](crate::backend::MappedFiles).
#[cfg(not(target_family = "wasm"))]
#[expect(unsafe_code, reason = "a file can change while it is mapped")]
pub fn map(path: &Path) -> Result<Bytes> {
    let failed = || Error::cannot("map", path.display());
    let file = regular_file::open(path).map_err(failed())?;
    // SAFETY: the mapping is read-only and private. Another process may still write to the file: every bit pattern
    // is a valid number, no length or index is read from a mapped file, and each run fails once the file was written
    // to. A file that is truncated ends the process (SIGBUS), as it does with ONNX Runtime's mappings.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed())?;
    Ok(Bytes::from_owner(map))
}

/// WebAssembly has no files.
#[cfg(target_family = "wasm")]
pub fn map(path: &Path) -> Result<Bytes> {
    Err(Error::model(format!(
        "expected weights in memory, but found the file `{}`",
        path.display()
    )))
}

/// Bytes in memory that are filled piece by piece, aligned for every weight type.
#[derive(Debug)]
pub struct Buffer {
    values: Vec<u64>,
    filled: usize,
    length: usize,
}

impl Buffer {
    /// Allocates `length` bytes.
    pub fn new(length: usize) -> Self {
        Self {
            values: Vec::with_capacity(length.div_ceil(size_of::<u64>())),
            filled: 0,
            length,
        }
    }

    /// Appends `piece`; bytes beyond the length are ignored.
    pub fn fill(&mut self, piece: &[u8]) {
        self.fill_with(piece.len(), |free| {
            free.copy_from_slice(&piece[..free.len()])
        });
    }

    /// Appends a piece of `length` bytes, without bytes beyond the buffer's length: `copy` fills the slice. Returns what
    /// was appended.
    pub fn fill_with(&mut self, length: usize, copy: impl FnOnce(&mut [u8])) -> &[u8] {
        let start = self.filled;
        self.filled = start.saturating_add(length).min(self.length);
        // Only the piece's words are initialized, which are in the processor's cache when they are written.
        self.values
            .resize(self.filled.div_ceil(size_of::<u64>()), 0);
        let piece = &mut bytemuck::cast_slice_mut(&mut self.values)[start..self.filled];
        copy(piece);
        piece
    }

    /// The bytes that were filled.
    pub fn filled(self) -> Bytes {
        Array::from(self.values).into_bytes().slice(..self.filled)
    }

    /// The bytes; an error unless all were filled.
    pub fn finish(self) -> Result<Bytes> {
        if self.filled < self.length {
            return Err(Error::model(format!(
                "expected {} bytes of weights, but found {}",
                self.length, self.filled
            )));
        }
        Ok(self.filled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_takes_pieces_of_any_length() {
        let mut buffer = Buffer::new(5);
        buffer.fill(&[1, 2]);
        buffer.fill(&[3, 4, 5, 6]);
        assert_eq!(buffer.finish().unwrap()[..], [1, 2, 3, 4, 5]);
        let error = Buffer::new(3).finish().unwrap_err();
        insta::assert_snapshot!(error, @"expected 3 bytes of weights, but found 0");
    }
}
