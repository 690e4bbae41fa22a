//! Ranks texts by a query: TEI's `/rerank`, which also takes documents, Cohere's `/v2/rerank`, Jina's `/v1/rerank` and
//! NVIDIA's `/v1/ranking`.

use std::{fmt::Display, mem};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    bodies::{
        inputs::{self, RequestTexts},
        rejection::ApiResult,
        request::{Context, JsonRequest, RequestBody, from_known},
        response::{Rank, TokenUsage, by_model, with_usage},
        truncation::{BooleanOrTruncate, RequestedTruncation},
    },
    fields::known,
};
use kivu::{
    Error, Result,
    json::{Content, Tree, flattened},
    json_schemas::{Object, Text, TextOrObject, Texts},
    pipeline::{
        Usage,
        classification::{ranking::RankingPipeline, scores::descending},
    },
    task::ranking::RankingParameters,
    tokenizer::Side,
};

/// Texts with their scores.
pub struct Ranked {
    /// Empty if the response has none.
    texts: Vec<String>,
    scores: Vec<f32>,
    /// Text indexes, the highest score first.
    order: Vec<usize>,
    pub usage: Usage,
}

struct Candidates {
    query: String,
    texts: Vec<String>,
    /// Whether the response has the texts.
    are_returned: bool,
}

async fn rank(
    context: &Context,
    pipeline: &RankingPipeline,
    Candidates {
        query,
        texts,
        are_returned,
    }: Candidates,
    parameters: RankingParameters,
) -> Result<Ranked> {
    let ranker = parameters.prepare(pipeline, &context.scope())?;
    let returned = are_returned.then(|| texts.clone());
    let (scores, usage) = ranker.run(query, texts, context.deadline).await?;
    Ok(Ranked {
        texts: returned.unwrap_or_default(),
        order: descending(&scores),
        scores,
        usage,
    })
}

/// A query, and texts to rank by it.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `query` and `texts`")]
pub struct RerankRequest {
    /// The text by which the others are ranked.
    #[schemars(with = "Text")]
    query: Content,
    /// The texts to rank.
    #[schemars(with = "Texts")]
    texts: Content,
    /// Model name; the default is the first ranking model.
    model: Option<String>,
    /// Whether the response has the texts; false by default.
    return_text: Option<bool>,
    /// Number of texts to return; all by default.
    #[schemars(range(min = 1))]
    top_n: Option<usize>,
    #[serde(flatten, deserialize_with = "flattened")]
    parameters: RankingParameters,
}

/// The body of `/rerank`: TEI's, or that of vLLM and infinity.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
pub enum TextsOrDocuments {
    Texts(RerankRequest),
    Documents(DocumentsRequest),
}

/// Rank texts by a query
///
/// The body is a value tree, because its type depends on a field that may be its last one.
pub async fn rerank(JsonRequest(context, Tree(body)): JsonRequest<Tree>) -> ApiResult {
    let has = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    match (has("texts"), has("documents")) {
        (true, true) => Err(Error::invalid(
            "expected either `texts` or `documents`, but found both",
        )
        .with_hint("leave one of them out")
        .into()),
        (false, true) => {
            documents_with(&context, from_known(body, known("body.documents")?)?).await
        }
        (_, false) => {
            let body: RerankRequest = from_known(body, known("body.tei_rerank")?)?;
            let (_, pipeline) = context.ranking(body.model.as_deref()).await?;
            rerank_with(&context, &pipeline, body).await
        }
    }
}

/// Ranks documents as [`jina`] does, with the headers of TEI's routes.
async fn documents_with(context: &Context, body: DocumentsRequest) -> ApiResult {
    let (answer, usage) = jina_response(context, body).await?;
    Ok(with_usage(context, &answer, &usage))
}

pub async fn rerank_with(
    context: &Context,
    pipeline: &RankingPipeline,
    body: RerankRequest,
) -> ApiResult {
    let query = inputs::text(&"query", body.query, &context.texts)?;
    let texts = inputs::texts("texts", body.texts, &context.texts)?;
    inputs::above_zero("top_n", body.top_n)?;
    let candidates = Candidates {
        query,
        texts,
        are_returned: body.return_text.unwrap_or(false),
    };
    let mut ranked = rank(context, pipeline, candidates, body.parameters).await?;
    ranked.order.truncate(body.top_n.unwrap_or(usize::MAX));
    let ranks = ranked.order.iter().map(|&index| Rank {
        index,
        score: ranked.scores[index],
        text: ranked.texts.get(index).map(String::as_str),
    });
    Ok(with_usage(
        context,
        &ranks.collect::<Vec<_>>(),
        &ranked.usage,
    ))
}

