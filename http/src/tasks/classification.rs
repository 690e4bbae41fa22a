//! Classification and zero-shot classification: TEI's `/predict`, and the model hub's bodies.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::bodies::{
    inputs::{self, RequestTexts},
    rejection::ApiResult,
    request::{Context, JsonRequest, RequestBody},
    response::{OneOrMany, check_predictions, predictions, with_usage},
};
use kivu::{
    Result,
    json::{Content, Kind, flattened},
    json_schemas::{OneOrManyClassified, Pairs, Texts},
    model::Model,
    pipeline::{
        Input,
        classification::{
            ClassificationPipeline, scores::ScoreFunction, zero_shot::ZeroShotPipeline,
        },
    },
    task::{
        Scope, TruncationParameters,
        classification::{
            ClassificationParameters, Classifier, ZeroShotClassifier, ZeroShotParameters,
        },
        labels,
    },
};

/// Scores inputs. The response holds a list of labels, or one for each input.
async fn classify(
    context: &Context,
    classifier: &Classifier,
    inputs: OneOrMany<Input>,
) -> ApiResult {
    let is_single = matches!(inputs, OneOrMany::One(_));
    let inputs = inputs.into_items();
    check_predictions(context, inputs.len(), classifier.labels(), classifier.top)?;
    let scores = classifier.run(inputs, context.deadline).await?;
    let rows = scores
        .rows
        .iter()
        .map(|row| predictions(classifier.labels(), row, classifier.top));
    Ok(with_usage(
        context,
        &OneOrMany::new(rows.collect(), is_single),
        &scores.usage,
    ))
}

/// Texts or pairs to classify.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct PredictRequest {
    /// A text, or a text and its pair as a list; a list of such lists classifies several.
    #[schemars(with = "Pairs")]
    inputs: Content,
    /// Model name; the default is the first classification model.
    model: Option<String>,
    /// Whether scores are logits.
    raw_scores: Option<bool>,
    /// Not supported: the labels are the model's own.
    #[serde(alias = "labels")]
    #[schemars(with = "Option<()>")]
    candidate_labels: Option<Kind>,
    #[serde(flatten, deserialize_with = "flattened")]
    truncation: TruncationParameters,
}

impl RequestBody for PredictRequest {
    const FIELDS: &str = "body.predict";
}

/// Classify texts
pub async fn predict(JsonRequest(context, body): JsonRequest<PredictRequest>) -> ApiResult {
    let (model, pipeline) = context.classification(body.model.as_deref()).await?;
    if body.candidate_labels.is_some() {
        return Err(labels::unused(model, "candidate_labels").into());
    }
    predict_with(&context, pipeline, score_function(model), body).await
}

/// The function for a model's scores if it is not the one in its settings: a ranking model's scores are those of `/rerank`.
pub fn score_function(model: &Model) -> Option<ScoreFunction> {
    model.pipeline.ranking().map(|_| ScoreFunction::Sigmoid)
}

pub async fn predict_with(
    context: &Context,
    pipeline: &ClassificationPipeline,
    function: Option<ScoreFunction>,
    body: PredictRequest,
) -> ApiResult {
    let inputs = predict_inputs(body.inputs, &context.texts)?;
    let parameters = ClassificationParameters {
        function_to_apply: match body.raw_scores {
            Some(true) => Some(ScoreFunction::None),
            _ => function,
        },
        truncation: body.truncation,
        top_k: None,
    };
    classify(
        context,
        &parameters.prepare(pipeline, &context.scope())?,
        inputs,
    )
    .await
}

/// Inputs in TEI's format: a list is a pair, unless it has lists.
fn predict_inputs(inputs: Content, texts: &RequestTexts) -> Result<OneOrMany<Input>> {
    if matches!(&inputs, Content::List(values) if values.has_lists) {
        let inputs = inputs::one_or_list("inputs", inputs, texts, inputs::one_or_two);
        return inputs.map(OneOrMany::Many);
    }
    texts.count("inputs", 1)?;
    inputs::one_or_two(&"inputs", inputs, texts).map(OneOrMany::One)
}

