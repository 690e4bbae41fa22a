//! Tensors as KServe v2 sends them: little-endian, row-major, nothing in between; strings after their length.

use bytes::Bytes;
use half::{bf16, f16};
use serde_json::Value;

use super::failure::Failure;
use crate::{
    backend::TensorSpec,
    tensor::{ElementType, Elements, Tensor},
};

/// The type that elements called `datatype` are read as: half and double precision as FP32, short integers
/// as INT64.
pub(super) fn element_type(datatype: &str) -> Option<ElementType> {
    match datatype {
        "FP16" | "BF16" | "FP32" | "FP64" => Some(ElementType::Fp32),
        "INT32" => Some(ElementType::Int32),
        "BOOL" | "INT8" | "INT16" | "INT64" | "UINT8" | "UINT16" | "UINT32" => Some(ElementType::Int64),
        "BYTES" => Some(ElementType::Bytes),
        _ => None,
    }
}

/// The bytes of a tensor.
pub(super) fn encode(tensor: &Tensor) -> Bytes {
    match tensor.elements() {
        Elements::Fp32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Elements::Int32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Elements::Int64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Elements::Bytes(values) => {
            let mut bytes = Vec::with_capacity(values.iter().map(|value| value.len() + 4).sum());
            for value in values {
                // No text comes near the 4 GiB that a length can say.
                bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
                bytes.extend_from_slice(value);
            }
            bytes.into()
        }
    }
}

/// The tensor that `bytes` hold, checked against what the model declares.
pub(super) fn decode(
    spec: &TensorSpec,
    datatype: &str,
    shape: &[i64],
    bytes: &[u8],
) -> Result<Tensor, Failure> {
    let elements = match datatype {
        "FP32" => Elements::Fp32(numbers(bytes, f32::from_le_bytes)?),
        "FP16" => Elements::Fp32(numbers(bytes, |bytes| f16::from_le_bytes(bytes).to_f32())?),
        "BF16" => Elements::Fp32(numbers(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32())?),
        "FP64" => Elements::Fp32(numbers(bytes, |bytes| f64::from_le_bytes(bytes) as f32)?),
        "INT32" => Elements::Int32(numbers(bytes, i32::from_le_bytes)?),
        "INT64" => Elements::Int64(numbers(bytes, i64::from_le_bytes)?),
        "UINT32" => Elements::Int64(numbers(bytes, |bytes| u32::from_le_bytes(bytes).into())?),
        "INT16" => Elements::Int64(numbers(bytes, |bytes| i16::from_le_bytes(bytes).into())?),
        "UINT16" => Elements::Int64(numbers(bytes, |bytes| u16::from_le_bytes(bytes).into())?),
        "INT8" => Elements::Int64(numbers(bytes, |bytes| i8::from_le_bytes(bytes).into())?),
        "BOOL" | "UINT8" => Elements::Int64(bytes.iter().map(|byte| i64::from(*byte)).collect()),
        "BYTES" => Elements::Bytes(strings(bytes)?),
        other => return Err(unreadable(spec, other)),
    };
    assemble(spec, shape, elements)
}

/// The same of elements that came as JSON, in one list or in lists of lists.
pub(super) fn decode_json(spec: &TensorSpec, shape: &[i64], data: &Value) -> Result<Tensor, Failure> {
    let mut values = Vec::new();
    flatten(data, &mut values);
    let wrong = || Failure::garbled(format!("`{}` is not {}", spec.name, spec.element_type));
    let integers = || values.iter().map(|value| value.as_i64()).collect::<Option<Vec<_>>>().ok_or_else(wrong);
    let elements = match spec.element_type {
        ElementType::Fp32 => {
            let floats = values.iter().map(|value| value.as_f64().map(|value| value as f32));
            Elements::Fp32(floats.collect::<Option<_>>().ok_or_else(wrong)?)
        }
        ElementType::Int64 => Elements::Int64(integers()?),
        ElementType::Int32 => Elements::Int32(integers()?.into_iter().map(|value| value as i32).collect()),
        ElementType::Bytes => {
            let texts = values.iter().map(|value| value.as_str().map(|text| text.as_bytes().to_vec()));
            Elements::Bytes(texts.collect::<Option<_>>().ok_or_else(wrong)?)
        }
    };
    assemble(spec, shape, elements)
}

fn flatten<'a>(data: &'a Value, values: &mut Vec<&'a Value>) {
    match data {
        Value::Array(list) => list.iter().for_each(|data| flatten(data, values)),
        value => values.push(value),
    }
}

