//! Graph constants, whose data is in the graph or in another file.

use std::collections::BTreeMap;

use bytemuck::Pod;
use bytes::Bytes;

use kivu_engine::{array::Array, floats::Floats};

use super::{Reader, unsupported};
use kivu_base::{
    Error, Result,
    onnx_proto::{EXTERNAL, TensorProto, data_type},
};

impl<'a> Reader<'a> {
    pub fn tensor(&self, name: &str) -> Result<&'a TensorProto> {
        let tensor = self.constants.get(name).copied();
        tensor.ok_or_else(|| unsupported(&format!("`{name}`, which is not a constant")))
    }

    /// Shape of a constant matrix.
    pub fn shape(&self, name: &str) -> Result<(usize, usize)> {
        let shape = &self.tensor(name)?.dims;
        let side = |side: i64| usize::try_from(side).ok();
        let found = if let [rows, width] = shape[..] {
            side(rows).zip(side(width))
        } else {
            None
        };
        let found = found.filter(|(rows, width)| rows.checked_mul(*width).is_some());
        found.ok_or_else(|| unsupported(&format!("`{name}` of shape {shape:?} as a matrix")))
    }

    /// Length of a constant's first axis.
    pub fn length(&self, name: &str) -> Result<usize> {
        let first = self.tensor(name)?.dims.first();
        Ok(first.map_or(0, |side| usize::try_from(*side).unwrap_or(0)))
    }

    pub fn scalar<T: TryFrom<i64>>(&self, name: &str) -> Option<T> {
        self.integers(name)?.into_iter().next()
    }

    /// INT64 numbers, which must all be of this type.
    pub fn integers<T: TryFrom<i64>>(&self, name: &str) -> Option<Vec<T>> {
        let tensor = self
            .constants
            .get(name)
            .filter(|tensor| tensor.data_type == data_type::INT64)?;
        let (numbers, _) = tensor.raw_data.as_chunks();
        let number = |bytes: &[u8; 8]| i64::from_le_bytes(*bytes).try_into().ok();
        numbers.iter().map(number).collect()
    }

    /// A constant with `length` numbers, in any of the types of [`Floats`].
    pub fn floats(&self, name: &str, length: usize) -> Result<Floats> {
        Ok(match self.tensor(name)?.data_type {
            data_type::FLOAT => Floats::F32(self.array(name, length)?),
            data_type::FLOAT16 => Floats::F16(self.array(name, length)?),
            data_type::BFLOAT16 => Floats::Bf16(self.array(name, length)?),
            // ONNX Runtime's graphs in int8 have such lookups.
            _ => return Err(unsupported(&format!("the type of `{name}`"))),
        })
    }

    /// A constant with `length` elements; `None` for an input without a name.
    pub fn optional_array<T: Pod + Send>(
        &self,
        name: &str,
        length: usize,
    ) -> Result<Option<Array<T>>> {
        match name {
            "" => Ok(None),
            name => self.array(name, length).map(Some),
        }
    }

    /// A constant with `length` elements.
    pub fn array<T: Pod + Send>(&self, name: &str, length: usize) -> Result<Array<T>> {
        let tensor = self.tensor(name)?;
        let bytes = data(tensor, self.files)?;
        if bytes.len() != length.saturating_mul(size_of::<T>()) {
            return Err(Error::model(format!(
                "expected `{name}` of {length} elements of {} bytes, but found {} bytes",
                size_of::<T>(),
                bytes.len()
            )));
        }
        Ok(Array::new(&bytes))
    }
}

pub fn data(tensor: &TensorProto, files: &BTreeMap<String, Bytes>) -> Result<Bytes> {
    if tensor.data_location != EXTERNAL {
        return Ok(tensor.raw_data.clone());
    }
    let number = |key: &str| tensor.external(key)?.parse::<usize>().ok();
    let file = tensor.external("location").and_then(|name| files.get(name));
    let part =
        file.zip(number("offset"))
            .zip(number("length"))
            .and_then(|((file, offset), length)| {
                let end = offset
                    .checked_add(length)
                    .filter(|end| *end <= file.len())?;
                Some(file.slice(offset..end))
            });
    part.ok_or_else(|| {
        Error::model(format!(
            "expected the data of `{}` in a file of the bundle, but found none",
            tensor.name
        ))
    })
}
