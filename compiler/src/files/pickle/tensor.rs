//! Tensors in storages.

use std::rc::Rc;

use kivu::{Error, Result};

/// A tensor's shape and its values, row-major.
pub type Values = (Vec<usize>, Vec<f32>);

/// Value type in a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F16,
    BF16,
    F32,
    F64,
    /// Buffers that graphs compute themselves; the width in bytes.
    Integer(u8),
}

impl Kind {
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Integer(bytes) => bytes.into(),
        }
    }

    pub fn is_integer(self) -> bool {
        matches!(self, Self::Integer(_))
    }

    fn read(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
            (Self::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F64, &[a, b, c, d, e, f, g, h]) => {
                f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32
            }
            _ => 0.0,
        }
    }
}

/// Values shared by one or more tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    pub kind: Kind,
    /// File name in the archive.
    pub key: Rc<str>,
    /// Number of values.
    pub len: usize,
}

/// A tensor with its values in a storage.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub storage: Storage,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl Tensor {
    /// Number of values; checks that each is in the storage.
    pub fn len(&self) -> Result<usize> {
        let invalid = || {
            Error::model(format!(
                "expected a tensor in its storage, but found the shape {:?} with the strides {:?} from {} of {}",
                self.shape, self.strides, self.offset, self.storage.len
            ))
        };
        let len = self
            .shape
            .iter()
            .try_fold(1_usize, |len, axis| len.checked_mul(*axis))
            .ok_or_else(invalid)?;
        if len == 0 {
            return Ok(0);
        }
        let last = self
            .shape
            .iter()
            .zip(&self.strides)
            .try_fold(self.offset, |last, (axis, stride)| {
                last.checked_add((axis - 1).checked_mul(*stride)?)
            });
        // A tensor with more values than its storage would repeat some.
        let is_inside = last.is_some_and(|last| last < self.storage.len) && len <= self.storage.len;
        if is_inside && self.shape.len() == self.strides.len() {
            Ok(len)
        } else {
            Err(invalid())
        }
    }

    /// Reads the values from a storage that contains all of them.
    pub fn read(&self, bytes: &[u8]) -> Values {
        let (kind, width) = (self.storage.kind, self.storage.kind.bytes());
        // In a tensor without values, other axes may have any length.
        if self.shape.contains(&0) {
            return (self.shape.clone(), Vec::new());
        }
        let len = self.shape.iter().product();
        let mut dense = 1;
        let is_dense = self
            .shape
            .iter()
            .zip(&self.strides)
            .rev()
            .all(|(axis, stride)| {
                let fits = *axis == 1 || *stride == dense;
                dense *= axis;
                fits
            });
        let mut values = Vec::with_capacity(len);
        if is_dense {
            let bytes = &bytes[self.offset * width..(self.offset + len) * width];
            values.extend(bytes.chunks_exact(width).map(|value| kind.read(value)));
        } else {
            let mut index = vec![0; self.shape.len()];
            for _ in 0..len {
                let strides = index.iter().zip(&self.strides);
                let at = self.offset + strides.map(|(index, stride)| index * stride).sum::<usize>();
                values.push(kind.read(&bytes[at * width..(at + 1) * width]));
                for (index, axis) in index.iter_mut().zip(&self.shape).rev() {
                    *index += 1;
                    if *index < *axis {
                        break;
                    }
                    *index = 0;
                }
            }
        }
        (self.shape.clone(), values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_without_values_may_have_axes_of_any_length() {
        let storage = Storage {
            kind: Kind::F32,
            key: "0".into(),
            len: 4,
        };
        let shape = vec![0, 1 << 40, 1 << 40];
        let tensor = Tensor {
            storage,
            offset: 0,
            shape: shape.clone(),
            strides: vec![1, 1 << 40, 1],
        };
        assert_eq!(tensor.len().ok(), Some(0));
        assert_eq!(tensor.read(&[0; 16]), (shape, vec![]));
    }
}
