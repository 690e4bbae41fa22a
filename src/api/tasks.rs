//! The routes whose body and response depend on the model's task: `POST /` of TEI, with `/invocations` of SageMaker and
//! `/vertex` of Vertex AI, and `POST /models/{model}` of the model hub.

use axum::{body::Bytes, http::header::CONTENT_TYPE, response::IntoResponse};
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use http_body_util::BodyExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    classification::{classify_with, predict_with, zero_shot_with},
    embedding::{SimilarityRequest, embed_by_default, similarity_with},
    generation::generate_with,
    inputs,
    ranking::rerank_with,
    rejection::Reply,
    request::{Call, Context, InPath, PiecewiseCall, from_value, model_name},
    response::BACKEND,
    task_schemas::DefaultRequest,
    token_classification::{find_entities_with, label_tokens_with},
};
use crate::{error::Error, model::Pipeline, pipeline::sharing_turns};

/// Run the first model
///
/// Accepts the body of `/embed`, `/predict`, `/rerank`, zero-shot or token classification, or texts to generate from,
/// depending on the task of the first model, or that of `/similarity` if `inputs` has a `source_sentence`, and returns the
/// response of that route.
pub(super) async fn default_task(Call(context, body): Call<Value>) -> Reply {
    run_default(&context, body).await
}

async fn run_default(context: &Context, body: Value) -> Reply {
    let app = &context.app;
    if is_similarity(&body) {
        let request: SimilarityRequest = from_value(body)?;
        let name = request.model().map(str::to_owned);
        let (_, pipeline) = app.embedding(name.as_deref())?;
        return similarity_with(context, pipeline, name.as_deref(), request).await;
    }
    let name = model_name(&body).map(str::to_owned);
    let name = name.as_deref();
    let model = app.model(name)?;
    match &model.pipeline {
        Pipeline::Classification(pipeline) => predict_with(context, pipeline, from_value(body)?).await,
        Pipeline::TokenClassification(pipeline) => {
            label_tokens_with(context, pipeline, from_value(body)?).await
        }
        Pipeline::ZeroShotEntities(pipeline) => {
            find_entities_with(context, pipeline, from_value(body)?).await
        }
        Pipeline::Ranking(pipeline) => rerank_with(context, pipeline, from_value(body)?).await,
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
            generate_with(context, (pipeline, model.manifest.task), body).await
        }
        Pipeline::Embedding(pipeline) => embed_by_default(context, pipeline, name, body).await,
        Pipeline::ZeroShot(pipeline) => zero_shot_with(context, pipeline, from_value(body)?).await,
    }
}

fn is_similarity(body: &Value) -> bool {
    body.get("inputs").is_some_and(|inputs| inputs.get("source_sentence").is_some())
}

/// Instances of a request that run at the same time.
const CONCURRENT_INSTANCES: usize = 16;
/// How many bytes of a response take as much memory as a value.
const BYTES_PER_VALUE: usize = 12;

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `instances`")]
pub(super) struct VertexRequest {
    /// Bodies of `POST /`.
    #[schemars(with = "Vec<DefaultRequest>", length(min = 1))]
    instances: Vec<Value>,
}

/// Run the first model for several requests, as Vertex AI does
///
/// The instances share the limits and the turns of the request.
pub(super) async fn vertex(PiecewiseCall(context, body): PiecewiseCall<VertexRequest>) -> Reply {
    inputs::count("instances", body.instances.len(), context.app.limits.texts)?;
    sharing_turns(run_instances(&context, body.instances)).await
}

async fn run_instances(context: &Context, instances: Vec<Value>) -> Reply {
    let (limits, context) = (&context.app.limits, context.of_part(instances.len()));
    let (mut predictions, mut size, mut backend) = (vec![Bytes::new(); instances.len()], 0, None);
    let runs = instances.into_iter().enumerate().map(|(index, instance)| {
        run_default(&context, instance).map_ok(move |response| (index, response.into_parts()))
    });
    // The first error ends all instances.
    let mut runs = stream::iter(runs).buffer_unordered(CONCURRENT_INSTANCES);
    while let Some((index, (parts, body))) = runs.try_next().await? {
        // Responses of models are in memory, so that reading one does not wait.
        let body = body.collect().await.map_err(|_| Error::inference("a response is incomplete"))?.to_bytes();
        size += body.len();
        if size > limits.values.saturating_mul(BYTES_PER_VALUE) {
            return Err(
                Error::too_large("expected fewer texts in all `instances`; send fewer at once").into()
            );
        }
        predictions[index] = body;
        backend = parts.headers.get(BACKEND).cloned();
    }
    let body = [br#"{"predictions":["#.as_slice(), &predictions.join(b",".as_slice()), b"]}"].concat();
    let backend = backend.map(|backend| [(BACKEND, backend)]);
    Ok((backend, [(CONTENT_TYPE, "application/json")], body).into_response())
}

/// Run a model
pub(super) async fn infer(InPath(name): InPath<String>, Call(context, mut body): Call<Value>) -> Reply {
    if !body.is_object() {
        return Err(Error::invalid("expected an object with `inputs`, but found none").into());
    }
    let model = context.app.model(Some(&name))?;
    match &model.pipeline {
        Pipeline::Embedding(pipeline) if is_similarity(&body) => {
            similarity_with(&context, pipeline, Some(&name), from_value(body)?).await
        }
        Pipeline::Embedding(pipeline) => embed_by_default(&context, pipeline, Some(&name), body).await,
        Pipeline::Ranking(pipeline) => {
            rerank_with(&context, pipeline, from_value(body["inputs"].take())?).await
        }
        Pipeline::Classification(pipeline) => classify_with(&context, pipeline, from_value(body)?).await,
        Pipeline::TokenClassification(pipeline) => {
            label_tokens_with(&context, pipeline, from_value(body)?).await
        }
        Pipeline::ZeroShotEntities(pipeline) => {
            find_entities_with(&context, pipeline, from_value(body)?).await
        }
        Pipeline::ZeroShot(pipeline) => zero_shot_with(&context, pipeline, from_value(body)?).await,
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
            generate_with(&context, (pipeline, model.manifest.task), body).await
        }
    }
}
