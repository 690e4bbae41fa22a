//! Weight arrays: slices of a mapped file, or in memory.

use std::{marker::PhantomData, ops::Deref};

use bytemuck::Pod;
use bytes::Bytes;

/// An array of `T` inside bytes shared with other arrays.
#[derive(Clone, Debug)]
pub struct Array<T> {
    bytes: Bytes,
    element: PhantomData<T>,
}

impl<T: Pod + Send> Array<T> {
    /// Reads `bytes` as an array; copies them if they are not aligned for `T`. Bytes after the last whole element are
    /// ignored.
    pub fn new(bytes: &Bytes) -> Self {
        let bytes = bytes.slice(..bytes.len() - bytes.len() % size_of::<T>());
        if bytemuck::try_cast_slice::<u8, T>(&bytes).is_ok() {
            return Self {
                bytes,
                element: PhantomData,
            };
        }
        let read = |element: &[u8]| bytemuck::pod_read_unaligned(element);
        Self::from(
            bytes
                .chunks_exact(size_of::<T>())
                .map(read)
                .collect::<Vec<T>>(),
        )
    }

    /// Returns the underlying bytes.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl<T: Pod + Send> From<Vec<T>> for Array<T> {
    fn from(values: Vec<T>) -> Self {
        Self {
            bytes: Bytes::from_owner(Values(values)),
            element: PhantomData,
        }
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.bytes)
    }
}

/// A vector that owns the bytes and keeps its alignment.
struct Values<T>(Vec<T>);

impl<T: Pod> AsRef<[u8]> for Values<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
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
}
