//! The state that handlers share: models, limits and access control.

use std::{
    future::Future,
    num::NonZeroU64,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{body::Bytes, http::StatusCode};
use tokio::sync::Semaphore;

use super::{auth::Guard, body_memory::BodyMemory, fetch::FetchModel, rejection::Rejection};
use crate::{
    backend::Deadline,
    config::Limits,
    error::{Error, Result},
    model::{Catalog, Entry, Model, gauges},
    task::Scope,
    telemetry::{Otlp, Prometheus, Reading},
};

tokio::task_local! {
    /// Models that the caller may use; all if empty.
    static ALLOWED_MODELS: Vec<String>;
}

/// Concurrent requests, and their limit.
const REQUESTS: [&str; 2] = ["kivu_requests_in_progress", "kivu_requests_limit"];

/// Runs a request that may use only these models, or all if there are none. All others are unknown to it.
pub(super) async fn restricted_to<T>(models: Vec<String>, request: impl Future<Output = T>) -> T {
    ALLOWED_MODELS.scope(models, request).await
}

/// A server's models, and how it serves them.
#[derive(Debug)]
pub struct App {
    pub(super) catalog: Arc<Catalog>,
    pub(super) limits: Limits,
    /// One permit for each concurrent request.
    pub(super) permits: Arc<Semaphore>,
    pub(super) bodies: BodyMemory,
    pub(super) guard: Guard,
    pub(super) prometheus: Option<Prometheus>,
    pub(super) has_page: bool,
    /// The time after which a request is logged as slow.
    pub(super) slow_request: Option<Duration>,
    /// Fetches models for `/api/pull`, if this server may.
    pub(super) fetcher: Option<Arc<dyn FetchModel>>,
    /// One permit, since a fetch may use all processors.
    pub(super) pulls: Arc<Semaphore>,
    /// The OpenAPI document, written when it is first requested.
    pub(super) document: OnceLock<Bytes>,
}

impl App {
    /// Serves `models` within `limits`, open to every client.
    pub fn new(models: Vec<Model>, limits: Limits) -> Self {
        Self::of_catalog(Arc::new(Catalog::of_models(models)), limits)
    }

    /// Serves the models in `catalog` within `limits`, open to every client.
    pub fn of_catalog(catalog: Arc<Catalog>, limits: Limits) -> Self {
        let permits = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        let bodies = BodyMemory::new(&limits);
        Self {
            catalog,
            limits,
            permits,
            bodies,
            guard: Guard::default(),
            prometheus: None,
            has_page: true,
            slow_request: None,
            fetcher: None,
            pulls: Arc::new(Semaphore::new(1)),
            document: OnceLock::new(),
        }
    }

    /// Admits only the requests that `guard` accepts.
    #[must_use]
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }

    /// Fetches models with `fetcher` when `/api/pull` asks for them.
    #[must_use]
    pub fn with_fetcher(self, fetcher: Arc<dyn FetchModel>) -> Self {
        Self {
            fetcher: Some(fetcher),
            ..self
        }
    }

    /// Serves metrics at `/metrics`.
    #[must_use]
    pub fn with_metrics(self, prometheus: Prometheus) -> Self {
        Self {
            prometheus: Some(prometheus),
            ..self
        }
    }

    /// Turns the pages for browsers and `/openapi.json` on or off; they are on by default.
    #[must_use]
    pub fn with_page(self, has_page: bool) -> Self {
        Self { has_page, ..self }
    }

    /// Logs requests that take at least this many milliseconds with the durations of their stages.
    #[must_use]
    pub fn with_slow_log(self, slow_request_ms: Option<NonZeroU64>) -> Self {
        let slow_request = slow_request_ms.map(|ms| Duration::from_millis(ms.get()));
        Self {
            slow_request,
            ..self
        }
    }

    /// Exports the metrics that are read when they are sent.
    pub fn export(&self, otlp: &Otlp) {
        gauges::export(&self.catalog, otlp);
        let (permits, limit) = (Arc::clone(&self.permits), self.limits.requests);
        otlp.observe(&REQUESTS, move || requests(&permits, limit).into());
    }

    /// The metrics that are read when they are sent, for the models that the current request's caller may use.
    pub(super) fn gauges(&self) -> Vec<Reading> {
        let mut readings = gauges::read(&self.models(), self.catalog.budget());
        readings.extend(requests(&self.permits, self.limits.requests));
        readings
    }

    /// Models that the current request's caller may use.
    pub(super) fn models(&self) -> Vec<Arc<Entry>> {
        self.catalog
            .entries()
            .iter()
            .filter(|entry| caller_may_use(&entry.name))
            .cloned()
            .collect()
    }

    /// Looks up a model by name; `None` selects the first one.
    pub(super) fn model(&self, name: Option<&str>) -> Result<Arc<Entry>> {
        let models = self.models();
        let Some(name) = name else {
            return models.first().cloned().ok_or(Error::NoModel);
        };
        let found = find(&models, name).map(|(model, _)| Arc::clone(model));
        found.ok_or_else(|| unknown(name, &models))
    }

    /// Looks up a model by name. New models are looked for before a name is unknown.
    pub(super) async fn entry(&self, name: Option<&str>, deadline: Deadline) -> Result<Arc<Entry>> {
        match self.model(name) {
            Err(Error::UnknownModel { .. }) if self.catalog.is_on_demand() => {
                self.catalog.refresh(deadline).await;
                self.model(name)
            }
            found => found,
        }
    }

    /// The prompt in an embedding model's name, as in `minilm:query`: for clients that cannot send it otherwise.
    pub(super) fn named_prompt(&self, name: Option<&str>) -> Option<String> {
        find(&self.models(), name?)?.1.map(str::to_owned)
    }

    /// Defaults and limits of a request.
    pub(super) fn scope(&self) -> Scope {
        let Limits {
            truncate,
            values,
            texts,
            ..
        } = self.limits;
        Scope {
            truncate,
            max_values: values,
            max_parts: texts,
            max_labels: texts,
        }
    }

    /// Rejects `path` if pages are turned off.
    pub(super) fn require_page(&self, path: &str) -> Result<(), Rejection> {
        if self.has_page {
            return Ok(());
        }
        Err(Rejection::new(
            StatusCode::NOT_FOUND,
            format!("no route `{path}`: `page` is off"),
        ))
    }
}

