//! vLLM's `/score`: the relevance of texts to a query, in the order of the texts, or of each pair in two lists.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bodies::{
        inputs,
        rejection::ApiResult,
        request::{Context, JsonRequest, RequestBody},
        response::{TokenUsage, with_usage},
        truncation::RequestedTruncation,
    },
    tasks::ranking::raw_scores,
};
use kivu::{
    Error, Result, clock,
    json::Content,
    json_schemas::Texts,
    pipeline::{Usage, classification::ranking::RankingPipeline},
    task::ranking::{Ranker, RankingParameters},
    tokenizer::Side,
};

/// A query and texts, or two lists of the same length. They have one of four pairs of names.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `text_1` and `text_2`")]
pub struct ScoreRequest {
    /// Model name; the default is the first ranking model.
    model: Option<String>,
    /// The query, or a query for each text in `text_2`.
    #[schemars(with = "Option<Texts>")]
    text_1: Option<Content>,
    /// The texts.
    #[schemars(with = "Option<Texts>")]
    text_2: Option<Content>,
    /// Another name for `text_1`, with `documents` or `items`.
    #[schemars(with = "Option<Texts>")]
    queries: Option<Content>,
    /// Another name for `text_2`, with `queries`.
    #[schemars(with = "Option<Texts>")]
    documents: Option<Content>,
    /// Another name for `text_2`, with `queries`.
    #[schemars(with = "Option<Texts>")]
    items: Option<Content>,
    /// Another name for `text_1`, with `data_2`.
    #[schemars(with = "Option<Texts>")]
    data_1: Option<Content>,
    /// Another name for `text_2`, with `data_1`.
    #[schemars(with = "Option<Texts>")]
    data_2: Option<Content>,
    /// What makes a text relevant: replaces the instruction in the model's template, if it has one.
    instruction: Option<String>,
    /// Number of tokens to read of each text; not below the model's limit, 0 for that limit.
    max_tokens_per_doc: Option<usize>,
    /// -1, or at least the model's limit, truncates longer texts.
    #[schemars(range(min = -1))]
    truncate_prompt_tokens: Option<i64>,
    /// The text end that is cut off; the right one by default.
    truncation_side: Option<Side>,
    /// Whether a cross-encoder's scores are from 0 to 1; with false they are logits.
    use_activation: Option<bool>,
}

impl RequestBody for ScoreRequest {
    const FIELDS: &str = "vLLM.score";
}

#[derive(Serialize, JsonSchema)]
pub struct ScoreResponse<'a> {
    /// `score-` and a new UUID.
    id: String,
    /// `list`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The name of the model that ran.
    model: &'a str,
    /// An entry per text, in input order.
    data: Vec<TextScore>,
    /// Tokens of the request.
    usage: TokenUsage,
}

#[derive(Serialize, JsonSchema)]
struct TextScore {
    /// The text's position in the request.
    index: usize,
    /// `score`.
    object: &'static str,
    /// From 0 to 1 for cross-encoders, unless `use_activation` is false; cosines or product sums for other models.
    score: f32,
}

/// Pairs that run at the same time.
const CONCURRENT_QUERIES: usize = 8;

/// Score texts by a query, as vLLM does
pub async fn score(JsonRequest(context, body): JsonRequest<ScoreRequest>) -> ApiResult {
    let (model, pipeline) = context.ranking(body.model.as_deref()).await?;
    inputs::refuse_lower_token_limit(
        "max_tokens_per_doc",
        body.max_tokens_per_doc.filter(|tokens| *tokens > 0),
        pipeline.max_tokens(),
    )?;
    let truncation = RequestedTruncation {
        truncate_prompt_tokens: body.truncate_prompt_tokens,
        truncation_side: body.truncation_side,
        ..RequestedTruncation::default()
    };
    let is_raw = match pipeline {
        RankingPipeline::CrossEncoder(_) => raw_scores(None, body.use_activation)?,
        RankingPipeline::Embedding(_) | RankingPipeline::Listwise(_) => Some(true),
    };
    let parameters = RankingParameters {
        raw_scores: is_raw,
        instruction: body.instruction.clone(),
        prompt: None,
        truncation: truncation.parameters(pipeline.max_tokens())?,
    };
    let ranker = parameters.prepare(&pipeline, &context.scope())?;
    let (queries, texts) = body.texts(&context)?;
    let (scores, usage) = run(&context, &ranker, queries, texts).await?;
    let score = |(index, score)| TextScore {
        index,
        object: "score",
        score,
    };
    let response = ScoreResponse {
        id: format!("score-{}", uuid::Uuid::new_v4().simple()),
        object: "list",
        created: clock::since_1970().as_secs(),
        model: &model.name,
        data: scores.into_iter().enumerate().map(score).collect(),
        usage: TokenUsage::of(&usage),
    };
    Ok(with_usage(&context, &response, &usage))
}

