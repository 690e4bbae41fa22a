//! The routes whose body and response depend on the model's task: `POST /` of TEI, and `POST /models/{model}` of the
//! model hub.

use serde_json::Value;

use super::{
    classification::{classify_with, predict_with, zero_shot_with},
    embedding::{SimilarityRequest, embed_with, similarity_with},
    ranking::rerank_with,
    rejection::Reply,
    request::{Call, InPath, from_value, model_name},
    translation::translate_with,
};
use crate::{error::Error, model::Pipeline};

/// Run the first model
///
/// Takes and answers the body of `/embed`, `/predict`, `/rerank` or a translation, depending on the task of the first
/// model, or that of `/similarity` if `inputs` has a `source_sentence`.
pub(super) async fn default_task(Call(context, body): Call<Value>) -> Reply {
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

/// Run a model
pub(super) async fn infer(InPath(name): InPath<String>, Call(context, mut body): Call<Value>) -> Reply {
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
