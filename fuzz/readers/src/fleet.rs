//! Readers for a server's responses.

use bytes::Bytes;
use http::{Response, StatusCode};
use prost::Message;

use kivu::fleet::wire::{
    grpc,
    http::{JSON_LENGTH, failure, parse, read_response},
    interface::interface,
    messages::{ConfigResponse, InferResponse, ModelConfig, ModelMetadata, ReadyResponse},
    protocol::Description,
};
use kivu::{
    backend::TensorSpec,
    tensor::{ElementType, Tensor},
};

/// Outputs with every element type.
fn wanted() -> [TensorSpec; 3] {
    let spec = |name: &str, element_type| TensorSpec::new(name, element_type, [-1]);
    [
        spec("a", ElementType::Fp32),
        spec("b", ElementType::Int64),
        spec("c", ElementType::Bytes),
    ]
}

/// The first two bytes are a status or the JSON length, the others a body.
pub fn http(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first_chunk() else {
        return;
    };
    let number = u16::from_le_bytes(*number);
    if let Ok(status) = StatusCode::from_u16(number) {
        let failure = failure(status, body);
        assert!(
            failure.to_string().len() < 1024,
            "the error repeats the body"
        );
    }
    if let (Ok(metadata), config) = (parse::<ModelMetadata>(body), parse::<ModelConfig>(body)) {
        // Unusable models result in an error.
        let _ = interface(
            "m",
            Description {
                metadata,
                config: config.unwrap_or_default(),
            },
        );
    }
    for wanted in wanted() {
        for length in [None, Some(usize::from(number)), Some(usize::MAX)] {
            let response = Response::builder();
            let response = match length {
                Some(length) => response.header(JSON_LENGTH, length),
                None => response,
            };
            let Ok(response) = response.body(Bytes::copy_from_slice(body)) else {
                continue;
            };
            if let Ok(tensors) = read_response(&response, std::slice::from_ref(&wanted)) {
                check(&tensors, &wanted);
            }
        }
    }
}

/// A message with any type.
pub fn grpc(bytes: &[u8]) {
    // Undecodable messages result in an error.
    let _ = (
        ReadyResponse::decode(bytes),
        ModelMetadata::decode(bytes),
        ConfigResponse::decode(bytes),
    );
    let Ok(response) = InferResponse::decode(bytes) else {
        return;
    };
    for wanted in wanted() {
        if let Ok(tensors) = grpc::read_response(&response, std::slice::from_ref(&wanted)) {
            check(&tensors, &wanted);
        }
    }
}

fn check(tensors: &[Tensor], wanted: &TensorSpec) {
    assert_eq!(tensors.len(), 1);
    assert_eq!(tensors[0].element_type(), wanted.element_type);
}
