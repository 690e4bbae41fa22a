//! The state that handlers share: models, limits and access control.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use axum::{body::Bytes, http::StatusCode};
use tokio::sync::Semaphore;

use super::{auth::Guard, body_memory::BodyMemory, files::Files, rejection::Rejection};
use crate::{
    config::Limits,
    error::{Error, Result},
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::ClassificationPipeline,
        embedding::{EmbeddingPipeline, VectorKind},
        ranking::RankingPipeline,
    },
    task::Scope,
    telemetry::Prometheus,
};

tokio::task_local! {
    /// Models that the caller may use; all if empty.
    static ALLOWED_MODELS: Vec<String>;
}

/// Runs a request that may use only these models, or all if there are none. All others are unknown to it.
pub(super) async fn restricted_to<T>(models: Vec<String>, request: impl Future<Output = T>) -> T {
    ALLOWED_MODELS.scope(models, request).await
}

/// A server's models, and how it serves them.
#[derive(Debug)]
pub struct App {
    models: Vec<Model>,
    pub(super) limits: Limits,
    /// One permit for each concurrent request.
    pub(super) permits: Arc<Semaphore>,
    pub(super) bodies: BodyMemory,
    pub(super) guard: Guard,
    pub(super) prometheus: Option<Prometheus>,
    pub(super) has_page: bool,
    /// Uploaded files and batches, if they are turned on.
    pub(super) files: Option<Arc<Files>>,
    /// The OpenAPI document, written when it is first requested.
    pub(super) document: OnceLock<Bytes>,
}

impl App {
    /// Serves `models` within `limits`, open to every client.
    pub fn new(models: Vec<Model>, limits: Limits) -> Self {
        let permits = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        let bodies = BodyMemory::new(&limits);
        Self {
            models,
            limits,
            permits,
            bodies,
            guard: Guard::default(),
            prometheus: None,
            has_page: true,
            files: None,
            document: OnceLock::new(),
        }
    }

    /// Admits only the requests that `guard` accepts.
    #[must_use]
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }

    /// Keeps files and batches in `files`.
    #[must_use]
    pub fn with_files(self, files: Option<Arc<Files>>) -> Self {
        Self { files, ..self }
    }

    /// Serves metrics at `/metrics`.
    #[must_use]
    pub fn with_metrics(self, prometheus: Prometheus) -> Self {
        Self { prometheus: Some(prometheus), ..self }
    }

    /// Turns the pages for browsers and `/openapi.json` on or off; they are on by default.
    #[must_use]
    pub fn with_page(self, has_page: bool) -> Self {
        Self { has_page, ..self }
    }

    /// Models that the current request's caller may use.
    pub(super) fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.iter().filter(|model| {
            let is_allowed = |allowed: &Vec<String>| allowed.is_empty() || allowed.contains(&model.name);
            ALLOWED_MODELS.try_with(is_allowed).unwrap_or(true)
        })
    }

    /// Looks up a model by name; `None` selects the first one.
    pub(super) fn model(&self, name: Option<&str>) -> Result<&Model> {
        let Some(name) = name else { return self.models().next().ok_or(Error::NoModel) };
        self.find(name).map(|(model, _)| model).ok_or_else(|| Error::UnknownModel {
            name: name.to_owned(),
            known: self.models().map(|model| model.name.clone()).collect(),
        })
    }

    /// The prompt in an embedding model's name, as in `minilm:query`: for clients that cannot send it otherwise.
    pub(super) fn named_prompt(&self, name: Option<&str>) -> Option<String> {
        self.find(name?)?.1.map(str::to_owned)
    }

    /// Looks up a model by name or alias, with the prompt after its name. Ollama clients add `:latest` to names.
    fn find(&self, name: &str) -> Option<(&Model, Option<&str>)> {
        let is_named = |model: &Model, name: &str| {
            model.name == name || model.manifest.aliases.iter().any(|alias| alias == name)
        };
        let named = |name: &str| self.models().find(|model| is_named(model, name));
        if let Some(model) = named(name) {
            return Some((model, None));
        }
        let (name, suffix) = name.rsplit_once(':')?;
        let model = named(name)?;
        if suffix == "latest" {
            return Some((model, None));
        }
        Some((model, model.pipeline.embedding()?.prompt_name(suffix).ok()?))
    }

    /// Looks up a model, which must be for `task`; without a name, the first model for it.
    pub(super) fn pipeline<'a, P>(
        &'a self,
        name: Option<&str>,
        task: Task,
        pick: impl Fn(&'a Pipeline) -> Option<P>,
    ) -> Result<(&'a Model, P)> {
        if name.is_none() {
            let found = self.models().find_map(|model| Some((model, pick(&model.pipeline)?)));
            return found.ok_or_else(|| {
                Error::invalid(format!(
                    "expected a served model for `{task}`, but found none; `GET /models` lists the models"
                ))
            });
        }
        let model = self.model(name)?;
        let pipeline = pick(&model.pipeline).ok_or_else(|| {
            Error::invalid(format!(
                "expected a model for `{task}`, but `{}` is for `{}`",
                model.name, model.manifest.task
            ))
        })?;
        Ok((model, pipeline))
    }

    /// Looks up an embedding model; without a name, the first one with vectors of this kind, or the first one.
    pub(super) fn embedding_with(
        &self,
        name: Option<&str>,
        kind: VectorKind,
    ) -> Result<(&Model, &EmbeddingPipeline)> {
        let with = |kind: Option<VectorKind>| {
            let has = |pipeline: &&EmbeddingPipeline| kind.is_none_or(|kind| pipeline.settings().has(kind));
            self.pipeline(name, Task::FeatureExtraction, |pipeline| pipeline.embedding().filter(has))
        };
        with(Some(kind)).or_else(|_| with(None))
    }

    pub(super) fn classification(&self, name: Option<&str>) -> Result<(&Model, &ClassificationPipeline)> {
        self.pipeline(name, Task::TextClassification, Pipeline::classification)
    }

    /// Looks up a ranking model; without a name, the first one. Embedding models rank too; without a name, they come
    /// after all others, models with multi-vectors first.
    pub(super) fn ranking(&self, name: Option<&str>) -> Result<(&Model, RankingPipeline)> {
        let ranking = |pipeline: &Pipeline| pipeline.ranking().cloned();
        let with = |kind| {
            move |pipeline: &Pipeline| {
                let embedding = pipeline.embedding().filter(|pipeline| pipeline.settings().has(kind));
                embedding.cloned().map(RankingPipeline::Embedding)
            }
        };
        let task = Task::TextRanking;
        self.pipeline(name, task, ranking).or_else(|error| {
            let found = self.pipeline(name, task, with(VectorKind::MultiVector));
            found.or_else(|_| self.pipeline(name, task, with(VectorKind::Dense))).map_err(|_| error)
        })
    }

    /// Defaults and limits of a request.
    pub(super) fn scope(&self) -> Scope {
        let Limits { truncate, values, texts, .. } = self.limits;
        Scope { truncate, max_values: values, max_parts: texts, max_labels: texts }
    }

    /// Rejects `path` if pages are turned off.
    pub(super) fn require_page(&self, path: &str) -> Result<(), Rejection> {
        if self.has_page {
            return Ok(());
        }
        Err(Rejection::new(StatusCode::NOT_FOUND, format!("no route `{path}`: `page` is off")))
    }
}
