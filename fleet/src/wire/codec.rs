//! The binary tensor format in KServe v2: little-endian, row-major, unpadded; strings with a length prefix.

use std::{borrow::Borrow, fmt::Display};

use half::{bf16, f16};
use serde_json::Value;

use super::messages::TensorMetadata;
use crate::failure::{Attempt, AttemptFailure};
use kivu_base::tensor::{ElementType, Elements, Tensor, read_byte_strings, read_numbers};
use kivu_core::backend::TensorSpec;

/// The element type that a KServe `datatype` is decoded to: other floats become FP32, other integers INT64. `None`
/// for UINT64 and unknown types.
pub fn element_type(datatype: &str) -> Option<ElementType> {
    match datatype {
        "FP16" | "BF16" | "FP32" | "FP64" => Some(ElementType::Fp32),
        "INT32" => Some(ElementType::Int32),
        "BOOL" | "INT8" | "INT16" | "INT64" | "UINT8" | "UINT16" | "UINT32" => {
            Some(ElementType::Int64)
        }
        "BYTES" => Some(ElementType::Bytes),
        _ => None,
    }
}

/// An output's contents.
pub enum Contents<'a> {
    Raw(&'a [u8]),
    /// A flat list, or nested lists.
    Json(Value),
}

/// Decodes the `wanted` outputs in a response, in that order, and checks them against the signature.
pub fn decode_outputs(
    outputs: &[(impl Borrow<TensorMetadata>, Contents<'_>)],
    wanted: &[TensorSpec],
) -> Attempt<Vec<Tensor>> {
    let decode_output = |spec: &TensorSpec| {
        let mut found = outputs
            .iter()
            .filter(|(output, _)| output.borrow().name == spec.name);
        match (found.next(), found.next()) {
            (Some((output, contents)), None) => decode(spec, output.borrow(), contents),
            (first, _) => Err(AttemptFailure::invalid_response(format!(
                "expected one output `{}`, but found {}",
                spec.name,
                first.map_or("none", |_| "several")
            ))),
        }
    };
    wanted.iter().map(decode_output).collect()
}

fn decode(spec: &TensorSpec, output: &TensorMetadata, contents: &Contents<'_>) -> Attempt<Tensor> {
    let elements = match contents {
        Contents::Raw(bytes) => decode_bytes(spec, &output.datatype, bytes)?,
        Contents::Json(data) => decode_json(spec, data)?,
    };
    let elements = match (spec.element_type, elements) {
        (ElementType::Fp32, Elements::Int64(values)) => exact_floats(spec, values)?,
        (ElementType::Fp32, Elements::Int32(values)) => exact_floats(spec, values)?,
        (_, elements) => elements,
    };
    let shape = output
        .shape
        .iter()
        .map(|side| usize::try_from(*side).ok())
        .collect::<Option<Vec<_>>>();
    let tensor = shape.and_then(|shape| Tensor::new(shape, elements).ok());
    let tensor =
        tensor.ok_or_else(|| invalid(spec, "a tensor", "contents that do not fit its shape"))?;
    if tensor.element_type() != spec.element_type {
        return Err(invalid(spec, spec.element_type, tensor.element_type()));
    }
    Ok(tensor)
}

fn decode_bytes(spec: &TensorSpec, datatype: &str, bytes: &[u8]) -> Attempt<Elements> {
    Ok(match datatype {
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
        "BOOL" | "UINT8" => Elements::Int64(numbers(bytes, |[byte]| byte.into())?),
        "BYTES" => Elements::Bytes(strings(bytes)?),
        other => return Err(invalid(spec, spec.element_type, other)),
    })
}

fn decode_json(spec: &TensorSpec, data: &Value) -> Attempt<Elements> {
    fn read<'a, T>(
        data: &'a Value,
        element: fn(&'a Value) -> Option<T>,
        into: &mut Vec<T>,
    ) -> Option<()> {
        match data {
            Value::Array(list) => list.iter().try_for_each(|data| read(data, element, into)),
            value => element(value).map(|value| into.push(value)),
        }
    }
    fn all<'a, T>(data: &'a Value, element: fn(&'a Value) -> Option<T>) -> Option<Vec<T>> {
        let mut elements = Vec::new();
        read(data, element, &mut elements).map(|()| elements)
    }
    let elements = match spec.element_type {
        ElementType::Fp32 => all(data, |value| Some(value.as_f64()? as f32)).map(Elements::Fp32),
        ElementType::Int32 => {
            all(data, |value| i32::try_from(value.as_i64()?).ok()).map(Elements::Int32)
        }
        ElementType::Int64 => all(data, Value::as_i64).map(Elements::Int64),
        ElementType::Bytes => all(data, |value| Some(value.as_str()?.into())).map(Elements::Bytes),
    };
    elements.ok_or_else(|| invalid(spec, spec.element_type, "other values"))
}

/// FP32 represents integers up to this one exactly.
const MAX_EXACT_INTEGER: u64 = 1 << 24;

/// Converts integers to FP32: Triton passes on integers from a Python model that is configured for FP32.
fn exact_floats(spec: &TensorSpec, values: Vec<impl Copy + Into<i64>>) -> Attempt<Elements> {
    let is_exact = |value: i64| value.unsigned_abs() <= MAX_EXACT_INTEGER;
    let values = values
        .into_iter()
        .map(Into::into)
        .map(|value| is_exact(value).then_some(value as f32));
    let values: Option<Vec<f32>> = values.collect();
    values
        .map(Elements::Fp32)
        .ok_or_else(|| invalid(spec, spec.element_type, "larger integers"))
}

fn invalid(spec: &TensorSpec, expected: impl Display, found: impl Display) -> AttemptFailure {
    let details = format!("expected `{}` as {expected}, but found {found}", spec.name);
    AttemptFailure::invalid_response(details)
}

fn numbers<const SIZE: usize, T>(
    bytes: &[u8],
    decode: impl Fn([u8; SIZE]) -> T,
) -> Attempt<Vec<T>> {
    let truncated = || AttemptFailure::invalid_response("a tensor ends inside a number");
    read_numbers(bytes, decode).ok_or_else(truncated)
}

fn strings(bytes: &[u8]) -> Attempt<Vec<Vec<u8>>> {
    let truncated = || AttemptFailure::invalid_response("a tensor ends inside a string");
    read_byte_strings(bytes).ok_or_else(truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(
        element_type: ElementType,
        datatype: &str,
        shape: &[i64],
        contents: Contents<'_>,
    ) -> Attempt<Tensor> {
        let output = TensorMetadata {
            name: "t".into(),
            datatype: datatype.into(),
            shape: shape.into(),
        };
        let spec = TensorSpec::new("t", element_type, [-1]);
        Ok(decode_outputs(&[(output, contents)], &[spec])?.remove(0))
    }

    #[test]
    fn encoding_and_decoding_round_trips() {
        for elements in [
            Elements::Fp32(vec![1.5, -2.0]),
            Elements::Int32(vec![1, -2]),
            Elements::Int64(vec![1, -2]),
            Elements::Bytes(vec!["é".into(), Vec::new()]),
        ] {
            let tensor = Tensor::new(vec![2, 1], elements).unwrap();
            let (kind, bytes) = (tensor.element_type(), tensor.elements().to_bytes());
            let decoded = |shape: [i64; 2], bytes| {
                decoded(kind, &kind.to_string(), &shape, Contents::Raw(bytes))
            };
            assert_eq!(decoded([2, 1], &bytes).unwrap(), tensor);
            assert!(
                decoded([2, 2], &bytes).is_err(),
                "too few elements for the shape"
            );
            assert!(decoded([2, 1], &bytes[1..]).is_err(), "a byte is missing");
        }
    }

    #[test]
    fn an_output_is_there_once() {
        let output = || TensorMetadata {
            name: "t".into(),
            datatype: "FP32".into(),
            shape: vec![1],
        };
        let spec = [TensorSpec::new("t", ElementType::Fp32, [-1])];
        let decoded = |count: usize| {
            let outputs: Vec<_> = (0..count)
                .map(|_| (output(), Contents::Raw(&[0; 4])))
                .collect();
            decode_outputs(&outputs, &spec)
        };
        assert!(decoded(1).is_ok());
        insta::assert_snapshot!(decoded(0).unwrap_err(), @"InvalidResponse: expected one output `t`, but found none");
        insta::assert_snapshot!(decoded(2).unwrap_err(), @"InvalidResponse: expected one output `t`, but found several");
    }

    #[test]
    fn other_datatypes_are_converted() {
        use ElementType::{Bytes, Fp32, Int64};
        let half = f16::from_f32(0.5).to_le_bytes();
        let tensor = decoded(Fp32, "FP16", &[1], Contents::Raw(&half)).unwrap();
        assert_eq!(tensor.as_fp32(), Some(&[0.5][..]));
        let json = Contents::Json(serde_json::json!([[0.5], [1]]));
        assert_eq!(
            decoded(Fp32, "FP32", &[2], json).unwrap().as_fp32(),
            Some(&[0.5, 1.0][..])
        );
        let integers = decoded(Fp32, "INT64", &[1], Contents::Raw(&7_i64.to_le_bytes())).unwrap();
        assert_eq!(
            integers.as_fp32(),
            Some(&[7.0][..]),
            "a Python model may return other types than it declares"
        );
        let refused =
            decoded(Fp32, "INT64", &[1], Contents::Raw(&i64::MAX.to_le_bytes())).unwrap_err();
        insta::assert_snapshot!(refused, @"InvalidResponse: expected `t` as FP32, but found larger integers");
        let refused = decoded(Int64, "FP32", &[1], Contents::Raw(&[0; 4])).unwrap_err();
        insta::assert_snapshot!(refused, @"InvalidResponse: expected `t` as INT64, but found FP32");
        assert!(decoded(Bytes, "BYTES", &[1], Contents::Raw(&[255; 5])).is_err());
    }
}