impl RequestBody for DocumentsRequest {
    const FIELDS: &str = "body.documents";
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `query` and `documents`")]
pub struct DocumentsRequest {
    /// Model name; the default is the first ranking model.
    pub model: Option<String>,
    /// The text by which the documents are ranked.
    #[schemars(with = "Text")]
    pub query: Content,
    /// Texts, or objects with a `text`.
    #[schemars(with = "Vec<TextOrObject>", length(min = 1))]
    pub documents: Content,
    /// Number of documents to return; all by default.
    #[schemars(range(min = 1))]
    pub top_n: Option<usize>,
    /// Whether the response has the documents, by default true for Jina and false for Voyage and infinity; Cohere's never
    /// has.
    pub return_documents: Option<bool>,
    /// What makes a document relevant: replaces the instruction in the model's template, if it has one.
    pub instruction: Option<String>,
    /// A text to put before the query, instead of the model's prompt.
    pub prompt: Option<String>,
    /// Voyage's name for `top_n`.
    #[schemars(range(min = 1))]
    pub top_k: Option<usize>,
    /// Voyage's: whether texts beyond the model's limit are truncated; otherwise they are rejected. The response to a
    /// request with this field or `top_k` is Voyage's.
    pub truncation: Option<bool>,
    /// Cohere's: number of tokens to read of each document; not below the model's limit.
    #[schemars(range(min = 1))]
    pub max_tokens_per_doc: Option<usize>,
    /// Whether texts beyond the model's limit are truncated; otherwise they are rejected. NVIDIA's clients send `NONE`, or
    /// the end that is cut off, `START` or `END`.
    pub truncate: Option<BooleanOrTruncate>,
    /// vLLM's: -1, or at least the model's limit, truncates longer texts.
    #[schemars(range(min = -1))]
    pub truncate_prompt_tokens: Option<i64>,
    /// vLLM's: the text end that is cut off; the right one by default.
    pub truncation_side: Option<Side>,
    /// infinity's: whether scores are logits, cosines or product sums instead of numbers from 0 to 1. The response to a
    /// request with this field is infinity's.
    pub raw_scores: Option<bool>,
    /// vLLM's: the opposite of `raw_scores`.
    pub use_activation: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
pub struct RankedDocument {
    /// The document's position in the request, from 0.
    index: usize,
    /// From 0 to 1, the most relevant document first.
    relevance_score: f32,
    /// The document, if `return_documents` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// The document's text.
    text: String,
}

/// A document in Voyage's or infinity's response, in which its text is no object.
#[derive(Serialize, JsonSchema)]
struct RankedText {
    /// The document's position in the request, from 0.
    index: usize,
    /// From 0 to 1, the most relevant document first.
    relevance_score: f32,
    /// The document's text, if `return_documents` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<String>,
}

impl Ranked {
    /// The best documents, with their texts if the response has them.
    pub fn documents(&mut self) -> Vec<RankedDocument> {
        let document = |(index, relevance_score, text): (_, _, Option<_>)| RankedDocument {
            index,
            relevance_score,
            document: text.map(|text| Document { text }),
        };
        self.best().map(document).collect()
    }

    /// The same in Voyage's and infinity's form.
    fn documents_as_texts(&mut self) -> Vec<RankedText> {
        let document = |(index, relevance_score, document)| RankedText {
            index,
            relevance_score,
            document,
        };
        self.best().map(document).collect()
    }

