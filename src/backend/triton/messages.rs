//! The part of KServe v2's gRPC messages that is used here, with Triton's numbers for their fields.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// Asks for a model's description, its configuration or whether it is ready: all three have the same fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ModelRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ReadyAnswer {
    #[prost(bool, tag = "1")]
    pub(super) ready: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct MetadataAnswer {
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<TensorMetadata>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ConfigAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ModelConfig {
    #[prost(int32, tag = "4")]
    pub(super) max_batch_size: i32,
    #[prost(map = "string, message", tag = "14")]
    pub(super) parameters: HashMap<String, ConfigParameter>,
    #[prost(message, optional, tag = "19")]
    pub(super) transaction_policy: Option<TransactionPolicy>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ConfigParameter {
    #[prost(string, tag = "1")]
    pub(super) string_value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct TransactionPolicy {
    #[prost(bool, tag = "1")]
    pub(super) decoupled: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferRequest {
    #[prost(string, tag = "1")]
    pub(super) model_name: String,
    #[prost(string, tag = "2")]
    pub(super) model_version: String,
    #[prost(map = "string, message", tag = "4")]
    pub(super) parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub(super) inputs: Vec<InferTensor>,
    #[prost(message, repeated, tag = "6")]
    pub(super) outputs: Vec<WantedOutput>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(super) raw_input_contents: Vec<Bytes>,
}

/// An input without its contents, or an output without its own.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct InferTensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WantedOutput {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Parameter {
    #[prost(oneof = "ParameterValue", tags = "2, 3")]
    pub(super) value: Option<ParameterValue>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum ParameterValue {
    #[prost(int64, tag = "2")]
    Integer(i64),
    #[prost(string, tag = "3")]
    Text(String),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct InferAnswer {
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<InferTensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) raw_output_contents: Vec<Bytes>,
}
