//! Arrays of weights: parts of a mapped file, or in memory.

use std::{fs::File, marker::PhantomData, ops::Deref, path::Path};

use bytemuck::Pod;
use bytes::Bytes;

use crate::error::{Error, Result};

/// An array of `T` inside bytes that other arrays share.
#[derive(Clone, Debug)]
pub(super) struct Array<T> {
    bytes: Bytes,
    element: PhantomData<T>,
}

impl<T: Pod + Send> Array<T> {
    /// The array in `bytes`, which are copied if they are not aligned for `T`. Bytes after the last whole element are
    /// ignored.
    pub(super) fn new(bytes: &Bytes) -> Self {
        let bytes = bytes.slice(..bytes.len() - bytes.len() % size_of::<T>());
        if bytemuck::try_cast_slice::<u8, T>(&bytes).is_ok() {
            return Self { bytes, element: PhantomData };
        }
        let read = |element: &[u8]| bytemuck::pod_read_unaligned(element);
        Self::from(bytes.chunks_exact(size_of::<T>()).map(read).collect::<Vec<T>>())
    }
}

impl<T: Pod + Send> From<Vec<T>> for Array<T> {
    fn from(values: Vec<T>) -> Self {
        Self { bytes: Bytes::from_owner(Values(values)), element: PhantomData }
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.bytes)
    }
}

/// A vector as the owner of bytes, which keeps its alignment.
struct Values<T>(Vec<T>);

impl<T: Pod> AsRef<[u8]> for Values<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Maps the file at `path` into memory.
///
/// The caller checks that the file does not change: see [`MappedFiles`](crate::backend::MappedFiles).
#[expect(unsafe_code, reason = "a file can change while it is mapped")]
pub(super) fn map(path: &Path) -> Result<Bytes> {
    let failed = || Error::io(format!("cannot map `{}`", path.display()));
    let file = File::open(path).map_err(failed())?;
    // SAFETY: the mapping is read-only and private. Another process may still write to the file: every bit pattern
    // is a valid number, no length or index is read from a mapped file, and each run fails once the file was written
    // to. A file that is truncated ends the process (SIGBUS), as it does with ONNX Runtime's mappings.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed())?;
    Ok(Bytes::from_owner(map))
}

/// Bytes in memory that are filled piece by piece, aligned for every type of weight.
#[derive(Debug)]
pub struct Buffer {
    values: Vec<u64>,
    filled: usize,
    length: usize,
}

impl Buffer {
    /// A buffer of `length` bytes.
    pub fn new(length: usize) -> Self {
        Self { values: vec![0; length.div_ceil(size_of::<u64>())], filled: 0, length }
    }

    /// Appends `piece`; bytes beyond the length are ignored.
    pub fn fill(&mut self, piece: &[u8]) {
        let free = &mut bytemuck::cast_slice_mut(&mut self.values)[self.filled..self.length];
        let length = piece.len().min(free.len());
        free[..length].copy_from_slice(&piece[..length]);
        self.filled += length;
    }

    /// The bytes, all of which must have been filled.
    pub(super) fn finish(self) -> Result<Bytes> {
        if self.filled < self.length {
            return Err(Error::model(format!(
                "expected {} bytes of weights, but found {}",
                self.length, self.filled
            )));
        }
        Ok(Bytes::from_owner(Values(self.values)).slice(..self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_any_alignment() {
        let bytes = Bytes::from_owner(Values(vec![1.0_f32, 2.0, 3.0]));
        assert_eq!(Array::<f32>::new(&bytes)[..], [1.0, 2.0, 3.0]);
        let shifted: Vec<u8> = [0].into_iter().chain(bytes.iter().copied()).collect();
        let shifted = Bytes::from(shifted).slice(1..);
        assert_eq!(Array::<f32>::new(&shifted)[..], [1.0, 2.0, 3.0]);
        assert_eq!(Array::<f32>::new(&shifted.slice(..7)).len(), 1);
    }

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