fn requests(permits: &Semaphore, limit: usize) -> [Reading; 2] {
    let limit = limit.min(Semaphore::MAX_PERMITS);
    let in_progress = limit.saturating_sub(permits.available_permits());
    let reading = |name, value: usize| Reading {
        name,
        model: None,
        value: value as f64,
    };
    [
        reading(REQUESTS[0], in_progress),
        reading(REQUESTS[1], limit),
    ]
}

/// Whether the current request's caller may use the model with this name.
pub(super) fn caller_may_use(name: &str) -> bool {
    let is_listed =
        |allowed: &Vec<String>| allowed.is_empty() || allowed.iter().any(|one| one == name);
    ALLOWED_MODELS.try_with(is_listed).unwrap_or(true)
}

/// Looks up a model by name or alias, with the prompt after its name. Ollama clients add `:latest` to names.
fn find<'a>(models: &'a [Arc<Entry>], name: &str) -> Option<(&'a Arc<Entry>, Option<&'a str>)> {
    let is_named = |model: &Entry, name: &str| {
        model.name == name || model.manifest.aliases.iter().any(|alias| alias == name)
    };
    let named = |name: &str| models.iter().find(|model| is_named(model, name));
    if let Some(model) = named(name) {
        return Some((model, None));
    }
    let (name, suffix) = name.rsplit_once(':')?;
    let model = named(name)?;
    if suffix == "latest" {
        return Some((model, None));
    }
    Some((
        model,
        model.settings()?.embedding()?.prompt_name(suffix).ok()?,
    ))
}

/// The error for a name that no model has.
pub(super) fn unknown(name: &str, models: &[Arc<Entry>]) -> Error {
    Error::UnknownModel {
        name: name.to_owned(),
        known: models.iter().map(|model| model.name.clone()).collect(),
    }
}
