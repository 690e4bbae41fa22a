//! Stored vectors: int8 and binary quantization, with the arithmetic of sentence-transformers' `quantize_embeddings`.

use std::{fmt, iter};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pooling::normalize;
use kivu_base::{Error, Result, tensor::read_numbers};

/// Number format for vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VectorType {
    /// 32-bit floating point.
    #[default]
    Float,
    /// Integers from -128 to 127, in 255 steps between two calibrated limits.
    Int8,
    /// Like `int8`, but from 0 to 255.
    Uint8,
    /// A bit for each dimension, set for values above 0, in bytes from -128 to 127, the first bit highest.
    Binary,
    /// Like `binary`, but bytes from 0 to 255.
    Ubinary,
}

impl VectorType {
    /// The name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Binary => "binary",
            Self::Ubinary => "ubinary",
        }
    }
}

impl fmt::Display for VectorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A vector in the format of a [`VectorType`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StoredVector {
    /// Values of [`VectorType::Float`].
    Float(Vec<f32>),
    /// Bytes of [`VectorType::Int8`] and [`VectorType::Binary`].
    Int8(Vec<i8>),
    /// Bytes of [`VectorType::Uint8`] and [`VectorType::Ubinary`].
    Uint8(Vec<u8>),
}

impl StoredVector {
    /// The values as little-endian bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Float(values) => values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Int8(values) => values.iter().map(|value| value.cast_unsigned()).collect(),
            Self::Uint8(values) => values.clone(),
        }
    }
}

/// Conversion from vectors of length 1 to a [`VectorType`].
#[derive(Clone, Debug, PartialEq)]
pub enum Conversion {
    /// Keeps [`VectorType::Float`].
    Float,
    /// Makes [`VectorType::Binary`] and [`VectorType::Ubinary`].
    Bits {
        /// Whether the bytes are signed.
        signed: bool,
    },
    /// Makes [`VectorType::Int8`] and [`VectorType::Uint8`].
    Integers {
        /// Whether the integers are signed.
        signed: bool,
        /// First step's value and step size, per dimension.
        steps: Vec<(f32, f32)>,
    },
}

impl Conversion {
    /// Converts vectors with `size` values to a type, which `ranges` must allow.
    pub fn new(wanted: VectorType, size: usize, ranges: Option<&Ranges>) -> Result<Self> {
        let signed = matches!(wanted, VectorType::Int8 | VectorType::Binary);
        match wanted {
            VectorType::Float => Ok(Self::Float),
            VectorType::Binary | VectorType::Ubinary => match size % 8 {
                0 => Ok(Self::Bits { signed }),
                _ => Err(Error::invalid(format!(
                    "expected a number of dimensions that 8 divides for vectors of type `{wanted}`, but found {size}"
                ))),
            },
            VectorType::Int8 | VectorType::Uint8 => {
                let ranges = ranges.ok_or_else(|| {
                    Error::invalid(format!(
                        "expected a bundle with calibrated ranges for vectors of type `{wanted}`, \
                         but found none"
                    ))
                    .with_hint("build the bundle again")
                })?;
                let steps = ranges.steps(size).ok_or_else(|| {
                    Error::invalid(format!(
                        "expected {} dimensions or a multiple of {SIZE_STEP} for vectors of type `{wanted}`, but found \
                         {size}",
                        ranges.dimensions
                    ))
                })?;
                Ok(Self::Integers { signed, steps })
            }
        }
    }

