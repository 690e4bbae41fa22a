//! Health, metrics, and facts about the server and its models.

use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc, thread::available_parallelism};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{app::App, rejection::Rejection};
use crate::{
    model::{Model, Pipeline},
    pipeline::{
        Task, classification::ClassificationPipeline, embedding::EmbeddingPipeline, pooling::Pooling,
        ranking::RankingPipeline, translation::Languages, zero_shot::ZeroShotPipeline,
    },
    repository::manifest::Precision,
};

/// Check that the server is up and its models are loaded
#[utoipa::path(
    get, path = "/health", tag = "server", responses((status = 200, description = "Healthy; no body."))
)]
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// Metrics in the format of Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    responses((
        status = 200, description = "Counters and durations.",
        body = String, content_type = "text/plain; charset=utf-8", example = "kivu_requests_total 7"
    ))
)]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Rejection> {
    let Some(prometheus) = &app.prometheus else {
        let message =
            "this server has no metrics; those of a function are in CloudWatch, in the namespace `Kivu`";
        return Err(Rejection::new(StatusCode::NOT_FOUND, message));
    };
    Ok(prometheus.page().into_response())
}

/// Describe the first model
#[utoipa::path(
    get, path = "/info", tag = "TEI",
    responses((status = 200, description = "The model and the limits of the server.", body = Object))
)]
pub(super) async fn info(State(app): State<Arc<App>>) -> Result<Json<Value>, Rejection> {
    let model = app.model(None)?;
    let max_tokens = model.pipeline.max_tokens();
    let dtype = match model.manifest.weights.precision {
        Precision::Int8 | Precision::Int8Blocks => "int8",
        Precision::Fp32 => "float32",
    };
    let limits = &app.limits;
    Ok(Json(json!({
        "model_id": model.manifest.source.from,
        "model_sha": model.digest,
        "model_dtype": dtype,
        "arithmetic": model.arithmetic,
        "served_model_name": model.name,
        "model_type": model_type(&model.pipeline),
        "max_concurrent_requests": limits.requests,
        "max_input_length": max_tokens,
        "max_batch_tokens": max_tokens,
        "max_batch_requests": Value::Null,
        "max_client_batch_size": limits.texts,
        "auto_truncate": limits.truncate,
        "tokenization_workers": available_parallelism().map_or(1, NonZeroUsize::get),
        "version": env!("CARGO_PKG_VERSION"),
        "sha": Value::Null,
        "docker_label": Value::Null,
    })))
}

/// The task of a model in TEI's terms.
fn model_type(pipeline: &Pipeline) -> Value {
    let labels = |pipeline: &ClassificationPipeline| {
        let labels = pipeline.settings().labels.iter().enumerate();
        let id2label: Map<String, Value> =
            labels.clone().map(|(id, label)| (id.to_string(), json!(label))).collect();
        let label2id: Map<String, Value> = labels.map(|(id, label)| (label.clone(), json!(id))).collect();
        json!({ "id2label": id2label, "label2id": label2id })
    };
    let pooling = |pipeline: &EmbeddingPipeline| match pipeline.settings().pooling {
        Pooling::Mean => json!({ "pooling": "mean" }),
        Pooling::Cls => json!({ "pooling": "cls" }),
        Pooling::LastToken => json!({ "pooling": "last_token" }),
    };
    match pipeline {
        Pipeline::Embedding(pipeline) | Pipeline::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _)) => {
            json!({ "embedding": pooling(pipeline) })
        }
        Pipeline::Classification(pipeline) | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline)) => {
            json!({ "classifier": labels(pipeline) })
        }
        Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => json!({ "reranker": labels(pipeline) }),
        Pipeline::Ranking(RankingPipeline::Embedding(pipeline)) => json!({ "embedding": pooling(pipeline) }),
        // TEI has no translation models.
        Pipeline::Translation(_) => json!({ "translation": {} }),
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct Models {
    models: Vec<ModelDescription>,
    limits: RequestLimits,
    version: &'static str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Limits)]
struct RequestLimits {
    /// The maximum number of texts of a request.
    texts: usize,
    /// The maximum size of a body, in bytes.
    body_bytes: usize,
}

#[derive(Serialize, ToSchema)]
struct ModelDescription {
    name: String,
    task: Task,
    architecture: String,
    precision: Precision,
    /// The maximum number of tokens of a text.
    max_tokens: usize,
    /// The labels of a classification model, in its own order.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<String>>,
    /// The length of vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
    /// The languages of a translation model.
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

/// List the models
#[utoipa::path(
    get, path = "/models", tag = "server",
    responses((
        status = 200, description = "The models with their tasks, and the limits of a request.", body = Models
    ))
)]
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Models> {
    let limits = RequestLimits { texts: app.limits.texts, body_bytes: app.limits.body_bytes };
    let models = app.models.iter().map(describe).collect();
    Json(Models { models, limits, version: env!("CARGO_PKG_VERSION") })
}

fn describe(model: &Model) -> ModelDescription {
    let manifest = &model.manifest;
    let classification =
        manifest.classification.as_ref().filter(|_| manifest.task == Task::TextClassification);
    let embedding = manifest.embedding.as_ref().filter(|_| manifest.task == Task::FeatureExtraction);
    ModelDescription {
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
