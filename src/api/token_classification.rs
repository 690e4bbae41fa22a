//! Token classification: the body of the model hub, and that of models that find entities with labels of the request.

use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    inputs,
    rejection::Reply,
    request::Context,
    response::{OneOrMany, characters, with_usage},
    schemas::{Alias, Texts},
};
use crate::{
    pipeline::{
        entities::Aggregation,
        token_classification::{FoundEntities, TokenClassificationOptions, TokenClassificationPipeline},
        zero_shot::Labels,
        zero_shot_entities::{EntitySearch, ZeroShotEntitiesOptions, ZeroShotEntitiesPipeline},
    },
    tokenizer::{Side, WindowOptions},
};

/// The model hub's body for a token classification model.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct LabelTokensRequest {
    #[schemars(with = "Texts")]
    inputs: Value,
    parameters: Option<LabelTokensParameters>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub(super) struct LabelTokensParameters {
    /// How the labels of tokens become those of entities; `simple` by default.
    aggregation_strategy: Option<Aggregation>,
    /// Labels that are left out; `O` by default.
    ignore_labels: Option<Vec<String>>,
    /// Reads long texts in windows that overlap by this many tokens.
    stride: Option<usize>,
    /// Whether to also return texts with entities replaced by their labels.
    redact: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
}

/// Returns the entities of a text, or for a list of texts a list for each.
pub(super) async fn label_tokens_with(
    context: &Context,
    pipeline: &TokenClassificationPipeline,
    body: LabelTokensRequest,
) -> Reply {
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let parameters = body.parameters.unwrap_or_default();
    let windows = WindowOptions {
        stride: parameters.stride,
        truncation: context.app.truncation(parameters.truncate, parameters.truncation_direction),
        max_windows: context.max_parts,
        begin_at_words: false,
    };
    let options = TokenClassificationOptions::new(
        parameters.aggregation_strategy,
        parameters.ignore_labels,
        windows,
        parameters.redact.unwrap_or(false),
    )?;
    let characters = characters(texts.iter().map(String::as_str));
    let found = pipeline.entities(texts, &options, context.deadline).await?;
    Ok(answer(context, found, is_single, characters))
}

/// The body of a model that finds entities with labels of the request, with the parameters of zero-shot classification
/// or of the package `gliner`.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs` and `parameters`")]
pub(super) struct FindEntitiesRequest {
    #[schemars(with = "Texts")]
    inputs: Value,
    parameters: FindEntitiesParameters,
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `candidate_labels`")]
#[schemars(transform = Alias("candidate_labels", "labels"), transform = Alias("flat_ner", "flat"))]
pub(super) struct FindEntitiesParameters {
    /// A list, or a text with commas between the labels.
    #[serde(alias = "labels")]
    #[schemars(with = "Texts")]
    candidate_labels: Value,
    /// Entities have higher scores; 0.5 by default.
    #[schemars(range(min = 0, max = 1))]
    threshold: Option<f32>,
    /// Whether entities must not be nested; true by default.
    #[serde(alias = "flat")]
    flat_ner: Option<bool>,
    /// Whether the same words may be several entities.
    multi_label: Option<bool>,
    /// Reads long texts in windows that overlap by this many words.
    stride: Option<usize>,
    /// Whether to also return texts with entities replaced by their labels.
    redact: Option<bool>,
    /// False by default.
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
}

/// Returns the entities of a text, or for a list of texts a list for each.
pub(super) async fn find_entities_with(
    context: &Context,
    pipeline: &ZeroShotEntitiesPipeline,
    body: FindEntitiesRequest,
) -> Reply {
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let (parameters, limit) = (body.parameters, context.app.limits.texts);
    let options = ZeroShotEntitiesOptions {
        labels: Labels::new(
            inputs::labels("parameters.candidate_labels", parameters.candidate_labels, limit)?,
            limit,
        )?,
        search: EntitySearch::new(parameters.threshold, parameters.flat_ner, parameters.multi_label)?,
        windows: WindowOptions {
            stride: parameters.stride,
            // Labels take up a part of the tokens: whether a text fits depends on them.
            truncation: context
                .app
                .truncation(Some(parameters.truncate.unwrap_or(false)), parameters.truncation_direction),
            max_windows: context.max_parts,
            begin_at_words: false,
        },
        redacts: parameters.redact.unwrap_or(false),
    };
    let characters = characters(texts.iter().map(String::as_str));
    let found = pipeline.entities(texts, &options, context.deadline).await?;
    Ok(answer(context, found, is_single, characters))
}

fn answer(context: &Context, found: FoundEntities, is_single: bool, characters: usize) -> Response {
    with_usage(context, &OneOrMany::new(found.texts, is_single), &found.usage, characters)
}
