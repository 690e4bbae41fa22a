//! The context in which a request is handled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{body_memory::RequestMemory, inputs::RequestTexts};
use crate::service::{
    app::App, models::caller_models::CallerModels, models::used_models::UsedModels,
    response_limit::ResponseLimit,
};
use kivu::{Result, backend::Deadline, task::Scope};

const BACKGROUND_TIMEOUT: Duration = Duration::from_hours(1);

/// A request's state, deadline, limits and start time.
#[derive(Clone)]
pub struct Context {
    pub app: Arc<App>,
    pub deadline: Deadline,
    /// When the request headers had been read.
    pub started: Instant,
    pub texts: RequestTexts,
    /// Maximum sentences or windows that texts may be split into.
    pub max_parts: usize,
    /// Models that the caller may use.
    pub models: CallerModels,
    /// Models that the request uses.
    pub used: Arc<UsedModels>,
    /// The platform's limit for the response, if it has one.
    pub response_limit: Option<ResponseLimit>,
    /// Memory for the body and its values.
    pub memory: Arc<RequestMemory>,
}

impl Context {
    /// The context for a request that begins now, without a limit for the response.
    pub fn new(app: &Arc<App>, models: CallerModels, deadline: Deadline) -> Self {
        let (texts, max_parts) = (RequestTexts::new(app.limits.texts), app.limits.texts);
        Self {
            app: Arc::clone(app),
            models,
            used: Arc::default(),
            deadline,
            started: Instant::now(),
            texts,
            max_parts,
            response_limit: None,
            memory: app.bodies.request(),
        }
    }

    /// The context for a request that runs in the background, where nobody waits for it.
    pub fn in_background(app: &Arc<App>, models: CallerModels) -> Self {
        Self::new(app, models, Deadline::within(BACKGROUND_TIMEOUT))
    }

    /// Rejects a request whose response takes at least `bytes`, before it is computed.
    pub fn check_response(&self, bytes: usize) -> Result<()> {
        self.response_limit
            .map_or(Ok(()), |limit| limit.check(bytes))
    }

    /// Defaults and limits of the request.
    pub fn scope(&self) -> Scope {
        Scope {
            max_parts: self.max_parts,
            ..self.app.scope()
        }
    }

    /// The context for one of `count` requests in one, which share its limits. Its models may leave at its own end: all
    /// of them need not fit into memory together.
    pub fn of_part(&self, count: usize) -> Self {
        let max_parts = (self.max_parts / count.max(1)).max(1);
        Self {
            max_parts,
            used: Arc::default(),
            ..self.clone()
        }
    }
}
