//! Health, metrics, and facts about the server and its models.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::Arc,
    thread::available_parallelism,
};

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    app::App,
    rejection::{Rejection, Reply},
};
use crate::{
    json_schemas::Object,
    model::{Model, Pipeline},
    pipeline::{
        Task, embedding::EmbeddingPipeline, pooling::Pooling, ranking::RankingPipeline,
        seq2seq::Seq2SeqPipeline, zero_shot::ZeroShotPipeline,
    },
    repository::manifest::{Precision, Quality},
};

pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Reply {
    let Some(prometheus) = &app.prometheus else {
        let message =
            "this server has no metrics; those of a function are in CloudWatch, in the namespace `Kivu`";
        return Err(Rejection::new(StatusCode::NOT_FOUND, message));
    };
    Ok(prometheus.page().into_response())
}

/// The first model and its limits, in the fields that TEI and others use.
#[derive(Serialize, JsonSchema)]
pub(super) struct Info {
    /// The native engine's matmul arithmetic on this processor.
    arithmetic: Option<String>,
    auto_truncate: bool,
    docker_label: Option<String>,
    max_batch_requests: Option<usize>,
    max_batch_tokens: usize,
    max_client_batch_size: usize,
    max_concurrent_requests: usize,
    max_input_length: usize,
    /// Memory for a text with this length, in bytes.
    max_input_memory: Option<u64>,
    model_dtype: &'static str,
    model_id: String,
    model_sha: String,
    /// The model's task, with its pooling or labels.
    #[schemars(with = "Object")]
    model_type: Value,
    /// An embedding model's dimensions by vector kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<BTreeMap<String, usize>>,
    /// A quantized model's quality compared with fp32.
    #[schemars(with = "Option<Object>")]
    quality: Option<Quality>,
    served_model_name: String,
    sha: Option<String>,
    tokenization_workers: usize,
    version: &'static str,
    /// Settings in the model's files that the build ignored on request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(super) async fn info(State(app): State<Arc<App>>) -> Reply<Json<Info>> {
    let model = app.model(None)?;
    let max_tokens = model.pipeline.max_tokens();
    let weights = &model.manifest.weights;
    Ok(Json(Info {
        arithmetic: model.arithmetic.clone(),
        auto_truncate: app.limits.truncate,
        docker_label: None,
        max_batch_requests: None,
        max_batch_tokens: max_tokens,
        max_client_batch_size: app.limits.texts,
        max_concurrent_requests: app.limits.requests,
        max_input_length: max_tokens,
        max_input_memory: model.max_input_memory,
        model_dtype: match weights.precision {
            Precision::Int8 | Precision::Int8Blocks => "int8",
            Precision::Fp32 => "float32",
        },
        model_id: model.manifest.source.from.clone(),
        model_sha: model.digest.clone(),
        model_type: model_type(&model.pipeline),
        outputs: model.pipeline.embedding().map(outputs),
        quality: weights.quality,
        served_model_name: model.name.clone(),
        sha: None,
        tokenization_workers: available_parallelism().map_or(1, NonZeroUsize::get),
        version: env!("CARGO_PKG_VERSION"),
        warnings: model.manifest.warnings.clone(),
    }))
}

