//! Runs models on servers that implement KServe v2, such as Triton, over HTTP or gRPC.

mod breaker;
mod client;
mod connect;
mod endpoint;
mod failure;
mod pool;
mod retry;
#[doc(hidden)]
pub mod wire;

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;

use self::{
    client::FleetClient,
    connect::{FleetSettings, load_roots},
    pool::{Pool, SystemResolver},
    wire::{
        interface::interface,
        protocol::{Call, Parameters},
        server_url::ServerUrl,
    },
};
use kivu_base::{
    Result,
    config::FleetConfig,
    locked,
    tensor::{Elements, Tensor},
};
use kivu_core::{
    backend::{Backend, Deadline, Interface, RemoteBackend, RemoteSource, Schedule, Signature},
    observer::{QueuedBatch, record_batch},
};

/// Text bytes that count as one token.
const BYTES_PER_TOKEN: usize = 4;

/// A model on a fleet, as its servers describe it.
#[derive(Clone)]
struct TritonBackend {
    client: Arc<FleetClient>,
    interface: Interface,
    /// Sent with every request.
    request_parameters: Parameters,
}

impl fmt::Debug for TritonBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TritonBackend")
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for TritonBackend {
    fn signature(&self) -> &Signature {
        &self.interface.signature
    }

    fn schedule(&self) -> Schedule {
        self.interface.schedule
    }

    /// Runs the batches one after the other.
    async fn infer_each(
        &self,
        batches: Vec<Vec<Tensor>>,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Tensor>>> {
        let mut outputs = Vec::with_capacity(batches.len());
        for inputs in batches {
            if deadline.has_passed() {
                return Err(deadline.exceeded());
            }
            self.signature().check_inputs(&inputs)?;
            record_batch("triton");
            // Servers have queues of their own.
            QueuedBatch::new().begin();
            let tokens = inputs.first().map_or(0, tokens);
            let call = Call::new(self.signature(), &inputs, self.request_parameters.clone());
            drop(inputs);
            outputs.push(
                deadline
                    .bound(self.client.infer(&call, tokens, deadline))
                    .await?,
            );
        }
        Ok(outputs)
    }
}

impl RemoteBackend for TritonBackend {
    fn interface(&self) -> &Interface {
        &self.interface
    }

    fn with_outputs(&self, outputs: &[usize]) -> Arc<dyn RemoteBackend> {
        let mut backend = self.clone();
        let outputs = outputs
            .iter()
            .filter_map(|output| self.signature().outputs.get(*output));
        backend.interface.signature.outputs = outputs.cloned().collect();
        Arc::new(backend)
    }

    fn with_parameter(&self, name: &str, text: String) -> Arc<dyn RemoteBackend> {
        let mut backend = self.clone();
        backend.request_parameters.insert(name.to_owned(), text);
        Arc::new(backend)
    }
}

/// Tokens in an input, including padding.
fn tokens(input: &Tensor) -> usize {
    match input.elements() {
        Elements::Bytes(texts) => texts
            .iter()
            .map(|text| text.len().div_ceil(BYTES_PER_TOKEN))
            .sum(),
        _ => input.shape().iter().product(),
    }
}

/// A model on a fleet whose servers may not be running yet.
///
/// The servers' model description is read when it is first needed, and again when a failure suggests that
/// the model was replaced.
pub struct Fleet {
    client: Arc<FleetClient>,
    timeout: Duration,
    backend: Mutex<Option<Arc<dyn RemoteBackend>>>,
}

impl Fleet {
    /// The model called `model` on the servers in `config`. Sends no request.
    pub fn new(config: &FleetConfig, model: &str) -> Result<Self> {
        let urls: Vec<ServerUrl> = config
            .urls
            .iter()
            .map(|url| url.parse())
            .collect::<Result<_>>()?;
        let uses_tls = urls.iter().any(|url| url.tls);
        let settings = FleetSettings {
            model: model.to_owned(),
            version: config.version.clone(),
            roots: uses_tls
                .then(|| load_roots(config.ca.as_deref()))
                .transpose()?,
            authorization: config
                .token
                .as_ref()
                .map(|token| format!("Bearer {}", token.0)),
        };
        let pool = Arc::new(Pool::new(urls, settings, Arc::new(SystemResolver)));
        let client = Arc::new(FleetClient::new(model.to_owned(), pool));
        Ok(Self {
            client,
            timeout: config.timeout(),
            backend: Mutex::default(),
        })
    }

    /// Model name on the fleet.
    pub fn model(&self) -> &str {
        &self.client.model
    }
}

#[async_trait]
impl RemoteSource for Fleet {
    fn is_available(&self) -> bool {
        self.client.pool.is_available()
    }

    fn deadline(&self, request: Deadline) -> Deadline {
        request.or_earlier(Deadline::within(self.timeout))
    }

    fn disconnect(&self) {
        self.client.disconnect();
    }

    async fn connect(&self, deadline: Deadline) -> Result<Arc<dyn RemoteBackend>> {
        let known = {
            let mut backend = locked(&self.backend);
            if self.client.take_stale_signature() {
                *backend = None;
            }
            backend.clone()
        };
        if let Some(backend) = known {
            return Ok(backend);
        }
        let description = deadline.bound(self.client.describe(deadline)).await?;
        let interface = interface(self.model(), description)?;
        let client = Arc::clone(&self.client);
        let request_parameters = Parameters::new();
        let backend: Arc<dyn RemoteBackend> = Arc::new(TritonBackend {
            client,
            interface,
            request_parameters,
        });
        *locked(&self.backend) = Some(Arc::clone(&backend));
        Ok(backend)
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet")
            .field("model", &self.model())
            .finish_non_exhaustive()
    }
}