fn assemble(spec: &TensorSpec, shape: &[i64], elements: Elements) -> Result<Tensor, Failure> {
    let lies = || Failure::garbled(format!("`{}` has not the size that its shape says", spec.name));
    let shape: Option<Vec<usize>> = shape.iter().map(|side| usize::try_from(*side).ok()).collect();
    let elements = match (spec.element_type, whole_numbers(&elements)) {
        (ElementType::Fp32, Some(values)) => Elements::Fp32(values.ok_or_else(|| too_large(spec))?),
        _ => elements,
    };
    let tensor = Tensor::new(shape.ok_or_else(lies)?, elements).map_err(|_| lies())?;
    if tensor.element_type() != spec.element_type {
        return Err(unreadable(spec, &tensor.element_type().to_string()));
    }
    Ok(tensor)
}

/// The largest whole number below which FP32 has all of them.
const LARGEST_WHOLE: u64 = 1 << 24;

/// Whole numbers as FP32 has them, an inner nothing where it has not all of them: what a model in Python answers
/// may well be integers where its configuration says FP32, and Triton passes them on as they are.
fn whole_numbers(elements: &Elements) -> Option<Option<Vec<f32>>> {
    let exact = |value: i64| (value.unsigned_abs() <= LARGEST_WHOLE).then_some(value as f32);
    match elements {
        Elements::Int64(values) => Some(values.iter().map(|value| exact(*value)).collect()),
        Elements::Int32(values) => Some(values.iter().map(|value| exact((*value).into())).collect()),
        Elements::Fp32(_) | Elements::Bytes(_) => None,
    }
}

fn too_large(spec: &TensorSpec) -> Failure {
    Failure::garbled(format!("expected `{}` as {}, but found larger integers", spec.name, spec.element_type))
}

fn unreadable(spec: &TensorSpec, found: &str) -> Failure {
    Failure::garbled(format!("expected `{}` as {}, but found {found}", spec.name, spec.element_type))
}

fn numbers<const SIZE: usize, T>(bytes: &[u8], read: impl Fn([u8; SIZE]) -> T) -> Result<Vec<T>, Failure> {
    let (numbers, rest) = bytes.as_chunks::<SIZE>();
    if rest.is_empty() {
        Ok(numbers.iter().copied().map(read).collect())
    } else {
        Err(Failure::garbled("a tensor ends inside a number"))
    }
}

fn strings(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut strings = Vec::new();
    while !bytes.is_empty() {
        let cut = || Failure::garbled("a tensor ends inside a string");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (string, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        strings.push(string.to_vec());
        bytes = rest;
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for elements in [
            Elements::Fp32(vec![1.5, -2.0]),
            Elements::Int32(vec![1, -2]),
            Elements::Int64(vec![1, -2]),
            Elements::Bytes(vec!["é".into(), Vec::new()]),
        ] {
            let tensor = Tensor::new(vec![2, 1], elements).unwrap();
            let spec = TensorSpec::new("t", tensor.element_type(), [-1, 1]);
            let datatype = tensor.element_type().to_string();
            let bytes = encode(&tensor);
            assert_eq!(decode(&spec, &datatype, &[2, 1], &bytes).unwrap(), tensor);
            assert!(decode(&spec, &datatype, &[2, 2], &bytes).is_err(), "a shape that lies");
            assert!(decode(&spec, &datatype, &[2, 1], &bytes[1..]).is_err(), "a byte is missing");
        }
    }

    #[test]
    fn other_widths_are_read_as_ours() {
        let spec = TensorSpec::new("t", ElementType::Fp32, [-1]);
        let half = f16::from_f32(0.5).to_le_bytes();
        assert_eq!(decode(&spec, "FP16", &[1], &half).unwrap().as_fp32(), Some(&[0.5][..]));
        let json = serde_json::json!([[0.5], [1]]);
        assert_eq!(decode_json(&spec, &[2], &json).unwrap().as_fp32(), Some(&[0.5, 1.0][..]));
        let integers = decode(&spec, "INT64", &[1], &7_i64.to_le_bytes()).unwrap();
        assert_eq!(
            integers.as_fp32(),
            Some(&[7.0][..]),
            "what a program answers is not always what it declares"
        );
        let refused = decode(&spec, "INT64", &[1], &i64::MAX.to_le_bytes()).unwrap_err();
        insta::assert_snapshot!(refused, @"Garbled: expected `t` as FP32, but found larger integers");
        let refused =
            decode(&TensorSpec::new("t", ElementType::Int64, [-1]), "FP32", &[1], &[0; 4]).unwrap_err();
        insta::assert_snapshot!(refused, @"Garbled: expected `t` as INT64, but found FP32");
        assert!(decode(&TensorSpec::new("t", ElementType::Bytes, [-1]), "BYTES", &[1], &[255; 5]).is_err());
    }
}
