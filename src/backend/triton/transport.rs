//! What is asked of a server, whichever protocol it speaks.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    address::{Protocol, ServerUrl},
    codec,
    connect::{Connector, Trust},
    failure::Failure,
    grpc::GrpcTransport,
    http::HttpTransport,
};
use crate::{
    backend::{Signature, TensorSpec},
    error::Result,
    tensor::Tensor,
};

/// The longest answer that is read; what a corrupted length says must not fill the memory.
pub(super) const LONGEST_ANSWER: usize = 512 * 1024 * 1024;
/// Connections that nobody used for so long are not trusted: what lies between forgets them silently, load
/// balancers after 350 s. Pings would not help: a frozen function sends none, and Triton ends connections that
/// ping while they are idle.
pub(super) const LONGEST_IDLE: Duration = Duration::from_secs(240);

/// A model on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) model: String,
    /// The server's choice where nothing is said.
    pub(super) version: Option<String>,
}

/// What a server says of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) inputs: Vec<Described>,
    pub(super) outputs: Vec<Described>,
    /// Rows that the server takes at once, 0 where its tensors have no axis for rows; nothing where the server
    /// tells no configuration.
    pub(super) max_batch_size: Option<i64>,
    /// Whether it may answer a request more than once, or not at all.
    pub(super) is_decoupled: bool,
    /// What its configuration tells its program.
    pub(super) parameters: Parameters,
}

/// Texts by their names.
pub(super) type Parameters = BTreeMap<String, String>;

/// What a server says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub(super) struct Described {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
}

/// A request for inference, its tensors encoded, so that every try sends the same bytes.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) inputs: Vec<CallInput>,
    /// The outputs that are wanted.
    pub(super) outputs: Vec<TensorSpec>,
    /// What the model is told beside its inputs.
    pub(super) parameters: Parameters,
}

#[derive(Clone, Debug)]
pub(super) struct CallInput {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
    pub(super) bytes: Bytes,
}

impl Call {
    /// Of inputs in the order of the signature's, for all of its outputs.
    pub(super) fn new(signature: &Signature, inputs: &[Tensor], parameters: Parameters) -> Self {
        let inputs = signature.inputs.iter().zip(inputs).map(|(spec, tensor)| CallInput {
            name: spec.name.clone(),
            datatype: spec.element_type.to_string(),
            shape: tensor.shape().iter().map(|side| *side as i64).collect(),
            bytes: codec::encode(tensor),
        });
        Self { inputs: inputs.collect(), outputs: signature.outputs.clone(), parameters }
    }
}

/// What is the same for every address of a fleet.
#[derive(Clone, Default)]
pub(super) struct Access {
    /// Needed where a URL asks for TLS.
    pub(super) trust: Option<Trust>,
    /// Sent with every request as `authorization`.
    pub(super) authorization: Option<Arc<str>>,
}

/// The connections to one address.
pub(super) enum Transport {
    Http(Box<HttpTransport>),
    Grpc(GrpcTransport),
}

impl Transport {
    /// Nothing is connected before the first request.
    pub(super) fn new(url: &ServerUrl, socket: SocketAddr, access: &Access) -> Result<Self> {
        let connector = Connector::new(url, socket, access.trust.as_ref())?;
        let authorization = access.authorization.clone();
        Ok(match url.protocol {
            Protocol::Http => Self::Http(Box::new(HttpTransport::new(url, connector, authorization))),
            Protocol::Grpc => Self::Grpc(GrpcTransport::new(url, &connector, authorization)?),
        })
    }

    pub(super) async fn describe(&self, target: &Target) -> Result<Description, Failure> {
        match self {
            Self::Http(http) => http.describe(target).await,
            Self::Grpc(grpc) => grpc.describe(target).await,
        }
    }

    pub(super) async fn is_ready(&self, target: &Target) -> Result<(), Failure> {
        match self {
            Self::Http(http) => http.is_ready(target).await,
            Self::Grpc(grpc) => grpc.is_ready(target).await,
        }
    }

    /// Runs the model; the server is told that nobody waits for longer than `time`.
    pub(super) async fn infer(
        &self,
        target: &Target,
        call: &Call,
        time: Duration,
    ) -> Result<Vec<Tensor>, Failure> {
        match self {
            Self::Http(http) => http.infer(target, call, time).await,
            Self::Grpc(grpc) => grpc.infer(target, call, time).await,
        }
    }
}

/// The microseconds that Triton is told.
pub(super) fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