    /// The best documents' places, scores, and texts if the response has them.
    fn best(&mut self) -> impl Iterator<Item = (usize, f32, Option<String>)> {
        let Self {
            texts,
            scores,
            order,
            ..
        } = self;
        let best =
            move |&index: &usize| (index, scores[index], texts.get_mut(index).map(mem::take));
        order.iter().map(best)
    }
}

/// Ranks documents, and keeps their texts only if `return_documents` is true; also returns the model name.
pub async fn rank_documents(context: &Context, body: DocumentsRequest) -> Result<(&str, Ranked)> {
    let (model, pipeline) = context.ranking(body.model.as_deref()).await?;
    let query = inputs::text(&"query", body.query, &context.texts)?;
    let texts = documents("documents", body.documents, &context.texts)?;
    inputs::above_zero("top_n", body.top_n)?;
    inputs::above_zero("top_k", body.top_k)?;
    let top = inputs::one_value([("top_n", body.top_n), ("top_k", body.top_k)])?;
    inputs::refuse_lower_token_limit(
        "max_tokens_per_doc",
        body.max_tokens_per_doc,
        pipeline.max_tokens(),
    )?;
    let truncation = RequestedTruncation {
        truncate: body.truncate,
        truncation: body.truncation,
        truncate_prompt_tokens: body.truncate_prompt_tokens,
        truncation_side: body.truncation_side,
    };
    let parameters = RankingParameters {
        truncation: truncation.parameters(pipeline.max_tokens())?,
        instruction: body.instruction,
        prompt: body.prompt,
        raw_scores: raw_scores(body.raw_scores, body.use_activation)?,
    };
    let candidates = Candidates {
        query,
        texts,
        are_returned: body.return_documents.unwrap_or(false),
    };
    let mut ranked = rank(context, &pipeline, candidates, parameters).await?;
    ranked.order.truncate(top.unwrap_or(usize::MAX));
    Ok((&model.name, ranked))
}

/// Whether scores are raw. vLLM's clients say the opposite.
pub fn raw_scores(raw_scores: Option<bool>, use_activation: Option<bool>) -> Result<Option<bool>> {
    inputs::one_value([
        ("raw_scores", raw_scores),
        ("use_activation", use_activation.map(|is_used| !is_used)),
    ])
}

/// Texts, or objects with a `text`.
fn documents(field: &str, values: Content, texts: &RequestTexts) -> Result<Vec<String>> {
    if !matches!(values, Content::List(_)) {
        return Err(Error::invalid(format!(
            "expected `{field}` to be a list of texts, but found {}",
            values.kind()
        ))
        .in_field(field));
    }
    inputs::one_or_list(field, values, texts, document)
}

/// A text, or an object's `text`.
fn document(field: &dyn Display, value: Content, texts: &RequestTexts) -> Result<String> {
    let is_object = matches!(value, Content::Object(_));
    match value.into_text() {
        text if is_object && text.is_null() => Err(Error::invalid(format!(
            "expected a text in `{field}.text`, but found none"
        ))
        .in_field(format_args!("{field}.text"))),
        text => inputs::text(field, text, texts),
    }
}

/// Cohere's response.
#[derive(Serialize, JsonSchema)]
pub struct CohereResponse {
    /// The best documents, in descending order.
    results: Vec<RankedDocument>,
    /// A new UUID.
    id: String,
    /// The API version, one search as `billed_units`, and input tokens.
    #[schemars(with = "Object")]
    meta: Value,
}

/// Jina's response, Voyage's or infinity's.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub struct JinaResponse<'a> {
    #[serde(flatten)]
    ranks: JinaRanks,
    /// The name of the model that ran.
    model: &'a str,
    /// `list`; for infinity's clients `rerank`, without which they fail.
    object: &'static str,
    /// Tokens of the query and all documents.
    usage: TokenUsage,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum JinaRanks {
    Jina {
        /// The best documents, in descending order.
        results: Vec<RankedDocument>,
    },
    Infinity {
        /// The best documents, in descending order.
        results: Vec<RankedText>,
    },
    Voyage {
        /// The best documents, in descending order.
        data: Vec<RankedText>,
    },
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `query` and `passages`")]
pub struct PassagesRequest {
    /// Model name; the default is the first ranking model.
    model: Option<String>,
    /// A text, or an object with a `text`, by which the passages are ranked.
    #[schemars(with = "TextOrObject")]
    query: Content,
    /// Texts, or objects with a `text`.
    #[schemars(with = "Vec<TextOrObject>", length(min = 1))]
    passages: Content,
    /// Number of passages to return, as LiteLLM sends it; the default is all.
    #[schemars(range(min = 1))]
    top_k: Option<usize>,
    /// What happens to texts beyond the model's limit: `NONE` rejects them, `END` truncates them.
    truncate: Option<BooleanOrTruncate>,
}

impl RequestBody for PassagesRequest {
    const FIELDS: &str = "body.passages";
}

#[derive(Serialize, JsonSchema)]
pub struct PassagesResponse {
    /// The best passages, in descending order.
    rankings: Vec<RankedPassage>,
    /// Tokens of the query and all passages.
    usage: TokenUsage,
}

#[derive(Serialize, JsonSchema)]
struct RankedPassage {
    /// The passage's position in the request, from 0.
    index: usize,
    /// A logit, or an embedding model's similarity.
    logit: f32,
}

/// Rank passages by a query, as NVIDIA does
pub async fn nvidia(JsonRequest(context, body): JsonRequest<PassagesRequest>) -> ApiResult {
    let (_, pipeline) = context.ranking(body.model.as_deref()).await?;
    inputs::above_zero("top_k", body.top_k)?;
    let candidates = Candidates {
        query: document(&"query", body.query, &context.texts)?,
        texts: documents("passages", body.passages, &context.texts)?,
        are_returned: false,
    };
    let truncation = RequestedTruncation {
        truncate: body.truncate,
        ..RequestedTruncation::default()
    };
    let parameters = RankingParameters {
        truncation: truncation.parameters(pipeline.max_tokens())?,
        raw_scores: Some(true),
        ..RankingParameters::default()
    };
    let mut ranked = rank(&context, &pipeline, candidates, parameters).await?;
    ranked.order.truncate(body.top_k.unwrap_or(usize::MAX));
    let passage = |(index, logit, _)| RankedPassage { index, logit };
    let answer = PassagesResponse {
        rankings: ranked.best().map(passage).collect(),
        usage: TokenUsage::of(&ranked.usage),
    };
    Ok(by_model(&answer, &ranked.usage))
}

/// Rank documents by a query, as Cohere does
pub async fn cohere(JsonRequest(context, mut body): JsonRequest<DocumentsRequest>) -> ApiResult {
    body.return_documents = Some(false);
    let (_, mut ranked) = rank_documents(&context, body).await?;
    let meta = json!({
        "api_version": { "version": "2" },
        "billed_units": { "search_units": 1 },
        "tokens": { "input_tokens": ranked.usage.tokens },
    });
    let id = uuid::Uuid::new_v4().to_string();
    let answer = CohereResponse {
        results: ranked.documents(),
        id,
        meta,
    };
    Ok(by_model(&answer, &ranked.usage))
}

/// Rank documents by a query, as Jina and Voyage do
pub async fn jina(JsonRequest(context, body): JsonRequest<DocumentsRequest>) -> ApiResult {
    let (answer, usage) = jina_response(&context, body).await?;
    Ok(by_model(&answer, &usage))
}

async fn jina_response(
    context: &Context,
    mut body: DocumentsRequest,
) -> Result<(JinaResponse<'_>, Usage)> {
    let is_voyages = body.top_k.is_some() || body.truncation.is_some();
    // Its client always sends the field.
    let is_infinitys = body.raw_scores.is_some() && !is_voyages;
    body.return_documents
        .get_or_insert(!is_voyages && !is_infinitys);
    let (model, mut ranked) = rank_documents(context, body).await?;
    let usage = TokenUsage::of(&ranked.usage);
    let ranks = match (is_voyages, is_infinitys) {
        (true, _) => JinaRanks::Voyage {
            data: ranked.documents_as_texts(),
        },
        (_, true) => JinaRanks::Infinity {
            results: ranked.documents_as_texts(),
        },
        _ => JinaRanks::Jina {
            results: ranked.documents(),
        },
    };
    let answer = JinaResponse {
        ranks,
        model,
        object: if is_infinitys { "rerank" } else { "list" },
        usage,
    };
    Ok((answer, ranked.usage))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::scripted::ask;

    /// Voyage's and infinity's clients read the document as a string, all others as an object; infinity's fail for another
    /// `object`.
    #[tokio::test]
    async fn documents_have_the_form_of_their_api() {
        let mut found = String::new();
        for (path, more) in [
            ("/v1/rerank", json!({})),
            ("/v1/rerank", json!({ "top_n": 1 })),
            ("/v1/rerank", json!({ "return_documents": false })),
            ("/v1/rerank", json!({ "top_k": 1 })),
            (
                "/v1/rerank",
                json!({ "top_k": 1, "return_documents": true }),
            ),
            (
                "/rerank",
                json!({ "truncation": true, "return_documents": true }),
            ),
            ("/rerank", json!({ "raw_scores": false })),
            (
                "/v1/rerank",
                json!({ "raw_scores": true, "return_documents": true, "top_n": 1 }),
            ),
            (
                "/v1/rerank",
                json!({ "raw_scores": true, "return_documents": true, "top_k": 1 }),
            ),
        ] {
            let mut body = json!({ "query": "cat", "documents": ["dog", { "text": "fish" }] });
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().cloned().unwrap());
            let (_, answer) = ask(path, &body).await;
            let [object, results, data] = ["object", "results", "data"].map(|part| &answer[part]);
            found += &format!("{more} {object} {results} {data}\n");
        }
        insta::assert_snapshot!(found, @r#"
        {} "list" [{"document":{"text":"dog"},"index":0,"relevance_score":0.7310586},{"document":{"text":"fish"},"index":1,"relevance_score":0.7310586}] null
        {"top_n":1} "list" [{"document":{"text":"dog"},"index":0,"relevance_score":0.7310586}] null
        {"return_documents":false} "list" [{"index":0,"relevance_score":0.7310586},{"index":1,"relevance_score":0.7310586}] null
        {"top_k":1} "list" null [{"index":0,"relevance_score":0.7310586}]
        {"return_documents":true,"top_k":1} "list" null [{"document":"dog","index":0,"relevance_score":0.7310586}]
        {"return_documents":true,"truncation":true} "list" null [{"document":"dog","index":0,"relevance_score":0.7310586},{"document":"fish","index":1,"relevance_score":0.7310586}]
        {"raw_scores":false} "rerank" [{"index":0,"relevance_score":0.7310586},{"index":1,"relevance_score":0.7310586}] null
        {"raw_scores":true,"return_documents":true,"top_n":1} "rerank" [{"document":"dog","index":0,"relevance_score":1.0}] null
        {"raw_scores":true,"return_documents":true,"top_k":1} "list" null [{"document":"dog","index":0,"relevance_score":1.0}]
        "#);
    }

    /// Clients send `query` and `passages` as objects.
    #[tokio::test]
    async fn passages_are_ranked_by_logits() {
        let mut found = String::new();
        for more in [
            json!({ "truncate": "END" }),
            json!({ "query": "cat", "passages": ["dog"] }),
            json!({ "passages": [{ "text": "dog", "image": "data:" }] }),
            json!({ "passages": [{ "text": "dog" }, {}] }),
            json!({ "passages": ["dog", ""] }),
            json!({ "passages": "dog" }),
            json!({ "documents": ["dog"] }),
            json!({ "top_n": 1 }),
            json!({ "top_k": 1 }),
            json!({ "top_k": 0 }),
        ] {
            let mut body = json!({ "query": { "text": "cat" }, "passages": [{ "text": "dog" }, { "text": "fish" }] });
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().cloned().unwrap());
            let (status, answer) = ask("/v1/ranking", &body).await;
            let [rankings, message] =
                ["/rankings", "/error/message"].map(|part| answer.pointer(part));
            let answer = rankings.or(message).unwrap_or(&answer);
            found += &format!("{more} {status} {answer}\n");
        }
        insta::assert_snapshot!(found, @r#"
        {"truncate":"END"} 200 OK [{"index":0,"logit":1.0},{"index":1,"logit":1.0}]
        {"passages":["dog"],"query":"cat"} 200 OK [{"index":0,"logit":1.0}]
        {"passages":[{"image":"data:","text":"dog"}]} 422 Unprocessable Entity "`passages[0].image` is not supported: models read texts"
        {"passages":[{"text":"dog"},{}]} 422 Unprocessable Entity "expected a text in `passages[1].text`, but found none"
        {"passages":["dog",""]} 422 Unprocessable Entity "expected a text in `passages[1]`, but found an empty one"
        {"passages":"dog"} 422 Unprocessable Entity "expected `passages` to be a list of texts, but found a string"
        {"documents":["dog"]} 422 Unprocessable Entity "`documents` is not supported: use `passages`"
        {"top_n":1} 422 Unprocessable Entity "`top_n: 1` is not supported: use `top_k`"
        {"top_k":1} 200 OK [{"index":0,"logit":1.0}]
        {"top_k":0} 422 Unprocessable Entity "expected `top_k` above 0, but found 0"
        "#);
    }
}
