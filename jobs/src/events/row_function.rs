//! Models as functions on rows with one or two arguments, as data warehouses call them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    job::{parameters::Parameters, predictor::Predictor},
    output::answer::{Answer, Cell, Columns, ErrorKind, RowResult},
};
use kivu::{
    Error, Result,
    backend::Deadline,
    json::kind,
    model::Model,
    pipeline::embedding::{similarity::cosine, vectors::StoredVector},
};

/// Texts per run of the model.
const TEXTS_AT_ONCE: usize = 512;
/// Lambda's limit for a response, with a margin for what surrounds the rows.
pub const MAX_RESPONSE_BYTES: usize = 6_000_000;
/// Lambda's longest timeout.
const MAX_TIME: Duration = Duration::from_mins(15);
/// Options that a second argument sets, if the model's task has one of them.
const SHARED_OPTIONS: [&str; 2] = ["labels", "target-language"];

/// A model with its parameters.
pub struct RowFunction {
    pub model: Model,
    pub parameters: Parameters,
}

impl RowFunction {
    /// Each row's result as JSON: the answer's only value, or an object by column name. NULL arguments have NULL results.
    ///
    /// The second argument is another text to compare with for embedding models, and for others the labels or the
    /// target language; ranking models take the query first.
    ///
    /// # Errors
    /// The results are not complete at the time `until`, or are longer than a response; if it is certain, this is noticed
    /// before the model runs.
    pub async fn call(
        &self,
        rows: Vec<Vec<Value>>,
        until: Option<Instant>,
    ) -> Result<Vec<Option<String>>> {
        let deadline = deadline(until);
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
        let with_predictor = |(shared, texts): (Option<String>, Texts)| {
            let predictor = Predictor::of_texts(&self.model, &self.with(shared.as_deref())?)?;
            Ok((predictor, texts))
        };
        let groups: Vec<(Predictor, Texts)> = texts
            .into_iter()
            .map(with_predictor)
            .collect::<Result<_>>()?;
        check_size(
            groups
                .iter()
                .map(|(predictor, texts)| texts.len() * predictor.min_answer_bytes())
                .sum(),
        )?;
        let mut size = 0;
        for (predictor, texts) in groups {
            let columns = predictor.columns();
            let result = |row: usize, answer: Answer| {
                let result = json(&columns, &answer)?;
                size += result.len();
                results[row] = Some(result);
                check_size(size)
            };
            answer_each(&predictor, texts, deadline, result).await?;
        }
        for (row, similarity) in self.similarities(pairs, deadline).await? {
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
                "the second argument is not {expected}"
            ))),
            _ => Ok(parameters),
        }
    }

    /// Cosine similarities between the texts of each pair.
    async fn similarities(
        &self,
        pairs: Vec<(usize, [String; 2])>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, f32)>> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let predictor = Predictor::new(&self.model, &self.parameters)?;
        let mut similarities = Vec::with_capacity(pairs.len());
        let texts = pairs
            .into_iter()
            .flat_map(|(row, texts)| texts.map(|text| (row, text)))
            .collect();
        let mut vectors = Vec::new();
        let vector = |row, answer| {
            vectors.push((row, answer));
            Ok(())
        };
        answer_each(&predictor, texts, deadline, vector).await?;
        for pair in vectors.chunks_exact(2) {
            let similarity = match [&pair[0].1, &pair[1].1].map(Vec::as_slice) {
                [
                    [Cell::Vector(StoredVector::Float(left))],
                    [Cell::Vector(StoredVector::Float(right))],
                ] => cosine(left, right),
                _ => {
                    return Err(Error::invalid(
                        "comparing texts needs a model with one dense vector of floats per text",
                    )
                    .with_hint("change `outputs` and `vector-type`"));
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
                    "expected texts in row {row}, but found {}",
                    kind(&other)
                ))
                .with_hint("cast the argument"));
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

/// Passes each text's answer to `each`; an error if one has none.
async fn answer_each(
    predictor: &Predictor,
    texts: Texts,
    deadline: Deadline,
    mut each: impl FnMut(usize, Answer) -> Result<()>,
) -> Result<()> {
    let (rows, texts): (Vec<usize>, Vec<String>) = texts.into_iter().unzip();
    for (rows, texts) in rows.chunks(TEXTS_AT_ONCE).zip(texts.chunks(TEXTS_AT_ONCE)) {
        let found = predictor
            .predict_by(texts.iter().cloned().map(Ok).collect(), deadline)
            .await?;
        for (row, result) in rows.iter().zip(found.results) {
            each(*row, checked(*row, result)?)?;
        }
    }
    Ok(())
}

/// The time `until`, or the end of a caller's own limit if that is earlier.
pub fn earlier(until: Option<Instant>, limit: Duration) -> Option<Instant> {
    let limit = Instant::now() + limit;
    Some(until.map_or(limit, |until| until.min(limit)))
}

/// The deadline of a caller that waits until this time.
pub fn deadline(until: Option<Instant>) -> Deadline {
    let left = until.map_or(MAX_TIME, |until| {
        until.saturating_duration_since(Instant::now())
    });
    Deadline::within(left.min(MAX_TIME))
}

/// Refuses results that are too long for a response.
pub fn check_size(size: usize) -> Result<()> {
    if size > MAX_RESPONSE_BYTES {
        return Err(Error::too_large(format!(
            "expected results of at most {MAX_RESPONSE_BYTES} bytes, but found at least {size}"
        ))
        .with_hint("set a smaller `MAX_BATCH_ROWS`"));
    }
    Ok(())
}

fn checked(row: usize, result: RowResult) -> Result<Answer> {
    result.map_err(|error| {
        let message = error.message.append(&format!(" (row {row})"));
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
