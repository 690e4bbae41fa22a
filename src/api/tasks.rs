//! The routes whose body and response depend on the model's task: `POST /` of TEI, and `POST /models/{model}` of the
//! model hub.

use axum::response::Response;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    classification::{
        ClassifyRequest, PredictRequest, ZeroShotRequest, classify_with, predict_with, zero_shot_with,
    },
    embedding::{EmbedRequest, SimilarityRequest, embed_with, similarity_with},
    openapi::schemas,
    ranking::{RerankRequest, rerank_with},
    rejection::Rejection,
    request::{Call, InPath, from_value, model_name},
    translation::{HubTranslationRequest, translate_with},
};
use crate::{error::Error, model::Pipeline};

/// The schema of the body of `POST /`.
struct DefaultRequest;

impl utoipa::PartialSchema for DefaultRequest {
    fn schema() -> schemas::FieldSchema {
        schemas::any_of([
            schemas::of::<EmbedRequest>(),
            schemas::of::<SimilarityRequest>(),
            schemas::of::<PredictRequest>(),
            schemas::of::<RerankRequest>(),
            schemas::of::<HubTranslationRequest>(),
        ])
    }
}

impl ToSchema for DefaultRequest {}

/// Run the first model
///
/// Takes and answers the body of `/embed`, `/predict`, `/rerank` or a translation, depending on the task of the first
/// model, or that of `/similarity` if `inputs` has a `source_sentence`.
#[utoipa::path(
    post, path = "/", tag = "TEI", request_body = DefaultRequest,
    responses((
        status = 200, description = "The response of the task's own route.", body = schemas::TaskResponse
    ))
)]
pub(super) async fn default_task(Call(context, body): Call<Value>) -> Result<Response, Rejection> {
    let app = &context.app;
    if is_similarity(&body) {
        let request: SimilarityRequest = from_value(body)?;
        let (_, pipeline) = app.embedding(request.model())?;
        return similarity_with(&context, pipeline, request).await;
    }
    match &app.model(model_name(&body))?.pipeline {
        Pipeline::Classification(pipeline) => predict_with(&context, pipeline, from_value(body)?).await,
        Pipeline::Ranking(pipeline) => rerank_with(&context, pipeline, from_value(body)?).await,
        Pipeline::Translation(pipeline) => translate_with(&context, pipeline, from_value(body)?).await,
        Pipeline::Embedding(pipeline) => embed_with(&context, pipeline, body).await,
        Pipeline::ZeroShot(_) => {
            let (_, pipeline) = app.embedding(model_name(&body))?;
            embed_with(&context, pipeline, body).await
        }
    }
}

fn is_similarity(body: &Value) -> bool {
    body.get("inputs").is_some_and(|inputs| inputs.get("source_sentence").is_some())
}

/// The schema of the body of `POST /models/{model}`.
struct HubRequest;

impl utoipa::PartialSchema for HubRequest {
    fn schema() -> schemas::FieldSchema {
        schemas::any_of([
            schemas::of::<DefaultRequest>(),
            schemas::of::<ClassifyRequest>(),
            schemas::of::<ZeroShotRequest>(),
            schemas::ranking_inputs(),
        ])
    }
}

impl ToSchema for HubRequest {}

/// Run a model
#[utoipa::path(
    post, path = "/models/{model}", operation_id = "task", tag = "model hub", request_body = HubRequest,
    responses((
        status = 200, description = "Depending on the task: vectors, labels with scores, ranks or translations.",
        body = schemas::TaskResponse
    ))
)]
pub(super) async fn infer(
    InPath(name): InPath<String>,
    Call(context, mut body): Call<Value>,
) -> Result<Response, Rejection> {
    if !body.is_object() {
        return Err(Error::invalid("expected an object with `inputs`, but found none").into());
    }
    match &context.app.model(Some(&name))?.pipeline {
        Pipeline::Embedding(pipeline) if is_similarity(&body) => {
            similarity_with(&context, pipeline, from_value(body)?).await
        }
        Pipeline::Embedding(pipeline) => embed_with(&context, pipeline, body).await,
        Pipeline::Ranking(pipeline) => {
            rerank_with(&context, pipeline, from_value(body["inputs"].take())?).await
        }
        Pipeline::Classification(pipeline) => classify_with(&context, pipeline, from_value(body)?).await,
        Pipeline::ZeroShot(pipeline) => zero_shot_with(&context, pipeline, from_value(body)?).await,
        Pipeline::Translation(pipeline) => translate_with(&context, pipeline, from_value(body)?).await,
    }
}
