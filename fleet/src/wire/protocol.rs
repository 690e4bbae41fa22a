//! KServe v2 requests, independent of the protocol that carries them.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::messages::{ModelConfig, ModelMetadata, TensorMetadata};
use crate::failure::{Attempt, FailureKind};
use kivu_base::tensor::Tensor;
use kivu_core::backend::{Signature, TensorSpec};

/// Larger responses are refused, so that a corrupted length cannot exhaust memory.
pub const MAX_RESPONSE_BYTES: usize = 512 * 1024 * 1024;

/// A server's model description.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub metadata: ModelMetadata,
    /// The default if the server reports none: the route is Triton's own.
    pub config: ModelConfig,
}

/// Model configuration or request parameters, by name.
pub type Parameters = BTreeMap<String, String>;

/// An inference request, encoded once for all attempts.
#[derive(Clone, Debug)]
pub struct Call {
    pub inputs: Vec<(TensorMetadata, Bytes)>,
    pub outputs: Vec<TensorSpec>,
    pub parameters: Parameters,
}

impl Call {
    /// Encodes `inputs`, which are in signature order, and requests all signature outputs.
    pub fn new(signature: &Signature, inputs: &[Tensor], parameters: Parameters) -> Self {
        let inputs = signature.inputs.iter().zip(inputs).map(|(spec, tensor)| {
            let shape = tensor.shape().iter().map(|side| *side as i64).collect();
            let datatype = spec.element_type.to_string();
            (
                TensorMetadata {
                    name: spec.name.clone(),
                    datatype,
                    shape,
                },
                tensor.elements().to_bytes().into(),
            )
        });
        Self {
            inputs: inputs.collect(),
            outputs: signature.outputs.clone(),
            parameters,
        }
    }
}

/// A client for one model on one server.
#[async_trait]
pub trait KserveClient: Send + Sync {
    async fn metadata(&self) -> Attempt<ModelMetadata>;

    async fn config(&self) -> Attempt<ModelConfig>;

    /// Fails unless the server can run the model now.
    async fn check_ready(&self) -> Attempt<()>;

    /// Runs the model. The server may drop the request after `timeout`; the caller enforces it.
    async fn infer(&self, call: &Call, timeout: Duration) -> Attempt<Vec<Tensor>>;

    async fn describe(&self) -> Attempt<Description> {
        let metadata = self.metadata().await?;
        let config = match self.config().await {
            Err(failure) if matches!(failure.kind, FailureKind::Missing | FailureKind::Refused) => {
                ModelConfig::default()
            }
            config => config?,
        };
        Ok(Description { metadata, config })
    }
}

/// Unit for Triton's `timeout` parameter.
pub fn microseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX)
}
