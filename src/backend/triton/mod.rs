//! Runs models on a fleet of servers that speak KServe v2, as Triton does: over HTTP or gRPC, by what the URL
//! says.

mod address;
mod breaker;
mod client;
mod codec;
mod connect;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../../fuzz/readers/triton.rs"]
pub(crate) mod fuzzing;
mod grpc;
mod http;
mod interface;
mod messages;
mod pool;
mod retry;
mod transport;
mod visit;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

pub use self::{
    address::{Protocol, ServerUrl},
    pool::{Resolve, SystemResolver},
};
use self::{
    client::Client,
    connect::Trust,
    interface::Interface,
    pool::Pool,
    transport::{Access, Call, Parameters, Target},
};
use super::{Backend, Deadline, Schedule, Signature};
use crate::{
    config::FleetConfig,
    error::{Error, Result},
    telemetry,
    tensor::{Elements, Tensor},
};

/// Bytes of text that are counted as a token.
const BYTES_A_TOKEN: usize = 4;

/// A model on a fleet, its signature known.
#[derive(Clone)]
pub struct TritonBackend {
    client: Arc<Client>,
    signature: Signature,
    schedule: Schedule,
    /// What its configuration on the server says beside that.
    parameters: Parameters,
    /// What it is told with every request.
    told: Parameters,
}

impl TritonBackend {
    /// Whether the servers describe both in the same words.
    pub fn is_alike(&self, other: &Self) -> bool {
        let words = |of: &Self| (of.signature.clone(), of.schedule, of.parameters.clone());
        words(self) == words(other)
    }

    /// The parameter called `name` of its configuration.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// The same model, told `text` under `name` with every request.
    #[must_use]
    pub fn telling(&self, name: &str, text: String) -> Self {
        let mut telling = self.clone();
        telling.told.insert(name.to_owned(), text);
        telling
    }

    /// The same model, of which only these outputs are sent, in this order; places are those of the signature.
    pub fn with_outputs(&self, outputs: &[usize]) -> Self {
        let mut narrowed = self.clone();
        let outputs = outputs.iter().filter_map(|place| self.signature.outputs.get(*place));
        narrowed.signature.outputs = outputs.cloned().collect();
        narrowed
    }
}

impl fmt::Debug for TritonBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TritonBackend").field("signature", &self.signature).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for TritonBackend {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schedule(&self) -> Schedule {
        self.schedule
    }

    async fn infer(&self, inputs: Vec<Tensor>, deadline: Deadline) -> Result<Vec<Tensor>> {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        self.signature.check_inputs(&inputs)?;
        telemetry::ran("triton");
        let tokens = inputs.first().map_or(0, tokens);
        let call = Call::new(&self.signature, &inputs, self.told.clone());
        drop(inputs);
        deadline.bound(self.client.infer(&call, tokens, deadline)).await
    }
}

/// The tokens of an input, padding included: what its work is measured by.
fn tokens(input: &Tensor) -> usize {
    match input.elements() {
        Elements::Bytes(texts) => texts.iter().map(|text| text.len().div_ceil(BYTES_A_TOKEN)).sum(),
        _ => input.shape().iter().product(),
    }
}

/// A model on a fleet that may not be there yet: nothing is asked of it before it is needed.
///
/// Its signature is read when it is first needed, and again when the servers seem to have changed the model.
pub struct Fleet {
    client: Arc<Client>,
    timeout: Duration,
    known: Mutex<Option<TritonBackend>>,
}

impl Fleet {
    /// The model called `model` on the servers of `config`.
    pub fn new(config: &FleetConfig, model: &str) -> Result<Self> {
        Self::with_resolver(config, model, Arc::new(SystemResolver))
    }

    /// The same with names resolved by `resolver`.
    pub fn with_resolver(config: &FleetConfig, model: &str, resolver: Arc<dyn Resolve>) -> Result<Self> {
        let urls: Vec<ServerUrl> = config.urls.iter().map(|url| url.parse()).collect::<Result<_>>()?;
        let needs_trust = urls.iter().any(|url| url.tls);
        let access = Access {
            trust: needs_trust.then(|| Trust::load(config.ca.as_deref())).transpose()?,
            authorization: config.token.as_ref().map(|token| format!("Bearer {token}").into()),
        };
        let target = Target { model: model.to_owned(), version: config.version.clone() };
        let pool = Arc::new(Pool::new(urls, access, resolver));
        Ok(Self {
            client: Arc::new(Client::new(target, pool, config.hedge)),
            timeout: config.timeout(),
            known: Mutex::default(),
        })
    }

    /// The name of the model on the fleet.
    pub fn model(&self) -> &str {
        self.client.model()
    }

    /// Whether a server may be asked now, as far as is known.
    pub fn is_available(&self) -> bool {
        self.client.is_available()
    }

    /// The moment by which the fleet has to be done, within a request's own.
    pub fn deadline(&self, request: Deadline) -> Deadline {
        request.or_earlier(Deadline::within(self.timeout))
    }

    /// Ends all connections; the next request makes new ones. They live no longer than the runtime that they
    /// were made on.
    pub fn disconnect(&self) {
        self.client.disconnect();
    }

    /// What becomes of a model that was asked for before there are requests: one of another kind is refused, and a
    /// fleet that did not answer may do so later. No connection is kept.
    pub fn settle<T>(&self, checked: Result<T>) -> Result<()> {
        self.disconnect();
        match checked {
            Err(error @ Error::Model { .. }) => Err(error),
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(error = error.chain(), "the fleet does not answer yet");
                Ok(())
            }
        }
    }

    /// The model as its servers describe it, if they were asked already.
    fn known(&self) -> Option<TritonBackend> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if self.client.take_doubt() {
            *known = None;
        }
        known.clone()
    }

    /// The model as its servers describe it.
    pub async fn connect(&self, deadline: Deadline) -> Result<TritonBackend> {
        if let Some(backend) = self.known() {
            return Ok(backend);
        }
        let description = deadline.bound(self.client.describe(deadline)).await?;
        let Interface { signature, schedule, parameters } = Interface::of(self.model(), &description)?;
        let (client, told) = (Arc::clone(&self.client), Parameters::new());
        let backend = TritonBackend { client, signature, schedule, parameters, told };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(backend.clone());
        Ok(backend)
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("model", &self.model()).finish_non_exhaustive()
    }
}