/// The model hub's body for a classification model.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct ClassifyRequest {
    /// A text, an object with `text` and `text_pair`, or a list of them.
    #[schemars(with = "OneOrManyClassified")]
    inputs: Content,
    /// Classification parameters, with defaults for all.
    parameters: Option<ClassificationParameters>,
}

/// Returns a list for each input, even for a single one, as both official clients expect.
pub async fn classify_with(
    context: &Context,
    pipeline: &ClassificationPipeline,
    body: ClassifyRequest,
) -> ApiResult {
    let inputs = inputs::one_or_list(
        "inputs",
        body.inputs,
        &context.texts,
        inputs::text_or_object,
    )?;
    let parameters = body.parameters.unwrap_or_default();
    classify(
        context,
        &parameters.prepare(pipeline, &context.scope())?,
        OneOrMany::Many(inputs),
    )
    .await
}

/// The model hub's body for a zero-shot classification model.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs` and `parameters`")]
pub struct ZeroShotRequest {
    /// The texts to classify: one, or a list.
    #[schemars(with = "Texts")]
    inputs: Content,
    /// The labels to choose from, and how to score them.
    parameters: ZeroShotParameters,
}

pub async fn zero_shot_with(
    context: &Context,
    pipeline: &ZeroShotPipeline,
    body: ZeroShotRequest,
) -> ApiResult {
    let is_single = body.inputs.is_text();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let classifier = prepare_zero_shot(context, pipeline, texts.len(), &body.parameters)?;
    check_predictions(context, texts.len(), classifier.labels(), None)?;
    let scores = classifier.run(&texts, context.deadline).await?;
    let rows = scores
        .rows
        .iter()
        .map(|scores| predictions(classifier.labels(), scores, None));
    Ok(with_usage(
        context,
        &OneOrMany::new(rows.collect(), is_single),
        &scores.usage,
    ))
}

/// Checks the parameters, and counts the pairs of texts and labels: each text is scored with each label, so their product
/// is limited.
pub fn prepare_zero_shot(
    context: &Context,
    pipeline: &ZeroShotPipeline,
    count: usize,
    parameters: &ZeroShotParameters,
) -> Result<ZeroShotClassifier> {
    let max_labels = (context.texts.max() / count.max(1)).max(1);
    let classifier = parameters.prepare(
        pipeline,
        &Scope {
            max_labels,
            ..context.scope()
        },
    )?;
    context
        .texts
        .count_more(count * (classifier.labels().len() - 1))?;
    Ok(classifier)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_input_is_one_or_two_texts() {
        let read = |inputs: Value| {
            predict_inputs(Content::deserialize(inputs).unwrap(), &RequestTexts::new(4))
        };
        let refusal = |inputs: Value| read(inputs).unwrap_err().to_string();
        let refusals = [
            json!([]),
            json!([[]]),
            json!([["a"], ["a", "b", "c"]]),
            json!(["a", "b", "c"]),
        ];
        insta::assert_snapshot!(refusals.map(refusal).join("\n"), @r"
        expected a text or a pair in `inputs`, but found 0 texts
        expected a text or a pair in `inputs[0]`, but found 0 texts
        expected a text or a pair in `inputs[1]`, but found 3 texts
        expected a text or a pair in `inputs`, but found 3 texts
        ");
        insta::assert_snapshot!(refusal(json!(["a", 7])), @"expected `inputs[1]` to be a string, but found a number");
        insta::assert_snapshot!(refusal(json!([7, ["a"]])), @"expected `inputs[0]` to be a string, but found a number");
        insta::assert_snapshot!(refusal(json!([7, 8])), @"expected `inputs[0]` to be a string, but found a number");
        assert_eq!(
            read(json!([["a"], ["a", "b"]])).unwrap().into_items().len(),
            2
        );
    }
}