    /// Converts a vector. Values beyond the calibrated range become its first or last step.
    pub fn convert(&self, vector: Vec<f32>) -> StoredVector {
        let (signed, bytes): (_, Vec<u8>) = match self {
            Self::Float => return StoredVector::Float(vector),
            Self::Bits { signed } => {
                let byte = |bits: &[f32]| {
                    bits.iter()
                        .fold(0, |byte, bit| byte << 1 | u8::from(*bit > 0.0))
                };
                (signed, vector.chunks(8).map(byte).collect())
            }
            Self::Integers { signed, steps } => {
                let step = |(value, (start, step)): (&f32, &(f32, f32))| {
                    // The range equals `u8`'s, and NaN becomes 0.
                    ((value - start) / step).floor().clamp(0.0, 255.0) as u8
                };
                (signed, vector.iter().zip(steps).map(step).collect())
            }
        };
        match signed {
            // Subtracting 128 flips the highest bit.
            true => StoredVector::Int8(
                bytes
                    .into_iter()
                    .map(|byte| (byte ^ 0x80).cast_signed())
                    .collect(),
            ),
            false => StoredVector::Uint8(bytes),
        }
    }
}

/// Lower and upper limit per dimension, for the full and for truncated dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranges {
    dimensions: usize,
    /// For each dimension count in [`sizes`], the lower, then the upper limits.
    values: Vec<f32>,
}

/// Vectors may be truncated to multiples of this many dimensions.
const SIZE_STEP: usize = 32;

/// Dimension counts that have ranges.
fn sizes(dimensions: usize) -> impl Iterator<Item = usize> {
    (1..)
        .map(|count| count * SIZE_STEP)
        .take_while(move |size| *size < dimensions)
        .chain([dimensions])
}

impl Ranges {
    /// Limits for sample vectors after truncation and normalization; all must have the same dimensions.
    ///
    /// They are the same for all dimensions, so that integers are proportional to values, and cosine similarities and
    /// the order of distances remain. The minimum and maximum of each dimension, as in sentence-transformers, would
    /// stretch and move the dimensions against each other.
    pub fn of(vectors: &[Vec<f32>]) -> Self {
        let dimensions = vectors.first().map_or(0, Vec::len);
        let mut values = Vec::new();
        for size in sizes(dimensions) {
            let mut largest = 0.0_f32;
            for vector in vectors {
                let mut vector = vector[..size].to_vec();
                normalize(&mut vector);
                largest = vector
                    .iter()
                    .fold(largest, |largest, value| largest.max(value.abs()));
            }
            // The largest value becomes 127. Steps begin half a step below, so that rounding down rounds to the nearest.
            let step = largest / 127.0;
            let limits = [-128.5, 126.5].map(|steps| steps * step);
            values.extend(
                limits
                    .into_iter()
                    .flat_map(|limit| iter::repeat_n(limit, size)),
            );
        }
        Self { dimensions, values }
    }

    /// Reads a model's ranges file.
    pub fn from_bytes(bytes: &[u8], dimensions: usize) -> Result<Self> {
        // A manifest may state any dimension count: the sum has an addend per 32 dimensions.
        let size = |size: usize| 2 * size * size_of::<f32>();
        if dimensions > bytes.len() || sizes(dimensions).map(size).sum::<usize>() != bytes.len() {
            return Err(Error::model(format!(
                "expected the ranges of vectors of {dimensions} values, but found {} bytes",
                bytes.len()
            ))
            .with_hint("build the bundle again"));
        }
        let values = read_numbers(bytes, f32::from_le_bytes).unwrap_or_default();
        Ok(Self { dimensions, values })
    }

    /// File contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    /// Start and step for each of the first `size` dimensions; `None` if there are no ranges for this size.
    fn steps(&self, size: usize) -> Option<Vec<(f32, f32)>> {
        let before: usize = sizes(self.dimensions)
            .take_while(|known| *known < size)
            .map(|known| 2 * known)
            .sum();
        sizes(self.dimensions).find(|known| *known == size)?;
        let (lower, upper) = self.values.get(before..before + 2 * size)?.split_at(size);
        let step = |(lower, upper): (&f32, &f32)| {
            let step = (upper - lower) / 255.0;
            (*lower, if step == 0.0 { 1.0 } else { step })
        };
        Some(lower.iter().zip(upper).map(step).collect())
    }
}
