//! Health, metrics, and facts about the server and its models.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::Arc,
    thread::available_parallelism,
};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{app::App, models::caller_models::CallerModels};
use crate::{
    bodies::rejection::{ApiResult, Rejection},
    dialects::openai::ModelList,
};
use kivu::{
    json_schemas::Object,
    model::Entry,
    pipeline::{
        Task,
        embedding::{EmbeddingSettings, pooling::Pooling, similarity::Similarity},
        seq2seq::Directions,
    },
    repository::{
        Manifest, TaskSettings,
        manifest::{Precision, Quality},
    },
    telemetry::Reading,
};

pub async fn health() -> StatusCode {
    StatusCode::OK
}

pub async fn metrics(State(app): State<Arc<App>>, models: CallerModels) -> ApiResult {
    let Some(prometheus) = &app.prometheus else {
        let message = "this server has no metrics; those of a function are in CloudWatch, in the namespace `Kivu`";
        return Err(Rejection::new(StatusCode::NOT_FOUND, message));
    };
    Ok((prometheus.page() + &gauge_page(&app.gauges(&models.list()))).into_response())
}

/// Gauges in Prometheus' format. They are read when they are needed, so that removed models have none.
fn gauge_page(gauges: &[Reading]) -> String {
    let mut by_name: BTreeMap<&str, Vec<&Reading>> = BTreeMap::new();
    for reading in gauges {
        by_name.entry(reading.name).or_default().push(reading);
    }
    let mut page = String::new();
    for (name, readings) in by_name {
        page.push_str(&format!("# TYPE {name} gauge\n"));
        for Reading { model, value, .. } in readings {
            let escaped = |model: &String| {
                model
                    .replace('\\', r"\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n")
            };
            let label = model
                .as_ref()
                .map(|model| format!("{{model=\"{}\"}}", escaped(model)));
            page.push_str(&format!("{name}{} {value}\n", label.unwrap_or_default()));
        }
        page.push('\n');
    }
    page
}

/// The first model and its limits, in the fields that TEI and others use.
#[derive(Serialize, JsonSchema)]
pub struct Info {
    /// The native engine's matmul arithmetic on this processor.
    arithmetic: Option<String>,
    /// Whether texts above the token limit are truncated by default.
    auto_truncate: bool,
    /// Always `null`.
    docker_label: Option<String>,
    /// Always `null`: batches are limited by tokens.
    max_batch_requests: Option<usize>,
    /// The same as `max_input_length`.
    max_batch_tokens: usize,
    /// Maximum texts per request.
    max_client_batch_size: usize,
    /// Requests in progress, above which others get status 429.
    max_concurrent_requests: usize,
    /// Maximum tokens per text, special tokens included.
    max_input_length: usize,
    /// Memory for a text with this length, in bytes.
    max_input_memory: Option<u64>,
    /// The weights' number format: `int8` or `float32`.
    model_dtype: &'static str,
    /// What the bundle was built from: a hub repository, a package or a folder.
    model_id: String,
    /// SHA-256 of the bundle's manifest, in hexadecimal.
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
    /// The name in requests.
    served_model_name: String,
    /// Always `null`.
    sha: Option<String>,
    /// Processor cores.
    tokenization_workers: usize,
    /// Kivu's version.
    version: &'static str,
    /// What the build ignored: settings in the model's files, on request, and a model card that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub async fn info(State(app): State<Arc<App>>, models: CallerModels) -> ApiResult<Json<Info>> {
    let model = models.find(None)?;
    let (max_tokens, manifest) = (model.max_tokens, &model.manifest);
    let weights = &manifest.weights;
    Ok(Json(Info {
        arithmetic: model.with_model(|model| model.arithmetic.clone()).flatten(),
        auto_truncate: app.limits.truncate,
        docker_label: None,
        max_batch_requests: None,
        max_batch_tokens: max_tokens,
        max_client_batch_size: app.limits.texts,
        max_concurrent_requests: app.limits.requests,
        max_input_length: max_tokens,
        max_input_memory: model.with_model(|model| model.max_input_memory).flatten(),
        model_dtype: match weights.precision {
            Precision::Int8 | Precision::Int8Blocks => "int8",
            Precision::Fp32 => "float32",
        },
        model_id: model.manifest.source.from.clone(),
        model_sha: model.digest.clone(),
        model_type: model_type(manifest),
        outputs: manifest.embedding().map(outputs),
        quality: weights.quality,
        served_model_name: model.name.clone(),
        sha: None,
        tokenization_workers: available_parallelism().map_or(1, NonZeroUsize::get),
        version: env!("CARGO_PKG_VERSION"),
        warnings: model.manifest.warnings.clone(),
    }))
}

