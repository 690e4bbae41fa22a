//! The dialect of the model hub's inference API: `POST /models/{model}`, body and answer by the model's task.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    App, inputs,
    openapi::schemas,
    request::{self, InPath},
    tei::{
        Answer, DefaultRequest,
        classify::{Prediction, answer_rerank, predictions},
        embedding::{answer_embed, answer_similarity},
        truncation,
        usage::with_usage,
    },
    translate,
};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    model::Pipeline,
    pipeline::{
        classification::{ClassificationInput, ScoreFunction},
        zero_shot::{Labels, TEMPLATE, Template, ZeroShotOptions},
    },
    tokenizer::Side,
};

/// What a model of any task reads.
pub(super) struct HubRequest;

impl utoipa::PartialSchema for HubRequest {
    fn schema() -> schemas::Shape {
        schemas::any_of([
            schemas::of::<DefaultRequest>(),
            schemas::of::<ClassifyRequest>(),
            schemas::of::<ZeroShotRequest>(),
            schemas::ranking_inputs(),
        ])
    }
}

impl ToSchema for HubRequest {}

/// Body and answer of a model's task
#[utoipa::path(
    post, path = "/models/{model}", operation_id = "task", tag = "model hub",
    params(("model" = String, Path, description = "The name of a model that is served.")),
    request_body(content = HubRequest, examples(
        ("feature-extraction" = (value = json!({ "inputs": "What is deep learning?" }))),
        ("text-classification" = (value = json!({ "inputs": ["I like it", "It broke"], "parameters": { "top_k": 1 } }))),
        ("zero-shot-classification" = (value = json!({
            "inputs": "The striker scored twice", "parameters": { "candidate_labels": ["sport", "cooking"] }
        }))),
        ("text-ranking" = (value = json!({ "inputs": { "query": "egg", "texts": ["hen", "car"] } }))),
        ("translation" = (value = json!({ "inputs": "Good morning!" })))
    )),
    responses((
        status = 200, description = "By task: vectors, labels with scores, ranks or translations.",
        body = schemas::TaskAnswer,
        examples(
            ("text-classification" = (value = json!([[{ "score": 0.968, "label": "positive" }]]))),
            ("zero-shot-classification" = (value = json!([
                { "score": 0.981, "label": "sport" }, { "score": 0.019, "label": "cooking" }
            ]))),
            ("translation" = (value = json!([{ "translation_text": "Bom dia!" }])))
        )
    ))
)]
pub(super) async fn infer(
    State(app): State<Arc<App>>,
    InPath(name): InPath<String>,
    request: Request,
) -> Answer {
    let started = Instant::now();
    let (mut body, deadline) = request::read::<Value>(&app, request).await?;
    let Some(fields) = body.as_object_mut() else {
        return Err(Error::invalid("expected an object with `inputs`, but found none").into());
    };
    let inputs = fields.get("inputs").cloned().unwrap_or_default();
    match app.model(Some(&name))?.pipeline {
        Pipeline::Embedding(_) => {
            fields.insert("model".into(), json!(name));
            if inputs.get("source_sentence").is_some() {
                answer_similarity(&app, request::from_value(body)?, deadline, started).await
            } else {
                answer_embed(&app, body, deadline, started).await
            }
        }
        Pipeline::Ranking(_) => {
            let mut body = inputs;
            if let Some(fields) = body.as_object_mut() {
                fields.insert("model".into(), json!(name));
            }
            answer_rerank(&app, request::from_value(body)?, deadline, started).await
        }
        Pipeline::Classification(_) => {
            classify(&app, &name, request::from_value(body)?, deadline, started).await
        }
        Pipeline::ZeroShot(_) => zero_shot(&app, &name, request::from_value(body)?, deadline, started).await,
        Pipeline::Translation(_) => {
            translate::answer_hub(&app, Some(&name), request::from_value(body)?, deadline, started).await
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
struct ClassifyRequest {
    #[schema(schema_with = schemas::classified)]
    inputs: Value,
    #[serde(default, deserialize_with = "request::object")]
    parameters: Option<ClassifyParameters>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
struct ClassifyParameters {
    function_to_apply: Option<ScoreFunction>,
    /// How many labels come back; all if there is none.
    #[schema(minimum = 1)]
    top_k: Option<usize>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
}

/// A list for each input, also where there is only one, as both official clients want it.
async fn classify(
    app: &App,
    name: &str,
    body: ClassifyRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    let inputs = classify_inputs(body.inputs, app.limits.texts)?;
    let parameters = body.parameters.unwrap_or_default();
    if parameters.top_k == Some(0) {
        return Err(Error::invalid("expected `parameters.top_k` above 0, but found 0").into());
    }
    let (_, pipeline) = app.classification(Some(name))?;
    let truncation = truncation(&app.limits, parameters.truncate, parameters.truncation_direction).into();
    let logits = pipeline.logits(inputs, truncation, deadline).await?;
    let settings = pipeline.settings();
    let function = parameters.function_to_apply.unwrap_or(settings.function);
    let best = |row: &Vec<f32>| {
        let mut predictions = predictions(&settings.labels, &function.apply(row));
        predictions.truncate(parameters.top_k.unwrap_or(usize::MAX));
        predictions
    };
    let answer: Vec<Vec<Prediction<'_>>> = logits.rows.iter().map(best).collect();
    Ok(with_usage(&answer, &logits.usage, 0, started))
}

/// A text, a pair as `{"text", "text_pair"}`, or a list of them.
fn classify_inputs(value: Value, limit: usize) -> Result<Vec<ClassificationInput>> {
    match value {
        Value::Array(values) => {
            inputs::count("inputs", values.len(), limit)?;
            let values = values.into_iter().enumerate();
            values.map(|(place, value)| classify_input(&format!("inputs[{place}]"), value)).collect()
        }
        value => Ok(vec![classify_input("inputs", value)?]),
    }
}

fn classify_input(field: &str, mut value: Value) -> Result<ClassificationInput> {
    if !value.is_object() {
        return inputs::text(field, value).map(ClassificationInput::Text);
    }
    let text = inputs::text(&format!("{field}.text"), value["text"].take())?;
    match value["text_pair"].take() {
        // The pipeline's tokenizer takes an empty second text for none.
        Value::Null => Ok(ClassificationInput::Text(text)),
        Value::String(pair) if pair.is_empty() => Ok(ClassificationInput::Text(text)),
        pair => {
            let pair = inputs::text(&format!("{field}.text_pair"), pair)?;
            Ok(ClassificationInput::Pair(text.into(), pair.into()))
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs` and `parameters`")]
struct ZeroShotRequest {
    #[schema(schema_with = schemas::texts)]
    inputs: Value,
    parameters: ZeroShotParameters,
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `candidate_labels`")]
struct ZeroShotParameters {
    /// A list, or a text with commas.
    #[schema(schema_with = schemas::texts)]
    candidate_labels: Value,
    /// What each label becomes, in place of `{}`.
    hypothesis_template: Option<String>,
    multi_label: Option<bool>,
}

async fn zero_shot(
    app: &App,
    name: &str,
    body: ZeroShotRequest,
    deadline: Deadline,
    started: Instant,
) -> Answer {
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, app.limits.texts)?;
    let parameters = body.parameters;
    let labels = match parameters.candidate_labels {
        Value::String(labels) => Labels::split(&labels),
        labels => inputs::labels("parameters.candidate_labels", labels)?,
    };
    // Every text meets every label.
    let labels = Labels::new(labels, (app.limits.texts / texts.len().max(1)).max(1))?;
    let options = ZeroShotOptions {
        labels,
        template: Template::new(parameters.hypothesis_template.unwrap_or_else(|| TEMPLATE.to_owned()))?,
        multi_label: parameters.multi_label.unwrap_or(false),
    };
    let (_, pipeline) = app.zero_shot(Some(name))?;
    let (scores, usage) = pipeline.score(&texts, &options, deadline).await?;
    let answers: Vec<Vec<Prediction<'_>>> =
        scores.iter().map(|scores| predictions(options.labels.as_slice(), scores)).collect();
    Ok::<Response, _>(match answers.first() {
        Some(only) if is_single => with_usage(only, &usage, 0, started),
        _ => with_usage(&answers, &usage, 0, started),
    })
}
