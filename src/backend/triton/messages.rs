//! Messages in KServe v2 and Triton's model configuration: field numbers for gRPC, field names for JSON.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};
use serde::Deserialize;

/// The request for a model's metadata, configuration or readiness: their fields are the same.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ModelRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ReadyResponse {
    #[prost(bool, tag = "1")]
    pub(super) ready: bool,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
pub(super) struct ModelMetadata {
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<TensorMetadata>,
}

/// A tensor without its contents, in model metadata, a request or a response.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
pub(super) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// The element type, as KServe v2 spells it.
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    /// -1 for an axis with any length.
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub(super) struct ModelConfig {
    /// 0 if the model's tensors have no batch axis.
    #[prost(int32, tag = "4")]
    pub(super) max_batch_size: i32,
    #[prost(map = "string, message", tag = "14")]
    pub(super) parameters: HashMap<String, ConfigParameter>,
    #[prost(message, optional, tag = "19")]
    #[serde(rename = "model_transaction_policy")]
    pub(super) transaction_policy: Option<TransactionPolicy>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub(super) struct ConfigParameter {
    #[prost(string, tag = "1")]
    pub(super) string_value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub(super) struct TransactionPolicy {
    /// Whether the model may send any number of responses per request.
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
    pub(super) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "6")]
    pub(super) outputs: Vec<RequestedOutput>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(super) raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RequestedOutput {
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
pub(super) struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<TensorMetadata>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) raw_output_contents: Vec<Bytes>,
}
