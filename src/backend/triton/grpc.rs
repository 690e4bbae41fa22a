//! KServe v2 over gRPC: the only place that speaks to the `tonic` crate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::uri::PathAndQuery;
use prost::Message;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    address::ServerUrl,
    codec,
    connect::Connector,
    failure::{Failure, Kind},
    messages::{
        ConfigAnswer, InferAnswer, InferRequest, InferTensor, MetadataAnswer, ModelRequest, Parameter,
        ParameterValue, ReadyAnswer, TensorMetadata, WantedOutput,
    },
    transport::{Call, Described, Description, LONGEST_ANSWER, Target, microseconds},
};
use crate::{
    backend::TensorSpec,
    error::{Error, Result},
    telemetry::trace::{TRACEPARENT, Trace},
    tensor::Tensor,
};

/// What may be under way of one answer before it is read: more than most answers have.
const STREAM_WINDOW: u32 = 8 * 1024 * 1024;
/// The same of all answers together.
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;

const METADATA: &str = "/inference.GRPCInferenceService/ModelMetadata";
const CONFIG: &str = "/inference.GRPCInferenceService/ModelConfig";
const READY: &str = "/inference.GRPCInferenceService/ModelReady";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Connections to one address. Requests can share one, but Triton serves a connection's requests less side by
/// side than those of several.
const CONNECTIONS: usize = 8;

/// A few connections to one address; each is made when it is first needed, and again when it is lost.
pub(super) struct GrpcTransport {
    lines: Vec<Line>,
    authorization: Option<MetadataValue<Ascii>>,
}

/// One connection, with the number of requests that are under way on it.
struct Line {
    channel: Channel,
    busy: AtomicUsize,
}

