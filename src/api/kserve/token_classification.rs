//! Token classification by tensors: token ids to logits, or texts to entities as JSON.

use serde_json::Value;

use super::message::{InferRequest, Output, check_padded};
use crate::{
    api::inputs,
    backend::Deadline,
    config::Limits,
    error::{Error, Result},
    pipeline::{
        Input,
        token_classification::{FoundEntities, TokenClassificationOptions, TokenClassificationPipeline},
        zero_shot::Labels,
        zero_shot_entities::{EntitySearch, ZeroShotEntitiesOptions, ZeroShotEntitiesPipeline},
    },
    tensor::Elements,
    tokenizer::{Truncation, WindowOptions},
};

/// The default name of the output for token ids.
pub(super) const LOGITS: &str = "logits";
/// The default name of the output for texts.
pub(super) const ENTITIES: &str = "entities";

/// The logits of each token and label: one row for each input, padded with zeros to the longest.
pub(super) async fn ids(
    pipeline: &TokenClassificationPipeline,
    rows: Vec<Vec<u32>>,
    (limits, truncation): (&Limits, Truncation),
    deadline: Deadline,
) -> Result<Output> {
    let labels = pipeline.settings().labels.len();
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0).min(pipeline.settings().max_tokens);
    check_padded(rows.len().saturating_mul(longest).saturating_mul(labels), limits.values)?;
    let inputs = rows.into_iter().map(Input::Ids).collect();
    let mut logits = pipeline.logits(inputs, truncation, deadline).await?;
    let longest = logits.rows.iter().map(Vec::len).max().unwrap_or(0);
    let shape = vec![logits.rows.len(), longest / labels, labels];
    logits.rows.iter_mut().for_each(|row| row.resize(longest, 0.0));
    Ok(Output { shape, elements: Elements::Fp32(logits.rows.concat()), location: logits.usage.location })
}

/// The entities of each text, as JSON in the form of the model hub.
pub(super) async fn texts(
    pipeline: &TokenClassificationPipeline,
    texts: Vec<String>,
    request: &InferRequest,
    (limits, truncation): (&Limits, Truncation),
    deadline: Deadline,
) -> Result<Output> {
    let ignored: Option<Value> = request.parameter("ignore_labels")?;
    let ignored =
        ignored.map(|labels| inputs::labels("parameters.ignore_labels", labels, limits.texts)).transpose()?;
    let windows = WindowOptions {
        stride: request.parameter("stride")?,
        truncation,
        max_windows: limits.texts,
        begin_at_words: false,
    };
    let aggregation = request.parameter("aggregation_strategy")?;
    let redacts = request.parameter("redact")?.unwrap_or(false);
    let options = TokenClassificationOptions::new(aggregation, ignored, windows, redacts)?;
    json(&pipeline.entities(texts, &options, deadline).await?)
}

/// The entities of each text with labels of the request, as JSON in the form of the model hub.
pub(super) async fn texts_with_labels(
    pipeline: &ZeroShotEntitiesPipeline,
    (texts, labels): (Vec<String>, Vec<String>),
    request: &InferRequest,
    limits: &Limits,
    deadline: Deadline,
) -> Result<Output> {
    let search = EntitySearch::new(
        request.parameter("threshold")?,
        request.parameter("flat_ner")?,
        request.parameter("multi_label")?,
    )?;
    let windows = WindowOptions {
        stride: request.parameter("stride")?,
        truncation: Truncation::Off,
        max_windows: limits.texts,
        begin_at_words: false,
    };
    let redacts = request.parameter("redact")?.unwrap_or(false);
    let labels = Labels::new(labels, limits.texts)?;
    let options = ZeroShotEntitiesOptions { labels, search, windows, redacts };
    json(&pipeline.entities(texts, &options, deadline).await?)
}

fn json(found: &FoundEntities) -> Result<Output> {
    let json = found.texts.iter().map(serde_json::to_vec).collect::<Result<Vec<_>, _>>();
    let json = json.map_err(|error| Error::inference_because("the entities cannot be written", error))?;
    Ok(Output { shape: vec![json.len(), 1], elements: Elements::Bytes(json), location: found.usage.location })
}
