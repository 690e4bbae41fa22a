//! Tensors: model inputs and outputs.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Element type, by its name in KServe v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum ElementType {
    /// 32-bit floating point.
    Fp32,
    /// 32-bit signed integer.
    Int32,
    /// 64-bit signed integer.
    Int64,
    /// Byte strings: texts and labels.
    Bytes,
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Tensor elements, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Numbers in 32-bit floating point.
    Fp32(Vec<f32>),
    /// 32-bit signed integers.
    Int32(Vec<i32>),
    /// 64-bit signed integers.
    Int64(Vec<i64>),
    /// Byte strings.
    Bytes(Vec<Vec<u8>>),
}

impl Elements {
    fn len(&self) -> usize {
        match self {
            Self::Fp32(values) => values.len(),
            Self::Int32(values) => values.len(),
            Self::Int64(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }

    /// Element type.
    pub fn element_type(&self) -> ElementType {
        match self {
            Self::Fp32(_) => ElementType::Fp32,
            Self::Int32(_) => ElementType::Int32,
            Self::Int64(_) => ElementType::Int64,
            Self::Bytes(_) => ElementType::Bytes,
        }
    }

    /// Elements in KServe v2's binary format: little-endian and unpadded; byte strings after their length.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Fp32(values) => values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Int32(values) => values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Int64(values) => values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Bytes(values) => {
                let mut bytes =
                    Vec::with_capacity(values.iter().map(|value| value.len() + 4).sum());
                for value in values {
                    // Request limits are far below 4 GiB.
                    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(value);
                }
                bytes
            }
        }
    }
}

/// Reads numbers with `SIZE` bytes each in the format of [`Elements::to_bytes`]; `None` if the last one is incomplete.
pub fn read_numbers<const SIZE: usize, T>(
    bytes: &[u8],
    read: impl Fn([u8; SIZE]) -> T,
) -> Option<Vec<T>> {
    let (numbers, rest) = bytes.as_chunks::<SIZE>();
    rest.is_empty()
        .then(|| numbers.iter().copied().map(read).collect())
}

/// Reads byte strings in the format of [`Elements::to_bytes`]; `None` if the last one is incomplete.
pub fn read_byte_strings(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (string, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        strings.push(string.to_vec());
        bytes = rest;
    }
    Some(strings)
}

/// A dense, row-major tensor.
///
/// - The product of `shape` equals the element count: [`Tensor::new`] checks it once.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    elements: Elements,
}

impl Tensor {
    /// Creates a tensor with `shape`; fails if the element count differs.
    pub fn new(shape: Vec<usize>, elements: Elements) -> Result<Self> {
        let expected = shape
            .iter()
            .try_fold(1_usize, |product, side| product.checked_mul(*side));
        if expected != Some(elements.len()) {
            return Err(Error::invalid(format!(
                "expected the elements of shape {shape:?}, but found {} elements",
                elements.len()
            )));
        }
        Ok(Self { shape, elements })
    }

    /// An integer tensor, such as token ids, in the element type that the model takes.
    pub fn integers(
        element_type: ElementType,
        shape: impl Into<Vec<usize>>,
        values: Vec<i64>,
    ) -> Result<Self> {
        let elements = match element_type {
            ElementType::Int64 => Elements::Int64(values),
            // Token ids, masks and types are below 2³¹.
            ElementType::Int32 => {
                Elements::Int32(values.into_iter().map(|value| value as i32).collect())
            }
            ElementType::Fp32 => {
                Elements::Fp32(values.into_iter().map(|value| value as f32).collect())
            }
            ElementType::Bytes => {
                return Err(Error::invalid(
                    "expected a tensor of numbers, but found one of BYTES",
                ));
            }
        };
        Self::new(shape.into(), elements)
    }

    /// Axis lengths.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, row-major.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// Element type.
    pub fn element_type(&self) -> ElementType {
        self.elements.element_type()
    }

    /// The elements, if they are FP32.
    pub fn as_fp32(&self) -> Option<&[f32]> {
        match &self.elements {
            Elements::Fp32(values) => Some(values),
            _ => None,
        }
    }

    /// The elements, if they are BYTES.
    pub fn as_bytes(&self) -> Option<&[Vec<u8>]> {
        match &self.elements {
            Elements::Bytes(values) => Some(values),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_does_not_match_the_elements_is_refused() {
        let error = Tensor::new(vec![2, 3], Elements::Fp32(vec![0.0; 5])).unwrap_err();
        insta::assert_snapshot!(error, @"expected the elements of shape [2, 3], but found 5 elements");
        assert!(
            Tensor::new(vec![usize::MAX, 2], Elements::Fp32(vec![])).is_err(),
            "the product overflows"
        );
    }
}
