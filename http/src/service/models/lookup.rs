//! A request's models, by name or by task. A model that is not loaded is loaded first.

use std::sync::Arc;

use crate::bodies::request::Context;
use kivu::{
    Error, Result,
    model::{Entry, Model, Pipeline},
    pipeline::{
        Task,
        classification::{ClassificationPipeline, ranking::RankingPipeline},
        embedding::{EmbeddingPipeline, VectorKind},
    },
    repository::{Manifest, TaskSettings},
    telemetry::request::note_model,
};

/// Whether a model does what a request needs, as far as its manifest says.
type Serves<'a> = &'a (dyn Fn(&Manifest) -> bool + Sync);

impl Context {
    /// Looks up a model by name; `None` selects the first one.
    pub async fn model(&self, name: Option<&str>) -> Result<&Model> {
        let entry = self.entry(name).await?;
        self.load(&entry).await
    }

    /// Looks up a model without loading it. New models are looked for before a name is unknown.
    pub async fn entry(&self, name: Option<&str>) -> Result<Arc<Entry>> {
        self.models.find_new(name, self.deadline).await
    }

    /// Looks up a model, which must be for `task`; without a name, the first one that does what is needed.
    pub async fn pipeline<'a, P>(
        &'a self,
        name: Option<&str>,
        task: Task,
        serves: &[Serves<'_>],
        pick: impl Fn(&'a Pipeline) -> Option<P>,
    ) -> Result<(&'a Model, P)> {
        let wrong = |name: &str, found: &Manifest| Model::wrong_task(name, found.task, task);
        let does = |entry: &Entry, serves: &Serves<'_>| serves(&entry.manifest);
        let entry = match name {
            Some(_) => {
                let entry = self.entry(name).await?;
                let is_fit = serves.iter().any(|serves| does(&entry, serves));
                if is_fit {
                    Some(entry)
                } else {
                    return Err(wrong(&entry.name, &entry.manifest));
                }
            }
            None => {
                let models = self.models.list();
                let first =
                    |serves: &Serves<'_>| models.iter().find(|model| does(model, serves)).cloned();
                serves.iter().find_map(first)
            }
        };
        let entry = entry.ok_or_else(|| {
            Error::invalid(format!(
                "expected a served model for `{task}`, but found none"
            ))
            .with_hint("`GET /models` lists the models")
        })?;
        let model = self.load(&entry).await?;
        // A newer bundle may be for another task.
        let pipeline = pick(&model.pipeline).ok_or_else(|| wrong(&model.name, &model.manifest))?;
        Ok((model, pipeline))
    }

    /// Looks up an embedding model; without a name, the first one with dense vectors, or the first one.
    pub async fn embedding(&self, name: Option<&str>) -> Result<(&Model, &EmbeddingPipeline)> {
        self.embedding_with(name, VectorKind::Dense).await
    }

    /// Looks up an embedding model; without a name, the first one with vectors of this kind, or the first one.
    pub async fn embedding_with(
        &self,
        name: Option<&str>,
        kind: VectorKind,
    ) -> Result<(&Model, &EmbeddingPipeline)> {
        let with_kind =
            move |own: &Manifest| own.embedding().is_some_and(|settings| settings.has(kind));
        let any = |own: &Manifest| own.embedding().is_some();
        self.pipeline(
            name,
            Task::FeatureExtraction,
            &[&with_kind, &any],
            Pipeline::embedding,
        )
        .await
    }

    /// Looks up a classification model, or a cross-encoder, which has one label; without a name, classification models
    /// come first.
    pub async fn classification(
        &self,
        name: Option<&str>,
    ) -> Result<(&Model, &ClassificationPipeline)> {
        let classifies = |own: &Manifest| own.task == Task::TextClassification;
        let has_one_label = |own: &Manifest| {
            own.task == Task::TextRanking && matches!(own.settings, TaskSettings::Classification(_))
        };
        self.pipeline(
            name,
            Task::TextClassification,
            &[&classifies, &has_one_label],
            |pipeline| match pipeline {
                Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => Some(pipeline),
                other => other.classification(),
            },
        )
        .await
    }

    /// Looks up a ranking model; without a name, the first one. Embedding models rank too; without a name, they come
    /// after all others, models with multi-vectors first.
    pub async fn ranking(&self, name: Option<&str>) -> Result<(&Model, RankingPipeline)> {
        if let Some(name) = name.filter(|name| self.models.named_prompt(Some(name)).is_some()) {
            return Err(Error::invalid(format!(
                "expected a model's name without a role, since ranking has a query and texts, but found `{name}`"
            )));
        }
        let ranks = |own: &Manifest| own.task == Task::TextRanking;
        let with =
            |kind| move |own: &Manifest| own.embedding().is_some_and(|settings| settings.has(kind));
        let (multi_vector, dense) = (with(VectorKind::MultiVector), with(VectorKind::Dense));
        let pick = |pipeline: &Pipeline| {
            let embedding = || {
                pipeline
                    .embedding()
                    .cloned()
                    .map(RankingPipeline::Embedding)
            };
            pipeline.ranking().cloned().or_else(embedding)
        };
        self.pipeline(
            name,
            Task::TextRanking,
            &[&ranks, &multi_vector, &dense],
            pick,
        )
        .await
    }

    /// Loads a model, which stays loaded until the end of the request.
    pub async fn load(&self, entry: &Arc<Entry>) -> Result<&Model> {
        note_model(&entry.name);
        match self.app.catalog.lease(entry, self.deadline).await? {
            Some(lease) => Ok(self.used.keep(lease)),
            None => Err(self.models.unknown(&entry.name)),
        }
    }
}
