//! Generation by tensors: token ids to token ids, or texts to texts.

use serde_json::Value;

use super::message::{InferRequest, Output};
use crate::{
    api::request,
    backend::Deadline,
    error::Result,
    pipeline::{
        generation::GenerationOptions,
        seq2seq::{Seq2SeqOptions, Seq2SeqPipeline},
    },
    task::{Scope, text_to_text::TextToTextParameters},
    tensor::Elements,
};

/// Default output name for token ids.
pub(super) const IDS: &str = "generated_indices";

/// Options in a request's `parameters`.
pub(super) fn options(request: &InferRequest, scope: &Scope) -> Result<Seq2SeqOptions> {
    // Clients send parameters for other servers as well: those other than generation options are ignored.
    let known = GenerationOptions::names();
    let mut generation = request.parameters.clone();
    generation.retain(|name, _| known.contains(name));
    let generation: GenerationOptions = request::from_value(Value::Object(generation))?;
    let generate_parameters = Some(generation);
    let parameters = TextToTextParameters { generate_parameters, ..request.task_parameters()? };
    Ok(parameters.options(scope))
}

/// Generates from token ids: one row for each target, padded to the longest.
pub(super) async fn ids(
    pipeline: &Seq2SeqPipeline,
    rows: Vec<Vec<u32>>,
    options: &Seq2SeqOptions,
    deadline: Deadline,
) -> Result<Output> {
    let generated = pipeline.generate_ids(rows, options, deadline).await?;
    let rows: Vec<Vec<i64>> = generated.rows.into_iter().flatten().collect();
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let shape = vec![rows.len(), longest];
    let padded = |mut row: Vec<i64>| {
        row.resize(longest, generated.pad);
        row
    };
    let elements = Elements::Int64(rows.into_iter().flat_map(padded).collect());
    Ok(Output { shape, elements, location: generated.location })
}

/// Generates from texts: one row per text, with the requested number of results.
pub(super) async fn texts(
    pipeline: &Seq2SeqPipeline,
    texts: Vec<String>,
    options: &Seq2SeqOptions,
    deadline: Deadline,
) -> Result<Output> {
    let generated = pipeline.generate(texts, options, deadline).await?;
    let shape = vec![generated.texts.len(), generated.texts.first().map_or(0, Vec::len)];
    let texts = generated.texts.into_iter().flatten().map(|generated| generated.text.into_bytes());
    Ok(Output { shape, elements: Elements::Bytes(texts.collect()), location: generated.usage.location })
}