/// The model's task in TEI's terms.
fn model_type(manifest: &Manifest) -> Value {
    let labels = |labels: &[String]| {
        let labels = labels.iter().enumerate();
        let id2label: Map<String, Value> = labels
            .clone()
            .map(|(id, label)| (id.to_string(), json!(label)))
            .collect();
        let label2id: Map<String, Value> = labels
            .map(|(id, label)| (label.clone(), json!(id)))
            .collect();
        json!({ "id2label": id2label, "label2id": label2id })
    };
    let pooling = |settings: &EmbeddingSettings| {
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
    match &manifest.settings {
        TaskSettings::Embedding(own) => json!({ "embedding": pooling(own) }),
        TaskSettings::Classification(own) if manifest.task == Task::TextRanking => {
            json!({ "reranker": labels(&own.labels) })
        }
        TaskSettings::Listwise(_) => json!({ "reranker": labels(&[]) }),
        TaskSettings::Classification(own) => json!({ "classifier": labels(&own.labels) }),
        // TEI has no such models.
        TaskSettings::TokenClassification(own) => {
            json!({ "token_classifier": labels(&own.labels) })
        }
        TaskSettings::ZeroShotEntities(_) => json!({ "token_classifier": labels(&[]) }),
        TaskSettings::LabelScores(_) => json!({ "classifier": labels(&[]) }),
        // TEI has no models that generate.
        TaskSettings::Seq2Seq(_) if manifest.task == Task::Translation => {
            json!({ "translation": {} })
        }
        TaskSettings::Seq2Seq(_) => json!({ "text_to_text": {} }),
    }
}

/// The model's vector kinds, with their dimensions.
fn outputs(settings: &EmbeddingSettings) -> BTreeMap<String, usize> {
    settings
        .outputs()
        .into_iter()
        .map(|(kind, dimensions)| (kind.to_string(), dimensions))
        .collect()
}

/// The served models, and the request limits.
#[derive(Serialize, JsonSchema)]
pub struct Models {
    /// The names, for OpenAI's clients whose base URL has no `/v1`.
    #[serde(flatten)]
    names: ModelList,
    /// Limits per request.
    limits: RequestLimits,
    /// Memory for models that are loaded on demand; absent if all are loaded at start.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<ModelMemory>,
    /// All models, loaded or not.
    models: Vec<ModelDescription>,
    /// Kivu's version.
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
struct ModelMemory {
    /// In bytes.
    limit: u64,
    /// In bytes.
    used: u64,
}

#[derive(Serialize, JsonSchema)]
struct ModelDescription {
    /// The class of the model's authors, such as `BertModel`.
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
    /// When a request last used the model, in seconds since 1970; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_use: Option<f64>,
    /// Maximum tokens per text.
    max_tokens: usize,
    /// Memory in bytes; absent if the model is not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    /// The name in requests.
    name: String,
    /// An embedding model's dimensions by vector kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<BTreeMap<String, usize>>,
    /// The weights' number format.
    precision: Precision,
    /// How vectors are to be compared if not by cosines: `dot`, `euclidean` or `manhattan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    similarity: Option<Similarity>,
    /// `available` (its first request loads it), `loading`, `loaded` or `failed`.
    state: &'static str,
    /// How the model ranks or does zero-shot classification: `embedding`, by cosines between embeddings, or `model`, by a
    /// head trained for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<&'static str>,
    /// What the model does, in the terms of the model hub.
    task: Task,
}

#[derive(Serialize, JsonSchema)]
struct Languages {
    /// Codes of source languages.
    from: BTreeSet<String>,
    /// Codes of target languages.
    to: BTreeSet<String>,
}

pub async fn list(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    models: CallerModels,
) -> Json<Models> {
    let names = ModelList::new(&models, &headers);
    let limits = RequestLimits {
        body_bytes: app.limits.body_bytes,
        texts: app.limits.texts,
    };
    let models = models.list().iter().map(describe).collect();
    let memory = app
        .catalog
        .budget()
        .map(|(limit, used)| ModelMemory { limit, used });
    Json(Models {
        names,
        limits,
        memory,
        models,
        version: env!("CARGO_PKG_VERSION"),
    })
}

fn describe(model: &Arc<Entry>) -> ModelDescription {
    let manifest = &model.manifest;
    let languages = |directions: &Directions| {
        let [from, to] = directions.codes().map(Clone::clone);
        Languages { from, to }
    };
    let embedding = manifest.embedding();
    let dense = embedding.and_then(|embedding| embedding.dense.as_ref());
    ModelDescription {
        architecture: manifest.source.architecture.clone(),
        dimensions: dense.map(|dense| dense.dimensions),
        labels: manifest.labels().map(<[String]>::to_vec),
        languages: model.directions().map(languages),
        last_use: model.last_use().map(|time| time.as_secs_f64()),
        max_tokens: model.max_tokens,
        memory: model.memory(),
        name: model.name.clone(),
        outputs: embedding.map(outputs),
        precision: manifest.weights.precision,
        similarity: dense
            .map(|dense| dense.similarity)
            .filter(|found| *found != Similarity::default()),
        state: model.state().name(),
        strategy: manifest.strategy(),
        task: manifest.task,
    }
}
