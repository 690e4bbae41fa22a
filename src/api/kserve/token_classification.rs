//! Token classification by tensors: token ids to logits, or texts to entities as JSON.

use super::message::{Output, check_padded};
use crate::{
    backend::Deadline,
    config::Limits,
    error::{Error, Result},
    pipeline::{
        Input,
        token_classification::{FoundEntities, TokenClassificationPipeline},
    },
    tensor::Elements,
    tokenizer::Truncation,
};

/// Default output name for token ids.
pub(super) const LOGITS: &str = "logits";
/// Default output name for texts.
pub(super) const ENTITIES: &str = "entities";

/// Logits per token and label: one row per input, padded with zeros to the longest.
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

/// Entities per text, as JSON in the model hub's form.
pub(super) fn json(found: &FoundEntities) -> Result<Output> {
    let json = found.texts.iter().map(serde_json::to_vec).collect::<Result<Vec<_>, _>>();
    let json = json.map_err(|error| Error::inference_because("the entities cannot be written", error))?;
    Ok(Output { shape: vec![json.len(), 1], elements: Elements::Bytes(json), location: found.usage.location })
}
