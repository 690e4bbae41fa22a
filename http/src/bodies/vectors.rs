//! Vector form in responses: numbers in a type, or base64 of their bytes.

use base64::{Engine, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kivu::{
    pipeline::embedding::vectors::{Conversion, StoredVector, VectorType},
    task::embedding::Embedder,
};

/// A number type, or `base64`: the bytes of 32-bit floats, or of another type if one is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    Float,
    Base64,
    Int8,
    Uint8,
    Binary,
    Ubinary,
}

impl EncodingFormat {
    /// Number of formats.
    pub const COUNT: usize = 6;

    /// The name in requests.
    pub fn name(self) -> &'static str {
        self.vector_type().map_or("base64", VectorType::name)
    }

    /// Number type, unless it is `float`, which means numbers of any type beside `output_dtype`.
    pub fn packed_type(self) -> Option<VectorType> {
        self.vector_type()
            .filter(|vector_type| *vector_type != VectorType::Float)
    }

    /// Number type; `None` for base64, which several types have.
    pub fn vector_type(self) -> Option<VectorType> {
        match self {
            Self::Float => Some(VectorType::Float),
            Self::Base64 => None,
            Self::Int8 => Some(VectorType::Int8),
            Self::Uint8 => Some(VectorType::Uint8),
            Self::Binary => Some(VectorType::Binary),
            Self::Ubinary => Some(VectorType::Ubinary),
        }
    }
}

/// Numbers, or little-endian 32-bit floats or bytes as base64.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Vector {
    Numbers(#[schemars(with = "Vec<f32>")] StoredVector),
    Base64(String),
}

/// Vector form in a response.
pub struct Form {
    conversion: Conversion,
    is_base64: bool,
}

impl Form {
    /// Numbers as the model returns them.
    pub const FLOATS: Self = Self {
        conversion: Conversion::Float,
        is_base64: false,
    };

    /// The vectors of an embedder, in base64 if the format says so.
    pub fn new(embedder: &Embedder, format: Option<EncodingFormat>) -> Self {
        let is_base64 = format == Some(EncodingFormat::Base64);
        Self {
            conversion: embedder.conversion.clone(),
            is_base64,
        }
    }

    /// A lower bound for a vector's size in a response, in bytes. Numbers are decimal, and those of floats take eleven
    /// bytes on average.
    pub fn min_bytes(&self, dimensions: usize) -> usize {
        let (bytes, numbers) = match &self.conversion {
            Conversion::Float => (4 * dimensions, 7 * dimensions),
            Conversion::Integers { .. } => (dimensions, 2 * dimensions),
            Conversion::Bits { .. } => (dimensions / 8, dimensions / 8 * 2),
        };
        match self.is_base64 {
            true => bytes / 3 * 4,
            false => numbers,
        }
    }

    pub fn apply(&self, vector: Vec<f32>) -> Vector {
        let vector = self.conversion.convert(vector);
        match self.is_base64 {
            true => Vector::Base64(BASE64_STANDARD.encode(vector.bytes())),
            false => Vector::Numbers(vector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_encodes_little_endian_numbers() {
        let form = |conversion| Form {
            conversion,
            is_base64: true,
        };
        let text = |form: Form, vector| serde_json::to_value(form.apply(vector)).unwrap();
        assert_eq!(
            text(form(Conversion::Float), vec![1.0, -2.0]),
            "AACAPwAAAMA="
        );
        assert_eq!(
            text(form(Conversion::Bits { signed: true }), vec![1.0; 8]),
            "fw=="
        );
    }
}
