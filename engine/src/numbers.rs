//! Aligned buffers.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable, must_cast_slice, must_cast_slice_mut};

use crate::kernel::{LANES, Lanes};

/// A `Vec<f32>` that starts with a cache line: 16 numbers are in one line if the first one's index is a multiple of 16.
#[derive(Debug, Default)]
pub struct Numbers {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line(Lanes);

impl Numbers {
    /// As [`Vec::resize`].
    #[inline(always)]
    pub fn resize(&mut self, len: usize, value: f32) {
        let first = self.len.min(len);
        self.set_len(len);
        self[first..].fill(value);
    }

    /// Changes the length; new numbers have any values.
    #[inline(always)]
    fn set_len(&mut self, len: usize) {
        self.lines.resize(len.div_ceil(LANES), Line::default());
        self.len = len;
    }

    /// As [`Vec::clear`].
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// As [`Vec::extend_from_slice`].
    #[inline(always)]
    pub fn extend_from_slice(&mut self, numbers: &[f32]) {
        let first = self.len;
        self.set_len(first + numbers.len());
        self[first..].copy_from_slice(numbers);
    }
}

impl Deref for Numbers {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        &must_cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Numbers {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut must_cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl FromIterator<f32> for Numbers {
    fn from_iter<I: IntoIterator<Item = f32>>(numbers: I) -> Self {
        let mut all = Self::default();
        all.extend_from_slice(&numbers.into_iter().collect::<Vec<_>>());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_and_change_as_a_vector_does() {
        let (mut numbers, mut vector) = (Numbers::default(), Vec::new());
        for (len, value) in [
            (3, 1.0),
            (40, 2.0),
            (17, 3.0),
            (18, 4.0),
            (0, 5.0),
            (1000, 6.0),
            (5, 7.0),
        ] {
            numbers.resize(len, value);
            vector.resize(len, value);
            numbers.extend_from_slice(&[8.0; 3]);
            vector.extend_from_slice(&[8.0; 3]);
            assert_eq!(numbers[..], vector[..]);
            assert!(numbers.as_ptr().addr().is_multiple_of(64));
        }
        numbers.clear();
        assert!(numbers.is_empty());
        assert_eq!((0..20).map(|at| at as f32).collect::<Numbers>()[19], 19.0);
    }
}
