//! The dialects of Cohere (`/v2/rerank`) and Jina (`/v1/rerank`).

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{App, inputs, name_backend, openapi::schemas, rejection::Rejection, request};
use crate::{
    error::{Error, Result},
    model::Model,
    pipeline::{Usage, classification::descending, ranking::RankingOptions},
    tokenizer::{Side, Truncation},
};

/// An error as Cohere tells it: `{"message": …}`.
#[derive(Debug)]
pub(super) struct CohereFailure(Rejection);

/// An error as Jina tells it: `{"detail": …}`.
#[derive(Debug)]
pub(super) struct JinaFailure(Rejection);

impl<E: Into<Rejection>> From<E> for CohereFailure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl<E: Into<Rejection>> From<E> for JinaFailure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// An error of Cohere's route.
#[derive(Serialize, ToSchema)]
#[schema(as = CohereFailure)]
pub(super) struct CohereFailureBody {
    pub(super) message: String,
}

/// An error of Jina's route.
#[derive(Serialize, ToSchema)]
#[schema(as = JinaFailure)]
pub(super) struct JinaFailureBody {
    pub(super) detail: String,
}

impl IntoResponse for CohereFailure {
    fn into_response(self) -> Response {
        let body = CohereFailureBody { message: self.0.message.clone() };
        self.0.respond(&body)
    }
}

impl IntoResponse for JinaFailure {
    fn into_response(self) -> Response {
        let body = JinaFailureBody { detail: self.0.message.clone() };
        self.0.respond(&body)
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `query` and `documents`")]
#[schema(as = DocumentsRequest)]
struct RerankRequest {
    model: Option<String>,
    #[schema(schema_with = schemas::text)]
    query: Value,
    /// Texts, or objects with a `text`.
    #[schema(schema_with = schemas::documents)]
    documents: Value,
    /// How many come back; all if there is none.
    #[schema(minimum = 1)]
    top_n: Option<usize>,
    /// Whether the documents come back too, which only Jina's answer does; it does so unless told otherwise.
    return_documents: Option<bool>,
}

/// Documents, with their scores and the order that these put them in.
struct Ranked<'a> {
    model: &'a Model,
    documents: Vec<String>,
    scores: Vec<f32>,
    best: Vec<usize>,
    usage: Usage,
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

#[derive(Serialize, ToSchema)]
struct CohereAnswer<'a> {
    id: String,
    results: Vec<RankedDocument<'a>>,
    #[schema(value_type = Object)]
    meta: Value,
}

#[derive(Serialize, ToSchema)]
struct JinaAnswer<'a> {
    model: &'a str,
    object: &'static str,
    results: Vec<RankedDocument<'a>>,
    #[schema(value_type = Object)]
    usage: Value,
}

impl Ranked<'_> {
    /// The best documents, the best first.
    fn results(&self, with_documents: bool) -> Vec<RankedDocument<'_>> {
        let result = |index: &usize| RankedDocument {
            index: *index,
            relevance_score: self.scores[*index],
            document: with_documents.then(|| Document { text: &self.documents[*index] }),
        };
        self.best.iter().map(result).collect()
    }
}

async fn rank(app: &App, request: Request) -> Result<(Ranked<'_>, bool), Rejection> {
    let (body, deadline): (RerankRequest, _) = request::read(app, request).await?;
    let query = inputs::text("query", body.query)?;
    let documents = documents(body.documents, app.limits.texts)?;
    if body.top_n == Some(0) {
        return Err(Error::invalid("expected `top_n` above 0, but found 0").into());
    }
    let (model, pipeline) = app.ranking(body.model.as_deref())?;
    let truncation = if app.limits.truncate { Truncation::At(Side::Right) } else { Truncation::Off };
    let options = RankingOptions { truncation, raw_scores: false };
    let (scores, usage) = pipeline.score(query, documents.clone(), options, deadline).await?;
    let mut best = descending(&scores);
    best.truncate(body.top_n.unwrap_or(usize::MAX));
    // Jina gives documents back unless told otherwise.
    Ok((Ranked { model, documents, scores, best, usage }, body.return_documents.unwrap_or(true)))
}

/// Texts, or objects with a `text`.
fn documents(value: Value, limit: usize) -> Result<Vec<String>> {
    let Value::Array(values) = value else {
        return Err(Error::invalid("expected `documents` to be a list of texts, but found no list"));
    };
    inputs::count("documents", values.len(), limit)?;
    let texts = values.into_iter().enumerate().map(|(place, mut value)| {
        let value = if value.is_object() { value["text"].take() } else { value };
        inputs::text(&format!("documents[{place}]"), value)
    });
    texts.collect()
}

/// Documents ordered by a query
#[utoipa::path(
    post, path = "/v2/rerank", tag = "Cohere",
    request_body(
        content = RerankRequest,
        example = json!({ "model": "rank", "query": "egg", "documents": ["hen", "car"], "top_n": 1 })
    ),
    responses((
        status = 200, description = "The documents' places, the best first.", body = CohereAnswer<'static>,
        example = json!({
            "id": "3a1f…",
            "results": [{ "index": 0, "relevance_score": 0.72 }],
            "meta": {
                "api_version": { "version": "2" },
                "billed_units": { "search_units": 1 },
                "tokens": { "input_tokens": 12 }
            }
        })
    ))
)]
pub(super) async fn cohere(State(app): State<Arc<App>>, request: Request) -> Result<Response, CohereFailure> {
    let (ranked, _) = rank(&app, request).await?;
    let results = ranked.results(false);
    let meta = json!({
        "api_version": { "version": "2" },
        "billed_units": { "search_units": 1 },
        "tokens": { "input_tokens": ranked.usage.tokens },
    });
    let id = uuid::Uuid::new_v4().to_string();
    let mut response = Json(CohereAnswer { id, results, meta }).into_response();
    name_backend(&mut response, ranked.usage.location);
    Ok(response)
}

/// Documents ordered by a query
#[utoipa::path(
    post, path = "/v1/rerank", tag = "Jina",
    request_body(
        content = RerankRequest,
        example = json!({ "model": "rank", "query": "egg", "documents": ["hen", "car"], "top_n": 1 })
    ),
    responses((
        status = 200, description = "The documents, the best first.", body = JinaAnswer<'static>,
        example = json!({
            "model": "rank",
            "object": "list",
            "results": [{ "index": 0, "relevance_score": 0.72, "document": { "text": "hen" } }],
            "usage": { "prompt_tokens": 12, "total_tokens": 12 }
        })
    ))
)]
pub(super) async fn jina(State(app): State<Arc<App>>, request: Request) -> Result<Response, JinaFailure> {
    let (ranked, with_documents) = rank(&app, request).await?;
    let tokens = ranked.usage.tokens;
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    let results = ranked.results(with_documents);
    let answer = JinaAnswer { model: &ranked.model.name, object: "list", results, usage };
    let mut response = Json(answer).into_response();
    name_backend(&mut response, ranked.usage.location);
    Ok(response)
}
