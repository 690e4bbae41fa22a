//! The state that handlers share: models, limits and access control.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{body::Bytes, http::StatusCode};
use tokio::{runtime::Handle, sync::Semaphore};

use super::models::pull::FetchModel;
use crate::{
    auth::Guard,
    bodies::{body_memory::BodyMemory, rejection::Rejection},
};
use kivu::{
    config::Limits,
    model::{Catalog, Entry, Model, gauges},
    task::Scope,
    telemetry::{Otlp, Prometheus, Reading},
};

/// Concurrent requests, and their limit.
const REQUESTS: [&str; 2] = ["kivu_requests_in_progress", "kivu_requests_limit"];

/// A server's models, and how it serves them.
#[derive(Debug)]
pub struct App {
    pub catalog: Arc<Catalog>,
    pub limits: Limits,
    /// One permit for each concurrent request.
    pub permits: Arc<Semaphore>,
    pub bodies: BodyMemory,
    pub guard: Guard,
    pub prometheus: Option<Prometheus>,
    pub has_page: bool,
    /// The time after which a request is logged as slow.
    pub slow_request: Option<Duration>,
    /// Fetches models for `/api/pull`, if this server may.
    pub fetcher: Option<Arc<dyn FetchModel>>,
    /// One permit, since a fetch may use all processors.
    pub pulls: Arc<Semaphore>,
    /// The threads for requests with long bodies; their connections' own threads if there are none.
    pub long_requests: Option<Handle>,
    /// The OpenAPI document, written when it is first requested.
    pub document: OnceLock<Bytes>,
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
            long_requests: None,
            document: OnceLock::new(),
        }
    }

    /// Exports the metrics that are read when they are sent.
    pub fn export(&self, otlp: &Otlp) {
        gauges::export(&self.catalog, otlp);
        let (permits, limit) = (Arc::clone(&self.permits), self.limits.requests);
        otlp.observe(&REQUESTS, move || requests(&permits, limit).into());
    }

    /// The metrics that are read when they are sent, for these models.
    pub fn gauges(&self, models: &[Arc<Entry>]) -> Vec<Reading> {
        let mut readings = gauges::read(models, self.catalog.budget());
        readings.extend(requests(&self.permits, self.limits.requests));
        readings
    }

    /// Defaults and limits of a request.
    pub fn scope(&self) -> Scope {
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
    pub fn require_page(&self, path: &str) -> Result<(), Rejection> {
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
