//! Answers for ranges of a file's rows, which functions write as parts and a job reads.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::output::answer::{Answers, Cell, CellType, Columns, ErrorKind, RowError, RowResult};
use kivu::{
    Error, Result, locked,
    pipeline::embedding::vectors::StoredVector,
    repository::s3::{Condition, Store, Url},
};

/// The answers for a range.
#[derive(Serialize, Deserialize)]
struct Part {
    /// The job that the answers are for.
    job: String,
    tokens: u64,
    truncated: u64,
    results: Vec<PartResult>,
}

/// A row's result; cells as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartResult {
    Answer(Vec<Box<RawValue>>),
    Error(ErrorKind, String),
}

/// Where a range's answers are.
pub enum Place {
    Written(Url),
    /// The range failed, with this error's name.
    Failed(String),
}

/// Writes the part with the answers for the rows after `first` rows.
pub fn write_part(
    store: &Arc<dyn Store>,
    prefix: &Url,
    first: u64,
    job: &str,
    answers: Vec<Answers>,
) -> Result<()> {
    let mut part = Part {
        job: job.to_owned(),
        tokens: 0,
        truncated: 0,
        results: Vec::new(),
    };
    for answers in answers {
        part.tokens += answers.tokens;
        part.truncated += answers.truncated;
        for result in answers.results {
            part.results.push(PartResult::of(result)?);
        }
    }
    let url = prefix.with_key(format!("{}{first:015}", prefix.key));
    let text = serde_json::to_vec(&part).map_err(unwritable)?;
    store.put(&url, text.into(), &Condition::None)?;
    Ok(())
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::inference_because("the answers cannot be written", error)
}

impl PartResult {
    fn of(result: RowResult) -> Result<Self> {
        match result {
            Ok(cells) => {
                let cells = cells.iter().map(to_raw_value).collect::<Result<_, _>>();
                Ok(Self::Answer(cells.map_err(unwritable)?))
            }
            Err(error) => Ok(Self::Error(error.kind, error.message.to_string())),
        }
    }

    /// The result; `None` if the cells do not fit the columns.
    fn result(&self, columns: &Columns) -> Option<RowResult> {
        match self {
            Self::Error(kind, message) => Some(Err(RowError::new(*kind, message.clone()))),
            Self::Answer(cells) if cells.len() == columns.len() => {
                let cells = cells.iter().zip(columns.iter());
                cells
                    .map(|(json, (_, cell_type))| cell(json.get(), *cell_type))
                    .collect::<Option<_>>()
                    .map(Ok)
            }
            Self::Answer(_) => None,
        }
    }
}

/// The cell that was written as `json`.
fn cell(json: &str, cell_type: CellType) -> Option<Cell> {
    // JSON has no other numbers.
    let number = |text: &str| match text {
        "null" => Some(f32::NAN),
        text => text.parse().ok(),
    };
    Some(match cell_type {
        CellType::Text if json.starts_with('{') => Cell::Numbered(serde_json::from_str(json).ok()?),
        CellType::Text => Cell::Text(serde_json::from_str::<String>(json).ok()?.into()),
        CellType::Number => Cell::Number(number(json)?),
        CellType::Texts => {
            let texts: Vec<String> = serde_json::from_str(json).ok()?;
            Cell::Texts(texts.into_iter().map(Into::into).collect())
        }
        CellType::Numbers => {
            let items = json.strip_prefix('[')?.strip_suffix(']')?;
            let items = items.split(',').filter(|item| !item.is_empty());
            Cell::Numbers(items.map(number).collect::<Option<_>>()?)
        }
        CellType::Int8s => Cell::Vector(StoredVector::Int8(serde_json::from_str(json).ok()?)),
        CellType::Uint8s => Cell::Vector(StoredVector::Uint8(serde_json::from_str(json).ok()?)),
        CellType::Json => Cell::Json(json.to_owned()),
    })
}

/// The parts of a file, by their rows.
pub struct Parts {
    store: Arc<dyn Store>,
    job: String,
    columns: Columns,
    /// Each range by the number of rows before it.
    places: Vec<(u64, Place)>,
    /// The part that was read last, by its place.
    current: Mutex<Option<(usize, Part)>>,
}

