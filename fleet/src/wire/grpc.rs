//! KServe v2 over gRPC.

use std::{collections::HashMap, iter::once, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::{
    Uri,
    uri::{InvalidUri, PathAndQuery},
};
use prost::Message;
use tonic::{
    Code, Request, Status,
    body::Body,
    client::Grpc,
    metadata::{Ascii, MetadataValue, errors::InvalidMetadataValue},
};
use tonic_prost::ProstCodec;

use super::{
    codec::{Contents, decode_outputs},
    messages::{
        ConfigResponse, InferRequest, InferResponse, ModelConfig, ModelMetadata, ModelRequest,
        Parameter, ParameterValue, ReadyResponse, RequestedOutput,
    },
    protocol::{Call, KserveClient, MAX_RESPONSE_BYTES, microseconds},
    server_url::ServerUrl,
};
use crate::{
    connect::{Client, ClientError, Connector, FleetSettings, client},
    failure::{Attempt, AttemptFailure, FailureKind},
};
use kivu_base::{Error, Result, tensor::Tensor};
use kivu_core::backend::TensorSpec;
use kivu_telemetry::{request::current_trace, trace::Trace};

const METADATA: &str = "/inference.GRPCInferenceService/ModelMetadata";
const CONFIG: &str = "/inference.GRPCInferenceService/ModelConfig";
const READY: &str = "/inference.GRPCInferenceService/ModelReady";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Connections per address. Requests can share one, but Triton runs requests on separate connections more in parallel.
const CONNECTIONS: usize = 8;

pub struct GrpcClient {
    model: ModelRequest,
    origin: Uri,
    /// One connection each. Requests under way hold a reference.
    connections: Vec<Arc<Client<Connector, Body>>>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl GrpcClient {
    pub fn new(url: &ServerUrl, socket: SocketAddr, settings: &FleetSettings) -> Result<Self> {
        let origin = url.to_string().parse().map_err(|error: InvalidUri| {
            Error::config_because("expected a host that gRPC accepts in `fleet.urls`", error)
        })?;
        let connections = (0..CONNECTIONS).map(|_| Ok(Arc::new(client(url, socket, settings)?)));
        let authorization = settings
            .authorization
            .as_ref()
            .map(|token| token.parse())
            .transpose();
        let authorization = authorization.map_err(|error: InvalidMetadataValue| {
            Error::config_because("expected a `fleet.token` that gRPC can send", error)
        })?;
        let model = ModelRequest {
            name: settings.model.clone(),
            version: settings.version.clone().unwrap_or_default(),
        };
        Ok(Self {
            model,
            origin,
            connections: connections.collect::<Result<_>>()?,
            authorization,
        })
    }

    async fn call<Q, A>(
        &self,
        method: &'static str,
        message: Q,
        timeout: Option<Duration>,
    ) -> Attempt<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        if let Some(authorization) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", authorization.clone());
        }
        for (name, value) in current_trace().iter().flat_map(Trace::headers) {
            if let Ok(value) = value.parse::<MetadataValue<Ascii>>() {
                request.metadata_mut().insert(name, value);
            }
        }
        // The first among the least busy, so that sequential requests stay on one connection.
        let connection = self
            .connections
            .iter()
            .min_by_key(|client| Arc::strong_count(client));
        let connection = Arc::clone(connection.unwrap_or(&self.connections[0]));
        let mut grpc = Grpc::with_origin(Client::clone(&connection), self.origin.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        let codec = ProstCodec::<Q, A>::default();
        let response = grpc
            .unary(request, PathAndQuery::from_static(method), codec)
            .await;
        drop(connection);
        Ok(response.map_err(|status| failure(&status))?.into_inner())
    }
}

#[async_trait]
impl KserveClient for GrpcClient {
    async fn metadata(&self) -> Attempt<ModelMetadata> {
        self.call(METADATA, self.model.clone(), None).await
    }

    async fn config(&self) -> Attempt<ModelConfig> {
        let response: ConfigResponse = self.call(CONFIG, self.model.clone(), None).await?;
        Ok(response.config.unwrap_or_default())
    }

    async fn check_ready(&self) -> Attempt<()> {
        let response: ReadyResponse = self.call(READY, self.model.clone(), None).await?;
        if response.ready {
            Ok(())
        } else {
            Err(FailureKind::NotReady.into())
        }
    }

    async fn infer(&self, call: &Call, timeout: Duration) -> Attempt<Vec<Tensor>> {
        let parameter = |value| Parameter { value: Some(value) };
        let texts = call.parameters.iter();
        let texts =
            texts.map(|(name, text)| (name.clone(), parameter(ParameterValue::Text(text.clone()))));
        let timeout_us = parameter(ParameterValue::Integer(microseconds(timeout)));
        let parameters: HashMap<_, _> = texts
            .chain(once(("timeout".to_owned(), timeout_us)))
            .collect();
        let outputs = call.outputs.iter().map(|output| RequestedOutput {
            name: output.name.clone(),
        });
        let (inputs, raw_input_contents) = call.inputs.iter().cloned().unzip();
        let request = InferRequest {
            model_name: self.model.name.clone(),
            model_version: self.model.version.clone(),
            parameters,
            inputs,
            outputs: outputs.collect(),
            raw_input_contents,
        };
        let response: InferResponse = self.call(INFER, request, Some(timeout)).await?;
        read_response(&response, &call.outputs)
    }
}

/// Classifies a status. A status with a source was created in this process, from a connection error.
fn failure(status: &Status) -> AttemptFailure {
    if let Some(source) = std::error::Error::source(status) {
        let is_connect = source
            .downcast_ref::<ClientError>()
            .is_some_and(ClientError::is_connect);
        return if is_connect {
            FailureKind::Unreachable
        } else {
            FailureKind::ConnectionLost
        }
        .into();
    }
    let kind = match status.code() {
        Code::DeadlineExceeded => FailureKind::Timeout,
        Code::Cancelled => FailureKind::ConnectionLost,
        Code::Unavailable | Code::ResourceExhausted => FailureKind::NotReady,
        Code::NotFound => FailureKind::Missing,
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unauthenticated
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::AlreadyExists => FailureKind::Refused,
        Code::DataLoss => FailureKind::InvalidResponse,
        _ => FailureKind::ModelError,
    };
    AttemptFailure::reported(kind, status.message())
}

/// The `wanted` outputs in a response. Each one's contents have its place, so all must be there.
pub fn read_response(response: &InferResponse, wanted: &[TensorSpec]) -> Attempt<Vec<Tensor>> {
    let (count, contents) = (response.outputs.len(), response.raw_output_contents.len());
    if count != contents {
        let details = format!("expected the contents of {count} outputs, but found {contents}");
        return Err(AttemptFailure::invalid_response(details));
    }
    let outputs = response.outputs.iter().zip(&response.raw_output_contents);
    let outputs = outputs.map(|(output, bytes)| (output, Contents::Raw(bytes)));
    decode_outputs(&outputs.collect::<Vec<_>>(), wanted)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kivu_base::tensor::ElementType;

    use super::{super::messages::TensorMetadata, *};

    #[test]
    fn contents_are_not_taken_for_another_output() {
        let output = |name: &str| TensorMetadata {
            name: name.into(),
            datatype: "FP32".into(),
            shape: vec![1],
        };
        let contents = |value: f32| Bytes::from(value.to_le_bytes().to_vec());
        let read = |contents: Vec<Bytes>| {
            let response = InferResponse {
                outputs: vec![output("a"), output("b")],
                raw_output_contents: contents,
            };
            read_response(&response, &[TensorSpec::new("a", ElementType::Fp32, [-1])])
        };
        let found = read(vec![contents(1.0), contents(2.0)]).unwrap();
        assert_eq!(found[0].as_fp32(), Some(&[1.0][..]));
        // Those of `b` alone: a server may have others in fields that are not read.
        let refused = read(vec![contents(2.0)]).unwrap_err();
        insta::assert_snapshot!(refused, @"InvalidResponse: expected the contents of 2 outputs, but found 1");
    }
}
