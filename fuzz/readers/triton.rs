//! Answers of any bytes, as if from a server of a fleet.

use bytes::Bytes;
use http::{Response, StatusCode};
use prost::Message;

use super::{
    grpc,
    http::{Config, JSON_LENGTH, Metadata, parse, read_answer, refusal},
    interface::Interface,
    messages::{ConfigAnswer, InferAnswer, MetadataAnswer, ReadyAnswer},
    transport::{Description, Parameters},
};
use crate::{
    backend::TensorSpec,
    tensor::{ElementType, Tensor},
};

/// Outputs of every type; the longest name is the one that texts fit best.
fn wanted() -> [TensorSpec; 3] {
    let spec = |name: &str, element_type| TensorSpec::new(name, element_type, [-1]);
    [spec("a", ElementType::Fp32), spec("b", ElementType::Int64), spec("c", ElementType::Bytes)]
}

/// Two bytes for a status or the length of the JSON, and a body.
pub(crate) fn http(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first_chunk() else { return };
    let number = u16::from_le_bytes(*number);
    if let Ok(status) = StatusCode::from_u16(number) {
        let failure = refusal(status, body);
        assert!(failure.to_string().len() < 1024, "an error that repeats what it was sent");
    }
    if let (Ok(metadata), config) = (parse::<Metadata>(body), parse::<Config>(body)) {
        let description = Description {
            inputs: metadata.inputs,
            outputs: metadata.outputs,
            max_batch_size: config.ok().map(|config| config.max_batch_size),
            is_decoupled: false,
            parameters: Parameters::default(),
        };
        // A model that cannot be used is told by an error.
        let _ = Interface::of("m", &description);
    }
    for wanted in wanted() {
        for length in [None, Some(usize::from(number)), Some(usize::MAX)] {
            let answer = Response::builder();
            let answer = match length {
                Some(length) => answer.header(JSON_LENGTH, length),
                None => answer,
            };
            let Ok(answer) = answer.body(Bytes::copy_from_slice(body)) else { continue };
            if let Ok(tensors) = read_answer(&answer, std::slice::from_ref(&wanted)) {
                check(&tensors, &wanted);
            }
        }
    }
}

/// Any of the messages.
pub(crate) fn grpc(bytes: &[u8]) {
    // Messages that cannot be read are told by an error.
    let _ = (ReadyAnswer::decode(bytes), MetadataAnswer::decode(bytes), ConfigAnswer::decode(bytes));
    let Ok(answer) = InferAnswer::decode(bytes) else { return };
    for wanted in wanted() {
        if let Ok(tensors) = grpc::read_answer(&answer, std::slice::from_ref(&wanted)) {
            check(&tensors, &wanted);
        }
    }
}

fn check(tensors: &[Tensor], wanted: &TensorSpec) {
    assert_eq!(tensors.len(), 1);
    assert_eq!(tensors[0].element_type(), wanted.element_type);
}
