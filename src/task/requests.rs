//! Responses to requests in the rows of a job, by the code that responds over HTTP.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use kivu_base::config::Limits;

use crate::model::Model;

/// Responds to the bodies of `POST /v1/embeddings`.
#[async_trait]
pub trait Respond: Debug + Send + Sync {
    /// The response's status and JSON body. An error is a response too.
    async fn respond(&self, body: &str) -> (u16, String);
}

/// Makes a model's [`Respond`].
#[derive(Clone, Debug)]
pub struct Requests {
    /// Limits of each request.
    pub limits: Limits,
    /// Responds with this model only.
    pub responder: fn(&Model, &Limits) -> Arc<dyn Respond>,
}