impl ScoreRequest {
    /// The queries, one for all texts or one for each, and the texts.
    fn texts(self, context: &Context) -> Result<(Vec<String>, Vec<String>)> {
        let pairs = [
            (("text_1", self.text_1), ("text_2", self.text_2)),
            (("data_1", self.data_1), ("data_2", self.data_2)),
            (
                ("queries", self.queries),
                match self.items {
                    Some(items) if self.documents.is_none() => ("items", Some(items)),
                    Some(_) => {
                        return Err(Error::invalid(
                            "expected either `documents` or `items`, but found both",
                        )
                        .with_hint("leave one of them out"));
                    }
                    None => ("documents", self.documents),
                },
            ),
        ];
        let mut given = pairs
            .into_iter()
            .filter(|((_, queries), (_, texts))| queries.is_some() || texts.is_some());
        let (Some(((first, Some(queries)), (second, Some(texts)))), None) =
            (given.next(), given.next())
        else {
            return Err(Error::invalid(
                "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and \
                 `data_2`, but found none or others",
            ));
        };
        let queries = inputs::texts(first, queries, &context.texts)?;
        let texts = inputs::texts(second, texts, &context.texts)?;
        match queries.len() {
            1 => Ok((queries, texts)),
            count if count == texts.len() => Ok((queries, texts)),
            count => Err(Error::invalid(format!(
                "expected one text in `{first}`, or as many as in `{second}`, but found {count} and {}",
                texts.len()
            ))),
        }
    }
}

/// Scores in text order. The texts of equal queries are scored together, unless a score would depend on the others.
async fn run(
    context: &Context,
    ranker: &Ranker,
    queries: Vec<String>,
    texts: Vec<String>,
) -> Result<(Vec<f32>, Usage)> {
    if let [query] = queries.as_slice() {
        return ranker.run(query.clone(), texts, context.deadline).await;
    }
    let mut scores = vec![0.0; texts.len()];
    let mut groups: BTreeMap<(String, usize), (Vec<usize>, Vec<String>)> = BTreeMap::new();
    for (place, (query, text)) in queries.into_iter().zip(texts).enumerate() {
        let group = if ranker.is_listwise() { place } else { 0 };
        let (places, texts) = groups.entry((query, group)).or_default();
        places.push(place);
        texts.push(text);
    }
    let deadline = context
        .deadline
        .shared_by(groups.len().min(CONCURRENT_QUERIES));
    let runs = groups
        .into_iter()
        .map(|((query, _), (places, texts))| async {
            let (scores, usage) = ranker.run(query, texts, deadline).await?;
            Ok::<_, Error>((places, scores, usage))
        });
    let runs: Vec<_> = stream::iter(runs)
        .buffer_unordered(CONCURRENT_QUERIES)
        .try_collect()
        .await?;
    let (mut total, mut truncated) = (Usage::default(), Vec::new());
    for (places, of_group, usage) in runs {
        truncated.extend(
            usage
                .truncated
                .iter()
                .filter_map(|place| places.get(*place)),
        );
        total = usage.after(&total);
        for (place, score) in places.into_iter().zip(of_group) {
            scores[place] = score;
        }
    }
    truncated.sort_unstable();
    total.truncated = truncated;
    Ok((scores, total))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::scripted::ask;

    async fn scores(body: Value) -> Value {
        let (status, answer) = ask("/score", &body).await;
        match status.as_u16() {
            200 => json!([answer["object"], answer["data"]]),
            _ => answer["error"]["message"].clone(),
        }
    }

    #[tokio::test]
    async fn all_pairs_of_names_are_read() {
        let expected = scores(json!({ "text_1": "cat", "text_2": ["dog", "fish"] })).await;
        insta::assert_snapshot!(expected, @r#"["list",[{"index":0,"object":"score","score":0.7310586},{"index":1,"object":"score","score":0.7310586}]]"#);
        for [first, second] in [
            ["data_1", "data_2"],
            ["queries", "documents"],
            ["queries", "items"],
        ] {
            for query in [json!("cat"), json!(["cat"]), json!(["cat", "dog"])] {
                let body = json!({ first: query, second: ["dog", "fish"] });
                assert_eq!(scores(body).await, expected, "{first} {second}");
            }
        }
        let logits = scores(json!({ "text_1": "cat", "text_2": "dog", "use_activation": false }));
        insta::assert_snapshot!(logits.await, @r#"["list",[{"index":0,"object":"score","score":1.0}]]"#);
    }

    #[tokio::test]
    async fn other_combinations_are_refused() {
        let bodies = [
            json!({}),
            json!({ "text_1": "cat" }),
            json!({ "text_1": "cat", "data_2": "dog" }),
            json!({ "text_1": "a", "text_2": "b", "queries": "a", "documents": "b" }),
            json!({ "text_1": "a", "data_1": "a", "data_2": "b" }),
            json!({ "text_1": "a", "text_2": "b", "data_1": "a", "data_2": "b", "queries": "a", "items": "b" }),
            json!({ "queries": "a", "documents": "b", "items": "c" }),
            json!({ "text_1": ["a", "b"], "text_2": ["a", "b", "c"] }),
            json!({ "text_1": ["a", "b"], "text_2": "c" }),
            json!({ "text_1": "a", "text_2": [] }),
            json!({ "text_1": "a", "text_2": "b", "max_tokens_per_doc": 1 }),
        ];
        let mut found = String::new();
        for body in bodies {
            found += &format!("{}\n", scores(body).await);
        }
        insta::assert_snapshot!(found, @r#"
        "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and `data_2`, but found none or others"
        "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and `data_2`, but found none or others"
        "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and `data_2`, but found none or others"
        "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and `data_2`, but found none or others"
        "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and `data_2`, but found none or others"
        "expected one pair of `text_1` and `text_2`, `queries` and `documents` or `items`, or `data_1` and `data_2`, but found none or others"
        "expected either `documents` or `items`, but found both; leave one of them out"
        "expected one text in `text_1`, or as many as in `text_2`, but found 2 and 3"
        "expected one text in `text_1`, or as many as in `text_2`, but found 2 and 1"
        "expected 1 to 1024 `text_2`, but found 0"
        "expected `max_tokens_per_doc` of at least 16, the model's limit, but found 1; leave it out"
        "#);
    }
}
