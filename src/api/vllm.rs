//! vLLM's `/classify`: each text's best label, with the scores of all labels. NeMo Guardrails asks guard models in this form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    chat::created_now,
    inputs,
    rejection::Reply,
    request::Call,
    response::{TokenUsage, with_usage},
    response_limit,
};
use crate::{
    json::{Content, Kind},
    json_schemas::Texts,
    pipeline::{Input, scores::descending},
    task::{classification::ClassificationParameters, labels},
};

/// The shortest score in a list.
const MIN_SCORE_BYTES: usize = "0.0,".len();

/// Texts to classify.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `input`")]
pub(super) struct LabelsRequest {
    /// The texts to classify: one, or a list.
    #[schemars(with = "Texts")]
    input: Content,
    /// Model name; the default is the first classification model.
    model: Option<String>,
    /// Not supported: the labels are the model's own.
    #[serde(alias = "labels")]
    #[schemars(with = "Option<()>")]
    candidate_labels: Option<Kind>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct LabelsResponse<'a> {
    /// `classify-` and a new UUID.
    id: String,
    /// `list`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The name of the model that ran.
    model: &'a str,
    /// An entry per text, in input order.
    data: Vec<TextLabel<'a>>,
    /// Tokens of the request.
    usage: TokenUsage,
}

#[derive(Serialize, JsonSchema)]
struct TextLabel<'a> {
    /// The text's position in the request.
    index: usize,
    /// The label with the highest score.
    label: &'a str,
    /// All labels' scores, in the model's order.
    probs: Vec<f32>,
    /// Number of labels.
    num_classes: usize,
}

/// Classify texts, in vLLM's form
pub(super) async fn classify(Call(context, body): Call<LabelsRequest>) -> Reply {
    let (model, pipeline) = context.classification(body.model.as_deref()).await?;
    if body.candidate_labels.is_some() {
        return Err(labels::unused(model, "candidate_labels").into());
    }
    let texts = inputs::texts("input", body.input, &context.texts)?;
    let classifier = ClassificationParameters::default().prepare(pipeline, &context.scope())?;
    response_limit::check(texts.len() * classifier.labels().len() * MIN_SCORE_BYTES)?;
    let inputs = texts.into_iter().map(Input::Text).collect();
    let scores = classifier.run(inputs, context.deadline).await?;
    let label = |(index, probs): (usize, Vec<f32>)| {
        let best = descending(&probs).first().copied().unwrap_or(0);
        let label = classifier
            .labels()
            .get(best)
            .map(String::as_str)
            .unwrap_or_default();
        TextLabel {
            index,
            label,
            num_classes: probs.len(),
            probs,
        }
    };
    let response = LabelsResponse {
        id: format!("classify-{}", uuid::Uuid::new_v4().simple()),
        object: "list",
        created: created_now(),
        model: &model.name,
        data: scores.rows.into_iter().enumerate().map(label).collect(),
        usage: TokenUsage::of(&scores.usage),
    };
    Ok(with_usage(&context, &response, &scores.usage))
}
