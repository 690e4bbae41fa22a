//! Classification and zero-shot classification: TEI's `/predict`, and the model hub's bodies.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    inputs::{self, TextLimit},
    rejection::Reply,
    request::{Call, Context},
    response::{OneOrMany, characters, predictions, with_usage},
};
use crate::{
    error::{Error, Result},
    json_schemas::{OneOrManyClassified, Pairs, Texts},
    pipeline::{
        Input, classification::ClassificationPipeline, scores::ScoreFunction, zero_shot::ZeroShotPipeline,
    },
    task::{
        Scope,
        classification::{ClassificationParameters, ZeroShotClassifier, ZeroShotParameters},
    },
    tokenizer::Side,
};

/// Scores inputs. The response holds one list of labels for a single input, instead of one for each.
async fn classify(
    context: &Context,
    pipeline: &ClassificationPipeline,
    (inputs, is_single): (Vec<Input>, bool),
    parameters: &ClassificationParameters,
) -> Reply {
    let classifier = parameters.prepare(pipeline, &context.scope())?;
    let characters = characters(inputs.iter().flat_map(Input::texts));
    let scores = classifier.run(inputs, context.deadline).await?;
    let rows = scores.rows.iter().map(|row| predictions(classifier.labels(), row, classifier.top));
    let answer = OneOrMany::new(rows.collect(), is_single);
    Ok(with_usage(context, &answer, &scores.usage, characters))
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
    let inputs = predict_inputs(body.inputs, &context.texts)?;
    let parameters = ClassificationParameters {
        function_to_apply: body.raw_scores.unwrap_or(false).then_some(ScoreFunction::None),
        truncate: body.truncate,
        truncation_direction: body.truncation_direction,
        ..ClassificationParameters::default()
    };
    classify(context, pipeline, inputs, &parameters).await
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
    parameters: Option<ClassificationParameters>,
}

/// Returns a list for each input, even for a single one, as both official clients expect.
pub(super) async fn classify_with(
    context: &Context,
    pipeline: &ClassificationPipeline,
    body: ClassifyRequest,
) -> Reply {
    let inputs = classify_inputs(body.inputs, &context.texts)?;
    classify(context, pipeline, (inputs, false), &body.parameters.unwrap_or_default()).await
}

/// Inputs in the hub's format: a text, `{"text", "text_pair"}`, or a list with such items.
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

pub(super) async fn zero_shot_with(
    context: &Context,
    pipeline: &ZeroShotPipeline,
    body: ZeroShotRequest,
) -> Reply {
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let limits = (&context.texts, context.scope());
    let classifier = prepare_zero_shot(pipeline, texts.len(), &body.parameters, limits)?;
    let scores = classifier.run(&texts, context.deadline).await?;
    let rows = scores.rows.iter().map(|scores| predictions(classifier.labels(), scores, None));
    let answer = OneOrMany::new(rows.collect(), is_single);
    Ok(with_usage(context, &answer, &scores.usage, characters(texts.iter().map(String::as_str))))
}

/// Checks the parameters, and counts the pairs of texts and labels: each text is scored with each label, so their product
/// is limited.
pub(super) fn prepare_zero_shot(
    pipeline: &ZeroShotPipeline,
    texts: usize,
    parameters: &ZeroShotParameters,
    (limit, scope): (&TextLimit, Scope),
) -> Result<ZeroShotClassifier> {
    let max_labels = (limit.max() / texts.max(1)).max(1);
    let classifier = parameters.prepare(pipeline, &Scope { max_labels, ..scope })?;
    limit.count_more(texts * (classifier.labels().len() - 1))?;
    Ok(classifier)
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
