//! Messages in KServe v2 and Triton's model configuration: field numbers for gRPC, field names for JSON.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};
use serde::Deserialize;

/// The request for a model's metadata, configuration or readiness: their fields are the same.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ModelRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReadyResponse {
    #[prost(bool, tag = "1")]
    pub ready: bool,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
pub struct ModelMetadata {
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor without its contents, in model metadata, a request or a response.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
pub struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    /// The element type, as KServe v2 spells it.
    #[prost(string, tag = "2")]
    pub datatype: String,
    /// -1 for an axis with any length.
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// 0 if the model's tensors have no batch axis.
    #[prost(int32, tag = "4")]
    pub max_batch_size: i32,
    #[prost(map = "string, message", tag = "14")]
    pub parameters: HashMap<String, ConfigParameter>,
    #[prost(message, optional, tag = "19")]
    #[serde(rename = "model_transaction_policy")]
    pub transaction_policy: Option<TransactionPolicy>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub struct ConfigParameter {
    #[prost(string, tag = "1")]
    pub string_value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub struct TransactionPolicy {
    /// Whether the model may send any number of responses per request.
    #[prost(bool, tag = "1")]
    pub decoupled: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<RequestedOutput>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestedOutput {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(oneof = "ParameterValue", tags = "2, 3")]
    pub value: Option<ParameterValue>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum ParameterValue {
    #[prost(int64, tag = "2")]
    Integer(i64),
    #[prost(string, tag = "3")]
    Text(String),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub raw_output_contents: Vec<Bytes>,
}