impl Parts {
    pub fn new(
        store: &Arc<dyn Store>,
        job: &str,
        columns: Columns,
        mut places: Vec<(u64, Place)>,
    ) -> Self {
        // A range may have failed before another attempt wrote its part.
        places.sort_by_key(|(first, place)| (*first, matches!(place, Place::Failed(_))));
        places.dedup_by_key(|(first, _)| *first);
        Self {
            store: Arc::clone(store),
            job: job.to_owned(),
            columns,
            places,
            current: Mutex::default(),
        }
    }

    /// The answers for the rows after `first` rows. A part's tokens count with its first row.
    pub fn answers(&self, first: u64, texts: Vec<Result<String, RowError>>) -> Result<Answers> {
        let mut answers = Answers::default();
        let mut current = locked(&self.current);
        for (row, text) in (first..).zip(texts) {
            let after = self.places.partition_point(|(first, _)| *first <= row);
            let place = after.checked_sub(1);
            let mut missing = Cow::Borrowed("expected a part with its answer, but found none");
            let result = match place.map(|place| (place, &self.places[place])) {
                None => None,
                Some((_, (_, Place::Failed(cause)))) => {
                    missing = format!("its range failed: {cause}").into();
                    None
                }
                Some((place, (first, Place::Written(url)))) => {
                    let part = match current.take() {
                        Some((known, part)) if known == place => part,
                        _ => self.read(url)?,
                    };
                    if row == *first {
                        answers.tokens += part.tokens;
                        answers.truncated += part.truncated;
                    }
                    let found = part.results.get((row - first) as usize);
                    let result = found.map(|found| {
                        let result = found.result(&self.columns);
                        result.ok_or_else(|| damaged(url))
                    });
                    let result = result.transpose()?;
                    *current = Some((place, part));
                    result
                }
            };
            let missing = || text.and_then(|_| Err(RowError::new(ErrorKind::Model, missing)));
            answers.results.push(result.unwrap_or_else(missing));
        }
        Ok(answers)
    }

    fn read(&self, url: &Url) -> Result<Part> {
        let (bytes, _) = self.store.read(url)?.ok_or_else(|| damaged(url))?;
        let part: Part = serde_json::from_slice(&bytes).map_err(|_| damaged(url))?;
        if part.job == self.job {
            return Ok(part);
        }
        Err(
            Error::invalid(format!("the part `{url}` is for another job"))
                .with_hint("start the state machine again"),
        )
    }
}

fn damaged(url: &Url) -> Error {
    Error::model(format!("`{url}` is not a part of an output"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kivu::pipeline::redaction::placeholders::Mapping;

    use super::*;
    use crate::output::answer::Numbered;

    /// Numbers keep their bits, and other cells their JSON.
    #[test]
    fn cells_stay_as_they_were() {
        let numbers = vec![
            0.1,
            -1.5e-38,
            f32::MIN_POSITIVE,
            f32::MAX,
            1.0,
            3.402_823e-39,
        ];
        let numbered = Numbered {
            text: "[PER_1]".into(),
            mapping: Mapping([("[PER_1]".into(), "Ann".into())].into()),
        };
        let cells = [
            (CellType::Text, Cell::Text("a \"b\"\n".into())),
            (CellType::Text, Cell::Numbered(numbered)),
            (CellType::Number, Cell::Number(0.333_333_34)),
            (
                CellType::Texts,
                Cell::Texts(vec!["a,b".into(), Arc::from("]")]),
            ),
            (CellType::Numbers, Cell::Numbers(numbers)),
            (CellType::Numbers, Cell::Numbers(Vec::new())),
            (
                CellType::Int8s,
                Cell::Vector(StoredVector::Int8(vec![-128, 127])),
            ),
            (
                CellType::Uint8s,
                Cell::Vector(StoredVector::Uint8(vec![0, 255])),
            ),
        ];
        for (cell_type, expected) in cells {
            let written = PartResult::of(Ok(vec![expected.clone()])).unwrap();
            let columns: Columns = [("a", cell_type)].into();
            assert_eq!(written.result(&columns), Some(Ok(vec![expected])));
        }
        let weights = Cell::Weights(vec![("7".into(), 0.1), ("a".into(), 1e-7)]);
        let json = serde_json::to_string(&weights).unwrap();
        let copy = cell(&json, CellType::Json).unwrap();
        assert_eq!(serde_json::to_string(&copy).unwrap(), json);
        let error = RowError::new(ErrorKind::Input, "too long");
        let written = PartResult::of(Err(error.clone())).unwrap();
        assert_eq!(written.result(&[].into()), Some(Err(error)));
        assert!(cell("[1,x]", CellType::Numbers).is_none());
    }
}
