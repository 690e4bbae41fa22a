//! TEI's `/predict` and `/rerank`.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{Answer, truncation, usage::with_usage};
use crate::{
    api::{App, inputs, openapi::schemas, request},
    backend::Deadline,
    error::{Error, Result},
    pipeline::{
        classification::{ClassificationInput, ScoreFunction, descending},
        ranking::RankingOptions,
    },
    tokenizer::Side,
};

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(in crate::api) struct PredictRequest {
    /// A text, a pair as a list of two, or a list of lists of one or two.
    #[schema(schema_with = schemas::pairs)]
    inputs: Value,
    model: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
    /// Logits instead of scores.
    raw_scores: Option<bool>,
}

/// One label's score, in TEI's order of fields.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct Prediction<'a> {
    pub(in crate::api) score: f32,
    pub(in crate::api) label: &'a str,
}

/// Scores for the labels of a classifier
#[utoipa::path(
    post, path = "/predict", tag = "TEI",
    request_body(content = PredictRequest, examples(
        ("one" = (summary = "A text", value = json!({ "inputs": "I like you" }))),
        ("several" = (summary = "A text, and a pair", value = json!({ "inputs": [["I like you"], ["a", "b"]] })))
    )),
    responses((
        status = 200, description = "All labels, the best first; for several inputs a list of those.",
        body = schemas::Predictions,
        example = json!([{ "score": 0.968, "label": "positive" }, { "score": 0.032, "label": "negative" }])
    ))
)]
pub(in crate::api) async fn predict(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    answer_predict(&app, body, deadline, started).await
}

pub(super) async fn answer_predict(
    app: &App,
    body: PredictRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    let (inputs, is_single) = predict_inputs(body.inputs, app.limits.texts)?;
    let (_, pipeline) = app.classification(body.model.as_deref())?;
    let truncation = truncation(&app.limits, body.truncate, body.truncation_direction).into();
    let characters = inputs.iter().map(characters).sum();
    let logits = pipeline.logits(inputs, truncation, deadline).await?;
    let settings = pipeline.settings();
    let function = if body.raw_scores == Some(true) { ScoreFunction::None } else { settings.function };
    let predictions: Vec<_> =
        logits.rows.iter().map(|row| predictions(&settings.labels, &function.apply(row))).collect();
    Ok(match predictions.first() {
        Some(only) if is_single => with_usage(only, &logits.usage, characters, started),
        _ => with_usage(&predictions, &logits.usage, characters, started),
    })
}

/// All labels, the best first.
pub(in crate::api) fn predictions<'a>(labels: &'a [String], scores: &[f32]) -> Vec<Prediction<'a>> {
    let prediction = |label: usize| Prediction { score: scores[label], label: &labels[label] };
    descending(scores).into_iter().map(prediction).collect()
}

fn characters(input: &ClassificationInput) -> usize {
    match input {
        ClassificationInput::Text(text) => text.chars().count(),
        ClassificationInput::Pair(first, second) => first.chars().count() + second.chars().count(),
        ClassificationInput::Ids(_) => 0,
    }
}

/// TEI's forms: a text, a pair as a list of two, or a list of lists of one or two; and whether it is one input.
fn predict_inputs(value: Value, limit: usize) -> Result<(Vec<ClassificationInput>, bool)> {
    match value {
        Value::Array(values) if values.iter().any(Value::is_array) => {
            inputs::count("inputs", values.len(), limit)?;
            let lists = values.into_iter().enumerate();
            let lists = lists.map(|(place, value)| one_or_two(&format!("inputs[{place}]"), value));
            Ok((lists.collect::<Result<_>>()?, false))
        }
        value => Ok((vec![one_or_two("inputs", value)?], true)),
    }
}

fn one_or_two(field: &str, value: Value) -> Result<ClassificationInput> {
    let wrong =
        |found| Error::invalid(format!("expected a text or a pair in `{field}`, but found {found} texts"));
    if let Some(found) = value.as_array().map(Vec::len).filter(|found| !(1..=2).contains(found)) {
        return Err(wrong(found));
    }
    let mut texts = inputs::texts(field, value, 2)?.into_iter();
    match (texts.next(), texts.next()) {
        (Some(text), None) => Ok(ClassificationInput::Text(text)),
        (Some(first), Some(second)) => Ok(ClassificationInput::Pair(first.into(), second.into())),
        (None, _) => Err(wrong(0)),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `query` and `texts`")]
pub(in crate::api) struct RerankRequest {
    #[schema(schema_with = schemas::text)]
    query: Value,
    #[schema(schema_with = schemas::texts)]
    texts: Value,
    model: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
    /// The model's logits or cosines instead of numbers from 0 to 1.
    raw_scores: Option<bool>,
    return_text: Option<bool>,
}

#[derive(Serialize, ToSchema)]
pub(in crate::api) struct Rank<'a> {
    /// The place of the text in the request.
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// Texts ordered by a query
#[utoipa::path(
    post, path = "/rerank", tag = "TEI",
    request_body(content = RerankRequest, example = json!({ "query": "egg", "texts": ["hen", "car"] })),
    responses((
        status = 200, description = "The texts, the best first.", body = Vec<Rank<'static>>,
        example = json!([{ "index": 0, "score": 0.72 }, { "index": 1, "score": 0.13 }])
    ))
)]
pub(in crate::api) async fn rerank(State(app): State<Arc<App>>, request: Request) -> Answer {
    let started = Instant::now();
    let (body, deadline) = request::read(&app, request).await?;
    answer_rerank(&app, body, deadline, started).await
}

pub(in crate::api) async fn answer_rerank(
    app: &App,
    body: RerankRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    let query = inputs::text("query", body.query)?;
    let texts = inputs::texts("texts", body.texts, app.limits.texts)?;
    let (_, pipeline) = app.ranking(body.model.as_deref())?;
    let options = RankingOptions {
        truncation: truncation(&app.limits, body.truncate, body.truncation_direction),
        raw_scores: body.raw_scores.unwrap_or(false),
    };
    let characters = query.chars().count() + texts.iter().map(|text| text.chars().count()).sum::<usize>();
    let (scores, usage) = pipeline.score(query, texts.clone(), options, deadline).await?;
    let rank = |index: usize| Rank {
        index,
        score: scores[index],
        text: body.return_text.unwrap_or(false).then(|| texts[index].as_str()),
    };
    let ranks: Vec<Rank<'_>> = descending(&scores).into_iter().map(rank).collect();
    Ok::<Response, _>(with_usage(&ranks, &usage, characters, started))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_of_texts_that_is_no_pair_is_told() {
        let refusal = |inputs: Value| predict_inputs(inputs, 4).unwrap_err().to_string();
        let refusals = [json!([]), json!([[]]), json!([["a"], ["a", "b", "c"]]), json!(["a", "b", "c"])];
        insta::assert_snapshot!(refusals.map(refusal).join("\n"), @r"
        expected a text or a pair in `inputs`, but found 0 texts
        expected a text or a pair in `inputs[0]`, but found 0 texts
        expected a text or a pair in `inputs[1]`, but found 3 texts
        expected a text or a pair in `inputs`, but found 3 texts
        ");
        assert_eq!(predict_inputs(json!([["a"], ["a", "b"]]), 4).unwrap().0.len(), 2);
    }
}
