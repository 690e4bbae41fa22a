//! Tensors from the results of tasks other than embedding.

use super::message::{Output, check_padded};
use crate::bodies::request::Context;
use kivu::{
    Error, Result,
    backend::Deadline,
    pipeline::{Input, Usage, entities::token_classification::TokenClassificationPipeline},
    task::{
        classification::Scores,
        entities::{EntityFinder, TokenClassificationParameters},
        text_to_text::TextGenerator,
    },
    tensor::Elements,
};

/// A score per text and label.
pub fn matrix(scores: &Scores) -> Output {
    let shape = vec![scores.rows.len(), scores.rows.first().map_or(0, Vec::len)];
    Output {
        shape,
        elements: Elements::Fp32(scores.rows.concat()),
        usage: scores.usage.clone(),
    }
}

/// Logits per token and label: one row per input, padded with zeros to the longest.
pub async fn logits(
    context: &Context,
    pipeline: &TokenClassificationPipeline,
    rows: Vec<Vec<u32>>,
    parameters: &TokenClassificationParameters,
) -> Result<Output> {
    let labels = pipeline.settings().labels.len();
    let longest = rows
        .iter()
        .map(Vec::len)
        .max()
        .unwrap_or(0)
        .min(pipeline.settings().max_tokens);
    let numbers = rows.len().saturating_mul(longest).saturating_mul(labels);
    check_padded(numbers, context.app.limits.values)?;
    let truncation = parameters.truncation.truncation(&context.scope());
    let inputs = rows.into_iter().map(Input::Ids).collect();
    let logits = pipeline
        .logits(inputs, truncation, context.deadline)
        .await?;
    let (longest, elements) = padded(&logits.rows, 0.0);
    let shape = vec![logits.rows.len(), longest / labels, labels];
    Ok(Output {
        shape,
        elements: Elements::Fp32(elements),
        usage: logits.usage,
    })
}

/// Entities per text, as JSON in the model hub's form.
pub async fn entities(
    finder: &EntityFinder,
    texts: Vec<String>,
    deadline: Deadline,
) -> Result<Output> {
    let found = finder.run(texts, deadline).await?;
    let json = found
        .texts
        .iter()
        .map(serde_json::to_vec)
        .collect::<Result<Vec<_>, _>>();
    let json =
        json.map_err(|error| Error::inference_because("the entities cannot be written", error))?;
    Ok(Output {
        shape: vec![json.len(), 1],
        elements: Elements::Bytes(json),
        usage: found.usage,
    })
}

/// Generates from token ids: one row for each target, padded to the longest.
pub async fn generated_ids(
    generator: &TextGenerator,
    rows: Vec<Vec<u32>>,
    deadline: Deadline,
) -> Result<Output> {
    let generated = generator.run_ids(rows, deadline).await?;
    let rows = generated.rows.concat();
    let (longest, elements) = padded(&rows, generated.pad);
    let shape = vec![rows.len(), longest];
    let usage = Usage {
        location: generated.location,
        ..Usage::default()
    };
    Ok(Output {
        shape,
        elements: Elements::Int64(elements),
        usage,
    })
}

/// Generates from texts: one row per text, with the requested number of results.
pub async fn generated_texts(
    generator: &TextGenerator,
    texts: Vec<String>,
    deadline: Deadline,
) -> Result<Output> {
    let generated = generator.run(texts, deadline).await?;
    let shape = vec![
        generated.texts.len(),
        generated.texts.first().map_or(0, Vec::len),
    ];
    let texts = generated
        .texts
        .into_iter()
        .flatten()
        .map(|generated| generated.text.into_bytes());
    Ok(Output {
        shape,
        elements: Elements::Bytes(texts.collect()),
        usage: generated.usage,
    })
}

/// The length of the longest row, and all rows padded to it.
pub fn padded<T: Clone>(rows: &[Vec<T>], padding: T) -> (usize, Vec<T>) {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let padding = |row: &Vec<T>| vec![padding.clone(); longest - row.len()];
    (
        longest,
        rows.iter()
            .flat_map(|row| [row.clone(), padding(row)].concat())
            .collect(),
    )
}
