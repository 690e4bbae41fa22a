//! Ranking texts by a query: `/rerank` of TEI, `/v2/rerank` of Cohere and `/v1/rerank` of Jina.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    inputs,
    openapi::schemas,
    rejection::Rejection,
    request::{Call, Context},
    response::{Rank, characters, with_backend, with_usage},
};
use crate::{
    error::{Error, Result},
    pipeline::{
        Usage,
        ranking::{RankingOptions, RankingPipeline},
        scores::descending,
    },
    tokenizer::Side,
};

/// Texts with their scores.
struct Ranked {
    texts: Vec<String>,
    scores: Vec<f32>,
    /// Positions of the texts, the highest score first.
    order: Vec<usize>,
    usage: Usage,
}

async fn rank(
    context: &Context,
    pipeline: &RankingPipeline,
    query: String,
    texts: Vec<String>,
    options: RankingOptions,
) -> Result<Ranked> {
    let (scores, usage) = pipeline.score(query, texts.clone(), options, context.deadline).await?;
    Ok(Ranked { texts, order: descending(&scores), scores, usage })
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `query` and `texts`")]
pub(super) struct RerankRequest {
    #[schema(schema_with = schemas::text)]
    query: Value,
    #[schema(schema_with = schemas::texts)]
    texts: Value,
    /// The name of the model; by default the first ranking model.
    model: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
    /// Whether scores are logits or cosines; by default they are between 0 and 1.
    raw_scores: Option<bool>,
    return_text: Option<bool>,
}

/// Rank texts by a query
#[utoipa::path(
    post, path = "/rerank", tag = "TEI", request_body = RerankRequest,
    responses((
        status = 200, description = "The texts' positions and scores, the highest score first.",
        body = Vec<Rank<'static>>
    ))
)]
pub(super) async fn rerank(Call(context, body): Call<RerankRequest>) -> Result<Response, Rejection> {
    let (_, pipeline) = context.app.ranking(body.model.as_deref())?;
    rerank_with(&context, pipeline, body).await
}

pub(super) async fn rerank_with(
    context: &Context,
    pipeline: &RankingPipeline,
    body: RerankRequest,
) -> Result<Response, Rejection> {
    let app = &context.app;
    let query = inputs::text("query", body.query)?;
    let texts = inputs::texts("texts", body.texts, app.limits.texts)?;
    let options = RankingOptions {
        truncation: app.truncation(body.truncate, body.truncation_direction),
        raw_scores: body.raw_scores.unwrap_or(false),
    };
    let characters = characters([&query].into_iter().chain(&texts).map(String::as_str));
    let ranked = rank(context, pipeline, query, texts, options).await?;
    let with_text = body.return_text.unwrap_or(false);
    let ranks = ranked.order.iter().map(|&index| Rank {
        index,
        score: ranked.scores[index],
        text: with_text.then(|| ranked.texts[index].as_str()),
    });
    Ok(with_usage(context, &ranks.collect::<Vec<_>>(), &ranked.usage, characters))
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `query` and `documents`")]
pub(super) struct DocumentsRequest {
    /// The name of the model; by default the first ranking model.
    model: Option<String>,
    #[schema(schema_with = schemas::text)]
    query: Value,
    /// Texts, or objects with a `text`.
    #[schema(schema_with = schemas::documents)]
    documents: Value,
    /// The number of documents to return; all by default.
    #[schema(minimum = 1)]
    top_n: Option<usize>,
    /// Whether the response holds the documents, by default true; Cohere's never does.
    return_documents: Option<bool>,
}

#[derive(Serialize, ToSchema)]
struct RankedDocument<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document<'a>>,
}

#[derive(Serialize, ToSchema)]
struct Document<'a> {
    text: &'a str,
}

impl Ranked {
    fn documents(&self, with_text: bool) -> Vec<RankedDocument<'_>> {
        let document = |&index: &usize| RankedDocument {
            index,
            relevance_score: self.scores[index],
            document: with_text.then(|| Document { text: &self.texts[index] }),
        };
        self.order.iter().map(document).collect()
    }
}

/// Ranks documents; returns the name of the model as well.
async fn rank_documents(context: &Context, body: DocumentsRequest) -> Result<(&str, Ranked)> {
    let app = &context.app;
    let query = inputs::text("query", body.query)?;
    let documents = parse_documents(body.documents, app.limits.texts)?;
    if body.top_n == Some(0) {
        return Err(Error::invalid("expected `top_n` above 0, but found 0"));
    }
    let (model, pipeline) = app.ranking(body.model.as_deref())?;
    let options = RankingOptions { truncation: app.truncation(None, None), raw_scores: false };
    let mut ranked = rank(context, pipeline, query, documents, options).await?;
    ranked.order.truncate(body.top_n.unwrap_or(usize::MAX));
    Ok((&model.name, ranked))
}

fn parse_documents(value: Value, limit: usize) -> Result<Vec<String>> {
    let Value::Array(values) = value else {
        return Err(Error::invalid("expected `documents` to be a list of texts, but found no list"));
    };
    inputs::list("documents", values, limit, |field, mut value| {
        inputs::text(field, if value.is_object() { value["text"].take() } else { value })
    })
}

#[derive(Serialize, ToSchema)]
struct CohereResponse<'a> {
    id: String,
    results: Vec<RankedDocument<'a>>,
    #[schema(value_type = Object)]
    meta: Value,
}

/// Rank documents by a query
#[utoipa::path(
    post, path = "/v2/rerank", tag = "Cohere", request_body = DocumentsRequest,
    responses((
        status = 200, description = "The documents' positions and scores, the highest score first.",
        body = CohereResponse<'static>
    ))
)]
pub(super) async fn cohere(Call(context, body): Call<DocumentsRequest>) -> Result<Response, Rejection> {
    let (_, ranked) = rank_documents(&context, body).await?;
    let meta = json!({
        "api_version": { "version": "2" },
        "billed_units": { "search_units": 1 },
        "tokens": { "input_tokens": ranked.usage.tokens },
    });
    let id = uuid::Uuid::new_v4().to_string();
    let answer = CohereResponse { id, results: ranked.documents(false), meta };
    Ok(with_backend(&answer, ranked.usage.location))
}

#[derive(Serialize, ToSchema)]
struct JinaResponse<'a> {
    model: &'a str,
    object: &'static str,
    results: Vec<RankedDocument<'a>>,
    #[schema(value_type = Object)]
    usage: Value,
}

/// Rank documents by a query
#[utoipa::path(
    post, path = "/v1/rerank", tag = "Jina", request_body = DocumentsRequest,
    responses((
        status = 200, description = "The documents and their scores, the highest score first.",
        body = JinaResponse<'static>
    ))
)]
pub(super) async fn jina(Call(context, body): Call<DocumentsRequest>) -> Result<Response, Rejection> {
    let with_text = body.return_documents.unwrap_or(true);
    let (model, ranked) = rank_documents(&context, body).await?;
    let tokens = ranked.usage.tokens;
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    let answer = JinaResponse { model, object: "list", results: ranked.documents(with_text), usage };
    Ok(with_backend(&answer, ranked.usage.location))
}
