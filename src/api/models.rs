//! Our own `GET /models`: what is served, and what one has to know to ask it.

use std::{collections::BTreeSet, sync::Arc};

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use crate::{
    model::Model,
    pipeline::{Task, translation::Languages},
    repository::manifest::Precision,
};

#[derive(Serialize, ToSchema)]
#[schema(as = Models)]
pub(super) struct List {
    models: Vec<Description>,
    limits: Bounds,
    version: &'static str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Limits)]
struct Bounds {
    /// The most texts of a request.
    texts: usize,
    body_bytes: usize,
}

/// A model as a caller sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = ModelDescription)]
struct Description {
    name: String,
    task: Task,
    architecture: String,
    precision: Precision,
    max_tokens: usize,
    /// The labels of a classifier, in its own order.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<String>>,
    /// The width of vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
    /// The languages of a translator.
    #[serde(skip_serializing_if = "Option::is_none")]
    languages: Option<Directions>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Languages)]
struct Directions {
    from: BTreeSet<String>,
    to: BTreeSet<String>,
}

impl From<&Languages> for Directions {
    fn from(languages: &Languages) -> Self {
        let one = |name: &String| BTreeSet::from([name.clone()]);
        match languages {
            Languages::Pair { source, target } => Self { from: one(source), to: one(target) },
            Languages::Prefix { source, targets } => {
                Self { from: one(source), to: targets.keys().cloned().collect() }
            }
            Languages::Tokens { codes, .. } => {
                let all: BTreeSet<String> = codes.keys().cloned().collect();
                Self { from: all.clone(), to: all }
            }
        }
    }
}

/// What is served, and what one has to know to ask it
#[utoipa::path(get, path = "/models", tag = "server", responses((
    status = 200, description = "The models, and the limits of a request.", body = List,
    example = json!({
        "models": [{
            "name": "minilm", "task": "feature-extraction", "architecture": "BertModel", "precision": "int8",
            "max_tokens": 256, "dimensions": 384
        }],
        "limits": { "texts": 1024, "body_bytes": 6_291_456 },
        "version": "0.1.0"
    })
)))]
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<List> {
    let limits = Bounds { texts: app.limits.texts, body_bytes: app.limits.body_bytes };
    let models = app.models.iter().map(describe).collect();
    Json(List { models, limits, version: env!("CARGO_PKG_VERSION") })
}

fn describe(model: &Model) -> Description {
    let manifest = &model.manifest;
    let classification =
        manifest.classification.as_ref().filter(|_| manifest.task == Task::TextClassification);
    let embedding = manifest.embedding.as_ref().filter(|_| manifest.task == Task::FeatureExtraction);
    Description {
        name: model.name.clone(),
        task: manifest.task,
        architecture: manifest.source.architecture.clone(),
        precision: manifest.weights.precision,
        max_tokens: model.pipeline.max_tokens(),
        labels: classification.map(|settings| settings.labels.clone()),
        dimensions: embedding.map(|settings| settings.dimensions),
        languages: manifest.translation.as_ref().map(|settings| (&settings.languages).into()),
    }
}
