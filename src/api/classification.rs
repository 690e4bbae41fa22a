//! Classification and zero-shot classification: TEI's `/predict`, and the bodies of the model hub.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    inputs::{self, TextLimit},
    rejection::Reply,
    request::{Call, Context},
    response::{OneOrMany, characters, predictions, with_usage},
    schemas::{OneOrManyClassified, Pairs, Texts},
};
use crate::{
    error::{Error, Result},
    pipeline::{
        Input,
        classification::ClassificationPipeline,
        scores::ScoreFunction,
        zero_shot::{Labels, TEMPLATE, Template, ZeroShotOptions, ZeroShotPipeline},
    },
    tokenizer::{Side, Truncation},
};

/// The inputs of a request, and how they are scored.
struct Classification {
    inputs: Vec<Input>,
    /// Whether the response holds one list of labels instead of one for each input.
    is_single: bool,
    truncation: Truncation,
    /// The model's own by default.
    function: Option<ScoreFunction>,
    /// Number of labels to return; all by default.
    top: Option<usize>,
}

async fn classify(context: &Context, pipeline: &ClassificationPipeline, request: Classification) -> Reply {
    let Classification { inputs, is_single, truncation, function, top } = request;
    let characters = characters(inputs.iter().flat_map(Input::texts));
    let logits = pipeline.logits(inputs, truncation, context.deadline).await?;
    let settings = pipeline.settings();
    let function = function.unwrap_or(settings.function);
    let rows = logits.rows.iter().map(|row| predictions(&settings.labels, &function.apply(row), top));
    let answer = OneOrMany::new(rows.collect(), is_single);
    Ok(with_usage(context, &answer, &logits.usage, characters))
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct PredictRequest {
    #[schemars(with = "Pairs")]
    inputs: Value,
    /// Model name; the default is the first classification model.
    model: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
    /// Whether scores are logits.
    raw_scores: Option<bool>,
}

/// Classify texts
pub(super) async fn predict(Call(context, body): Call<PredictRequest>) -> Reply {
    let (_, pipeline) = context.app.classification(body.model.as_deref())?;
    predict_with(&context, pipeline, body).await
}

pub(super) async fn predict_with(
    context: &Context,
    pipeline: &ClassificationPipeline,
    body: PredictRequest,
) -> Reply {
    let (inputs, is_single) = predict_inputs(body.inputs, &context.texts)?;
    let truncation = context.app.truncation(body.truncate, body.truncation_direction);
    let function = body.raw_scores.unwrap_or(false).then_some(ScoreFunction::None);
    classify(context, pipeline, Classification { inputs, is_single, truncation, function, top: None }).await
}

/// Inputs in TEI's format, and whether there is a single one outside a list.
fn predict_inputs(value: Value, limit: &TextLimit) -> Result<(Vec<Input>, bool)> {
    match value {
        Value::Array(values) if values.iter().any(Value::is_array) => {
            Ok((inputs::list("inputs", values, limit, |place, value| one_or_two(place, value))?, false))
        }
        value => {
            limit.count("inputs", 1)?;
            Ok((vec![one_or_two("inputs", value)?], true))
        }
    }
}

fn one_or_two(field: impl Display, value: Value) -> Result<Input> {
    let wrong =
        |found| Error::invalid(format!("expected a text or a pair in `{field}`, but found {found} texts"));
    if let Some(found) = value.as_array().map(Vec::len).filter(|found| !(1..=2).contains(found)) {
        return Err(wrong(found));
    }
    let mut texts = inputs::texts(&field, value, &TextLimit::new(2))?.into_iter();
    match (texts.next(), texts.next()) {
        (Some(text), None) => Ok(Input::Text(text)),
        (Some(first), Some(second)) => Ok(Input::Pair(first.into(), second.into())),
        (None, _) => Err(wrong(0)),
    }
}

/// The model hub's body for a classification model.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct ClassifyRequest {
    #[schemars(with = "OneOrManyClassified")]
    inputs: Value,
    parameters: Option<ClassifyParameters>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub(super) struct ClassifyParameters {
    /// The model's own by default.
    function_to_apply: Option<ScoreFunction>,
    /// Number of labels to return; all by default.
    #[schemars(range(min = 1))]
    top_k: Option<usize>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
}

/// Returns a list for each input, even for a single one, as both official clients expect.
pub(super) async fn classify_with(
    context: &Context,
    pipeline: &ClassificationPipeline,
    body: ClassifyRequest,
) -> Reply {
    let inputs = classify_inputs(body.inputs, &context.texts)?;
    let parameters = body.parameters.unwrap_or_default();
    if parameters.top_k == Some(0) {
        return Err(Error::invalid("expected `parameters.top_k` above 0, but found 0").into());
    }
    let truncation = context.app.truncation(parameters.truncate, parameters.truncation_direction);
    let (function, top) = (parameters.function_to_apply, parameters.top_k);
    classify(context, pipeline, Classification { inputs, is_single: false, truncation, function, top }).await
}

/// Inputs in the hub's format: a text, `{"text", "text_pair"}`, or a list of them.
fn classify_inputs(value: Value, limit: &TextLimit) -> Result<Vec<Input>> {
    match value {
        Value::Array(values) => {
            inputs::list("inputs", values, limit, |place, value| classify_input(place, value))
        }
        value => {
            limit.count("inputs", 1)?;
            Ok(vec![classify_input("inputs", value)?])
        }
    }
}

fn classify_input(field: impl Display, mut value: Value) -> Result<Input> {
    if !value.is_object() {
        return inputs::text(&field, value).map(Input::Text);
    }
    let text = inputs::text(format_args!("{field}.text"), value["text"].take())?;
    match value["text_pair"].take() {
        // `transformers` ignores an empty second text.
        Value::Null => Ok(Input::Text(text)),
        Value::String(pair) if pair.is_empty() => Ok(Input::Text(text)),
        pair => {
            let pair = inputs::text(format_args!("{field}.text_pair"), pair)?;
            Ok(Input::Pair(text.into(), pair.into()))
        }
    }
}

/// The model hub's body for a zero-shot classification model.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs` and `parameters`")]
pub(super) struct ZeroShotRequest {
    #[schemars(with = "Texts")]
    inputs: Value,
    parameters: ZeroShotParameters,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `candidate_labels`")]
pub(super) struct ZeroShotParameters {
    /// A list, or a text with commas between the labels.
    #[schemars(with = "Texts")]
    candidate_labels: Value,
    /// A sentence in which `{}` is replaced by each label.
    hypothesis_template: Option<String>,
    /// Whether labels are scored independently.
    multi_label: Option<bool>,
}

pub(super) async fn zero_shot_with(
    context: &Context,
    pipeline: &ZeroShotPipeline,
    body: ZeroShotRequest,
) -> Reply {
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let parameters = body.parameters;
    let max_labels = max_labels(&context.texts, texts.len());
    let labels = inputs::labels("parameters.candidate_labels", parameters.candidate_labels, max_labels)?;
    let options = zero_shot_options(
        labels,
        texts.len(),
        &context.texts,
        parameters.hypothesis_template,
        parameters.multi_label,
    )?;
    let (scores, usage) = pipeline.score(&texts, &options, context.deadline).await?;
    let rows = scores.iter().map(|scores| predictions(options.labels.as_slice(), scores, None));
    let answer = OneOrMany::new(rows.collect(), is_single);
    Ok(with_usage(context, &answer, &usage, characters(texts.iter().map(String::as_str))))
}

/// Each text is scored with each label, so their product is limited.
fn max_labels(limit: &TextLimit, texts: usize) -> usize {
    (limit.max() / texts.max(1)).max(1)
}

/// Checks labels and template, and counts the pairs of texts and labels.
pub(super) fn zero_shot_options(
    labels: Vec<String>,
    texts: usize,
    limit: &TextLimit,
    template: Option<String>,
    multi_label: Option<bool>,
) -> Result<ZeroShotOptions> {
    let labels = Labels::new(labels, max_labels(limit, texts))?;
    limit.count_more(texts * (labels.as_slice().len() - 1))?;
    Ok(ZeroShotOptions {
        labels,
        template: Template::new(template.unwrap_or_else(|| TEMPLATE.to_owned()))?,
        multi_label: multi_label.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_input_is_one_or_two_texts() {
        let refusal = |inputs: Value| predict_inputs(inputs, &TextLimit::new(4)).unwrap_err().to_string();
        let refusals = [json!([]), json!([[]]), json!([["a"], ["a", "b", "c"]]), json!(["a", "b", "c"])];
        insta::assert_snapshot!(refusals.map(refusal).join("\n"), @r"
        expected a text or a pair in `inputs`, but found 0 texts
        expected a text or a pair in `inputs[0]`, but found 0 texts
        expected a text or a pair in `inputs[1]`, but found 3 texts
        expected a text or a pair in `inputs`, but found 3 texts
        ");
        assert_eq!(predict_inputs(json!([["a"], ["a", "b"]]), &TextLimit::new(4)).unwrap().0.len(), 2);
    }
}