/// A request that is under way on a connection.
struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl GrpcTransport {
    pub(super) fn new(
        url: &ServerUrl,
        connector: &Connector,
        authorization: Option<Arc<str>>,
    ) -> Result<Self> {
        let unusable = |error: Box<dyn std::error::Error + Send + Sync>| Error::Config {
            message: "expected a host and a token that gRPC can send, but found others".into(),
            source: Some(error),
        };
        let scheme = if url.tls { "https" } else { "http" };
        let origin = format!("{scheme}://{}", url.authority());
        // No pings: a frozen function could send none, and Triton takes those of an idle connection for an attack.
        let endpoint = Endpoint::from_shared(format!("http://{}", url.authority()))
            .map_err(|error| unusable(error.into()))?
            .origin(origin.parse().map_err(|error: http::uri::InvalidUri| unusable(error.into()))?)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let line = || Line {
            channel: endpoint.connect_with_connector_lazy(connector.clone()),
            busy: AtomicUsize::new(0),
        };
        let authorization = authorization.map(|authorization| authorization.parse()).transpose();
        let lines = std::iter::repeat_with(line).take(CONNECTIONS).collect();
        Ok(Self { lines, authorization: authorization.map_err(|_| unusable("the token".into()))? })
    }

    pub(super) async fn describe(&self, target: &Target) -> Result<Description, Failure> {
        let metadata: MetadataAnswer = self.ask(METADATA, model_request(target), None).await?;
        let config = match self.ask::<_, ConfigAnswer>(CONFIG, model_request(target), None).await {
            Ok(answer) => Some(answer.config.unwrap_or_default()),
            // A server of another make may have no such method.
            Err(failure) if matches!(failure.kind, Kind::Missing | Kind::Refused) => None,
            Err(failure) => return Err(failure),
        };
        let described = |tensors: Vec<TensorMetadata>| {
            let tensors = tensors.into_iter();
            tensors
                .map(|TensorMetadata { name, datatype, shape }| Described { name, datatype, shape })
                .collect()
        };
        let policy = config.as_ref().and_then(|config| config.transaction_policy);
        Ok(Description {
            inputs: described(metadata.inputs),
            outputs: described(metadata.outputs),
            max_batch_size: config.as_ref().map(|config| config.max_batch_size.into()),
            is_decoupled: policy.is_some_and(|policy| policy.decoupled),
            parameters: config
                .into_iter()
                .flat_map(|config| config.parameters)
                .map(|(name, parameter)| (name, parameter.string_value))
                .collect(),
        })
    }

    pub(super) async fn is_ready(&self, target: &Target) -> Result<(), Failure> {
        let answer: ReadyAnswer = self.ask(READY, model_request(target), None).await?;
        if answer.ready { Ok(()) } else { Err(Failure::new(Kind::NotReady)) }
    }

    pub(super) async fn infer(
        &self,
        target: &Target,
        call: &Call,
        time: Duration,
    ) -> Result<Vec<Tensor>, Failure> {
        let ModelRequest { name, version } = model_request(target);
        let parameter = |value| Parameter { value: Some(value) };
        let told = call.parameters.iter();
        let told = told.map(|(name, text)| (name.clone(), parameter(ParameterValue::Text(text.clone()))));
        let timeout = ("timeout".to_owned(), parameter(ParameterValue::Integer(microseconds(time))));
        let inputs = call.inputs.iter().map(|input| InferTensor {
            name: input.name.clone(),
            datatype: input.datatype.clone(),
            shape: input.shape.clone(),
        });
        let outputs = call.outputs.iter().map(|output| WantedOutput { name: output.name.clone() });
        let request = InferRequest {
            model_name: name,
            model_version: version,
            parameters: told.chain([timeout]).collect(),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            raw_input_contents: call.inputs.iter().map(|input| input.bytes.clone()).collect(),
        };
        let answer: InferAnswer = self.ask(INFER, request, Some(time)).await?;
        read_answer(&answer, &call.outputs)
    }

    /// The first of the connections with the fewest requests, so that one caller keeps to one connection.
    fn least_busy(&self) -> (Channel, Busy<'_>) {
        let line =
            self.lines.iter().min_by_key(|line| line.busy.load(Ordering::Relaxed)).unwrap_or(&self.lines[0]);
        line.busy.fetch_add(1, Ordering::Relaxed);
        (line.channel.clone(), Busy(&line.busy))
    }

    async fn ask<Q, A>(&self, method: &'static str, message: Q, time: Option<Duration>) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut request = Request::new(message);
        if let Some(time) = time {
            request.set_timeout(time);
        }
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        // What was read of a header fits into one again.
        if let Some(trace) = Trace::current()
            && let Ok(trace) = trace.traceparent().parse::<MetadataValue<Ascii>>()
        {
            request.metadata_mut().insert(TRACEPARENT, trace);
        }
        let (channel, _busy) = self.least_busy();
        let mut grpc = Grpc::new(channel).max_decoding_message_size(LONGEST_ANSWER);
        grpc.ready().await.map_err(|_| Failure::new(Kind::Unreachable))?;
        let answer =
            grpc.unary(request, PathAndQuery::from_static(method), ProstCodec::<Q, A>::default()).await;
        Ok(answer.map_err(|status| failure(&status))?.into_inner())
    }
}

fn model_request(target: &Target) -> ModelRequest {
    ModelRequest { name: target.model.clone(), version: target.version.clone().unwrap_or_default() }
}

/// What a status says. One with a cause was made on this side: of a connection, not by the server.
fn failure(status: &Status) -> Failure {
    let is_ours = std::error::Error::source(status).is_some();
    let kind = match status.code() {
        Code::Unavailable if is_ours => Kind::Unreachable,
        Code::DeadlineExceeded => Kind::Late,
        Code::Cancelled => Kind::Cut,
        _ if is_ours => Kind::Cut,
        Code::Unavailable | Code::ResourceExhausted => Kind::NotReady,
        Code::NotFound => Kind::Missing,
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unauthenticated
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::AlreadyExists => Kind::Refused,
        Code::DataLoss => Kind::Garbled,
        _ => Kind::Broken,
    };
    if is_ours {
        return Failure::new(kind);
    }
    Failure::told(Failure::refined(kind, status.message()), status.message())
}

/// The wanted outputs of an answer.
pub(super) fn read_answer(answer: &InferAnswer, wanted: &[TensorSpec]) -> Result<Vec<Tensor>, Failure> {
    let read = |spec: &TensorSpec| {
        let place = answer.outputs.iter().position(|output| output.name == spec.name);
        let found =
            place.and_then(|place| Some((&answer.outputs[place], answer.raw_output_contents.get(place)?)));
        let (output, bytes) = found.ok_or_else(|| {
            Failure::garbled(format!("expected the output `{}`, but found none", spec.name))
        })?;
        codec::decode(spec, &output.datatype, &output.shape, bytes)
    };
    wanted.iter().map(read).collect()
}
