//! A request's models, by name or by task.

use super::request::Context;
use crate::{
    error::Result,
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::ClassificationPipeline,
        embedding::{EmbeddingPipeline, VectorKind},
        ranking::RankingPipeline,
    },
};

impl Context {
    /// Looks up a model by name; `None` selects the first one.
    pub(super) async fn model(&self, name: Option<&str>) -> Result<&Model> {
        self.app.model(name)
    }

    /// Looks up a model, which must be for `task`; without a name, the first model for it.
    pub(super) async fn pipeline<'a, P>(
        &'a self,
        name: Option<&str>,
        task: Task,
        pick: impl Fn(&'a Pipeline) -> Option<P>,
    ) -> Result<(&'a Model, P)> {
        self.app.pipeline(name, task, pick)
    }

    /// Looks up an embedding model; without a name, the first one with dense vectors, or the first one.
    pub(super) async fn embedding(&self, name: Option<&str>) -> Result<(&Model, &EmbeddingPipeline)> {
        self.embedding_with(name, VectorKind::Dense).await
    }

    /// Looks up an embedding model; without a name, the first one with vectors of this kind, or the first one.
    pub(super) async fn embedding_with(
        &self,
        name: Option<&str>,
        kind: VectorKind,
    ) -> Result<(&Model, &EmbeddingPipeline)> {
        self.app.embedding_with(name, kind)
    }

    pub(super) async fn classification(
        &self,
        name: Option<&str>,
    ) -> Result<(&Model, &ClassificationPipeline)> {
        self.app.classification(name)
    }

    /// Looks up a ranking model; without a name, the first one. Embedding models rank too; without a name, they come
    /// after all others, models with multi-vectors first.
    pub(super) async fn ranking(&self, name: Option<&str>) -> Result<(&Model, RankingPipeline)> {
        self.app.ranking(name)
    }
}
