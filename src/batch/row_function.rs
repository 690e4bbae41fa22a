//! Models as functions on rows with one or two arguments, as data warehouses call them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    answer::{Answer, Cell, Columns, ErrorKind, RowResult},
    parameters::Parameters,
    predictor::Predictor,
};
use crate::{
    error::{Error, Result},
    json::kind,
    model::Model,
    pipeline::{similarity::cosine, vectors::StoredVector},
};

/// Texts per run of the model.
const TEXTS_AT_ONCE: usize = 512;
/// Options that a second argument sets, if the model's task has one of them.
const SHARED_OPTIONS: [&str; 2] = ["labels", "target-language"];

/// A model with its parameters.
pub(super) struct RowFunction {
    pub(super) model: Model,
    pub(super) parameters: Parameters,
}

impl RowFunction {
    /// Each row's result as JSON: the answer's only value, or an object by column name. NULL arguments have NULL results.
    ///
    /// The second argument is another text to compare with for embedding models, and for others the labels or the
    /// target language; ranking models take the query first.
    pub(super) async fn call(&self, rows: Vec<Vec<Value>>) -> Result<Vec<Option<String>>> {
        let rows: Vec<Option<Arguments>> = rows
            .into_iter()
            .enumerate()
            .map(|(row, values)| arguments(row, values))
            .collect::<Result<_>>()?;
        let (mut results, pipeline) = (vec![None; rows.len()], &self.model.pipeline);
        let mut pairs: Vec<(usize, [String; 2])> = Vec::new();
        let mut texts: BTreeMap<Option<String>, Texts> = BTreeMap::new();
        for (row, arguments) in rows.into_iter().enumerate() {
            match arguments {
                None => {}
                Some(Arguments::One(text)) => texts.entry(None).or_default().push((row, text)),
                Some(Arguments::Two(first, second)) if pipeline.embedding().is_some() => {
                    pairs.push((row, [first, second]));
                }
                Some(Arguments::Two(query, text)) if pipeline.ranking().is_some() => {
                    texts.entry(Some(query)).or_default().push((row, text));
                }
                Some(Arguments::Two(text, shared)) => {
                    texts.entry(Some(shared)).or_default().push((row, text));
                }
            }
        }
        for (shared, texts) in texts {
            let predictor = Predictor::new(&self.model, &self.with(shared.as_deref())?)?;
            for (row, answer) in answers(&predictor, texts).await? {
                results[row] = Some(json(&predictor.columns(), &answer)?);
            }
        }
        for (row, similarity) in self.similarities(pairs).await? {
            results[row] = Some(to_json(&similarity)?);
        }
        Ok(results)
    }

    /// The parameters, with an argument that several rows share.
    fn with(&self, shared: Option<&str>) -> Result<Parameters> {
        let mut parameters = self.parameters.clone();
        let Some(shared) = shared else {
            return Ok(parameters);
        };
        let Model {
            name,
            manifest,
            pipeline,
            ..
        } = &self.model;
        if pipeline.ranking().is_some() {
            parameters.query = Some(shared.to_owned());
            return Ok(parameters);
        }
        let Some(option) = SHARED_OPTIONS
            .into_iter()
            .find(|option| parameters.options.has_effect(option, pipeline))
        else {
            return Err(Error::invalid(format!(
                "expected 1 argument for `{name}`, which is for `{}`, but found 2",
                manifest.task
            )));
        };
        match parameters.options.set(option, shared) {
            Some(Err(expected)) => Err(Error::invalid(format!(
                "expected {expected} as the second argument, but found another value"
            ))),
            _ => Ok(parameters),
        }
    }

    /// Cosine similarities between the texts of each pair.
    async fn similarities(&self, pairs: Vec<(usize, [String; 2])>) -> Result<Vec<(usize, f32)>> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let predictor = Predictor::new(&self.model, &self.parameters)?;
        let mut similarities = Vec::with_capacity(pairs.len());
        let texts = pairs
            .into_iter()
            .flat_map(|(row, texts)| texts.map(|text| (row, text)))
            .collect();
        let vectors = answers(&predictor, texts).await?;
        for pair in vectors.chunks_exact(2) {
            let similarity = match [&pair[0].1, &pair[1].1].map(Vec::as_slice) {
                [
                    [Cell::Vector(StoredVector::Float(left))],
                    [Cell::Vector(StoredVector::Float(right))],
                ] => cosine(left, right),
                _ => {
                    return Err(Error::invalid(
                        "expected one dense vector of floats per text to compare, but found others; change `outputs` \
                         and `vector-type`",
                    ));
                }
            };
            similarities.push((pair[0].0, similarity));
        }
        Ok(similarities)
    }
}

/// Texts with their rows.
type Texts = Vec<(usize, String)>;

enum Arguments {
    One(String),
    Two(String, String),
}

/// A row's arguments; `None` if one is NULL.
fn arguments(row: usize, values: Vec<Value>) -> Result<Option<Arguments>> {
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::String(text) => texts.push(Some(text)),
            Value::Null => texts.push(None),
            other => {
                return Err(Error::invalid(format!(
                    "expected texts in row {row}, but found {}; cast the argument",
                    kind(&other)
                )));
            }
        }
    }
    let count = texts.len();
    match <[_; 2]>::try_from(texts) {
        Ok([first, second]) => Ok(first
            .zip(second)
            .map(|(first, second)| Arguments::Two(first, second))),
        Err(mut texts) if count == 1 => Ok(texts.remove(0).map(Arguments::One)),
        Err(_) => Err(Error::invalid(format!(
            "expected 1 or 2 arguments in row {row}, but found {count}"
        ))),
    }
}

/// Each text's answer; an error if one has none.
async fn answers(predictor: &Predictor, texts: Texts) -> Result<Vec<(usize, Answer)>> {
    let mut answers = Vec::with_capacity(texts.len());
    let (rows, texts): (Vec<usize>, Vec<String>) = texts.into_iter().unzip();
    for (rows, texts) in rows.chunks(TEXTS_AT_ONCE).zip(texts.chunks(TEXTS_AT_ONCE)) {
        let found = predictor
            .predict(texts.iter().cloned().map(Ok).collect())
            .await?;
        for (row, result) in rows.iter().zip(found.results) {
            answers.push((*row, checked(*row, result)?));
        }
    }
    Ok(answers)
}

fn checked(row: usize, result: RowResult) -> Result<Answer> {
    result.map_err(|error| {
        let message = format!("{} (row {row})", error.message);
        match error.kind {
            ErrorKind::Model => Error::inference(message),
            ErrorKind::Row | ErrorKind::Text | ErrorKind::Input | ErrorKind::Sink => {
                Error::invalid(message)
            }
        }
    })
}

fn json(columns: &Columns, answer: &[Cell]) -> Result<String> {
    if let [only] = answer {
        return to_json(only);
    }
    let fields = columns
        .iter()
        .zip(answer)
        .map(|((name, _), cell)| Ok(format!("\"{name}\":{}", to_json(cell)?)));
    Ok(format!(
        "{{{}}}",
        fields.collect::<Result<Vec<_>>>()?.join(",")
    ))
}

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::inference_because("cannot write a result", error))
}
