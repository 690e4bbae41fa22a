//! Token classification: the body of the model hub.

use serde::Deserialize;
use serde_json::Value;

use super::{
    inputs,
    rejection::Reply,
    request::{self, Context},
    response::{OneOrMany, characters, with_usage},
};
use crate::{
    pipeline::{
        entities::Aggregation,
        token_classification::{TokenClassificationOptions, TokenClassificationPipeline},
    },
    tokenizer::{Side, WindowOptions},
};

/// The model hub's body for a token classification model.
#[derive(Deserialize)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct LabelTokensRequest {
    inputs: Value,
    #[serde(default, deserialize_with = "request::object")]
    parameters: Option<LabelTokensParameters>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct LabelTokensParameters {
    /// How the labels of tokens become those of entities; `simple` by default.
    aggregation_strategy: Option<Aggregation>,
    /// Labels that are left out; `O` by default.
    ignore_labels: Option<Vec<String>>,
    /// Reads long texts in windows that share this many tokens.
    stride: Option<usize>,
    /// Whether to return texts with labels in the place of entities, too.
    redact: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<Side>,
}

/// Answers the entities of a text, or for a list of texts a list for each.
pub(super) async fn label_tokens_with(
    context: &Context,
    pipeline: &TokenClassificationPipeline,
    body: LabelTokensRequest,
) -> Reply {
    let limit = context.app.limits.texts;
    let is_single = body.inputs.is_string();
    let texts = inputs::texts("inputs", body.inputs, limit)?;
    let parameters = body.parameters.unwrap_or_default();
    let windows = WindowOptions {
        stride: parameters.stride,
        truncation: context.app.truncation(parameters.truncate, parameters.truncation_direction),
        max_windows: limit,
    };
    let options = TokenClassificationOptions::new(
        parameters.aggregation_strategy,
        parameters.ignore_labels,
        windows,
        parameters.redact.unwrap_or(false),
    )?;
    let characters = characters(texts.iter().map(String::as_str));
    let found = pipeline.entities(texts, &options, context.deadline).await?;
    let answer = OneOrMany::new(found.texts, is_single);
    Ok(with_usage(context, &answer, &found.usage, characters))
}