/// The model's task in TEI's terms.
fn model_type(pipeline: &Pipeline) -> Value {
    let labels = |labels: &[String]| {
        let labels = labels.iter().enumerate();
        let id2label: Map<String, Value> =
            labels.clone().map(|(id, label)| (id.to_string(), json!(label))).collect();
        let label2id: Map<String, Value> = labels.map(|(id, label)| (label.clone(), json!(id))).collect();
        json!({ "id2label": id2label, "label2id": label2id })
    };
    let pooling = |pipeline: &EmbeddingPipeline| {
        let settings = pipeline.settings();
        let mode = match settings.dense.as_ref().map(|dense| dense.pooling) {
            Some(Pooling::Mean) => "mean",
            Some(Pooling::Cls) => "cls",
            Some(Pooling::LastToken) => "last_token",
            None if settings.sparse.is_some() => "splade",
            // TEI has no other modes.
            Some(Pooling::Max) => "max",
            Some(Pooling::MeanSqrtLen) => "mean_sqrt_len_tokens",
            Some(Pooling::WeightedMean) => "weightedmean",
            Some(Pooling::Graph) => "graph",
            None => "none",
        };
        json!({ "pooling": mode })
    };
    match pipeline {
        Pipeline::Embedding(pipeline) | Pipeline::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _)) => {
            json!({ "embedding": pooling(pipeline) })
        }
        Pipeline::Classification(pipeline) | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline)) => {
            json!({ "classifier": labels(&pipeline.settings().labels) })
        }
        // TEI has no such models.
        Pipeline::TokenClassification(pipeline) => {
            json!({ "token_classifier": labels(&pipeline.settings().labels) })
        }
        Pipeline::ZeroShotEntities(_) => json!({ "token_classifier": labels(&[]) }),
        Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => {
            json!({ "reranker": labels(&pipeline.settings().labels) })
        }
        Pipeline::Ranking(RankingPipeline::Embedding(pipeline)) => json!({ "embedding": pooling(pipeline) }),
        // TEI has no models that generate.
        Pipeline::Translation(_) => json!({ "translation": {} }),
        Pipeline::TextToText(_) => json!({ "text_to_text": {} }),
    }
}

/// The model's vector kinds, with their dimensions.
fn outputs(pipeline: &EmbeddingPipeline) -> BTreeMap<String, usize> {
    let outputs = pipeline.settings().outputs();
    outputs.into_iter().map(|(kind, dimensions)| (kind.to_string(), dimensions)).collect()
}

/// The served models, and the request limits.
#[derive(Serialize, JsonSchema)]
pub(super) struct Models {
    limits: RequestLimits,
    models: Vec<ModelDescription>,
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Limits")]
struct RequestLimits {
    /// Maximum body size, in bytes.
    body_bytes: usize,
    /// Maximum texts per request.
    texts: usize,
}

#[derive(Serialize, JsonSchema)]
struct ModelDescription {
    architecture: String,
    /// Dense vector dimensions.
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
    /// A classification model's labels, in its own order.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<String>>,
    /// A translation model's languages.
    #[serde(skip_serializing_if = "Option::is_none")]
    languages: Option<Languages>,
    /// Maximum tokens per text.
    max_tokens: usize,
    name: String,
    /// An embedding model's dimensions by vector kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<BTreeMap<String, usize>>,
    precision: Precision,
    task: Task,
}

#[derive(Serialize, JsonSchema)]
struct Languages {
    from: BTreeSet<String>,
    to: BTreeSet<String>,
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Models> {
    let limits = RequestLimits { body_bytes: app.limits.body_bytes, texts: app.limits.texts };
    let models = app.models().map(describe).collect();
    Json(Models { limits, models, version: env!("CARGO_PKG_VERSION") })
}

fn describe(model: &Model) -> ModelDescription {
    let (manifest, pipeline) = (&model.manifest, &model.pipeline);
    let languages = |translation: &Seq2SeqPipeline| {
        let [from, to] = translation.directions().codes().map(Clone::clone);
        Languages { from, to }
    };
    let dense = pipeline.embedding().and_then(|embedding| embedding.settings().dense.as_ref());
    ModelDescription {
        architecture: manifest.source.architecture.clone(),
        dimensions: dense.map(|dense| dense.dimensions),
        labels: pipeline.labels().map(<[String]>::to_vec),
        languages: pipeline.translation().map(languages),
        max_tokens: pipeline.max_tokens(),
        name: model.name.clone(),
        outputs: pipeline.embedding().map(outputs),
        precision: manifest.weights.precision,
        task: manifest.task,
    }
}
