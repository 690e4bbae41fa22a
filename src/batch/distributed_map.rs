//! Distributed maps of Step Functions, for files that are too large for one function.
//!
//! A state machine passes the rows of a file, as JSON objects, to many functions in batches. Each batch becomes a part:
//! a line of JSON with the number of its first row and its progress, and its rows in the format of the output. At the
//! end, one call joins the parts.

use std::{
    collections::BTreeMap,
    future::pending,
    io::{Cursor, Write},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    answer::{Answers, ErrorKind, RowError},
    checkpoint::{Checkpoint, Claim},
    compression::{Compression, Packer},
    format::Format,
    input::{Gauge, OpenInput},
    job::Job,
    location::{Existing, JobInput, JobOutput},
    output::{Pieces, Shape},
    parameters::Parameters,
    predictor::Predictor,
    process::{End, RowInput, open_rows, panicked, process},
    report::{Progress, Status},
    rows::{CsvHeader, CsvReader, Head, JsonLinesReader, RowReader},
    rules::Rules,
    s3_storage,
    target::{Target, Writer},
};
use crate::{
    error::{Error, Result},
    model::Model,
    repository::s3::{Condition, Store, Url, fit_key},
};

type Row = Map<String, Value>;

/// A batch of rows or of objects.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    #[serde(rename = "BatchInput")]
    input: BatchInput,
    #[serde(rename = "Items")]
    items: Vec<Item>,
}

/// The input that all batches of a map share.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum BatchInput {
    /// The file of the rows, and the id of the map run.
    Rows { input: String, run: String },
    /// The bucket of the objects.
    Listing { bucket: String },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Item {
    Row {
        index: u64,
        row: Row,
    },
    Object {
        #[serde(rename = "Key")]
        key: String,
    },
}

/// The request to join the parts of a map run.
#[derive(Debug, Deserialize)]
pub(super) struct Join {
    input: String,
    run: String,
    /// The object with the results of the map run, which lists failed batches.
    results: Option<Results>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Results {
    bucket: String,
    key: String,
}

impl Batch {
    /// Parses an event; `None` if it is not a batch.
    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        let wrong =
            |error| Error::malformed(format!("expected a batch of a state machine, but found: {error}"));
        event.get("Items").map(|_| Self::deserialize(event)).transpose().map_err(wrong)
    }

    /// The objects of a listing; `None` for a batch of rows.
    pub(super) fn listed(&self) -> Option<Vec<Url>> {
        let BatchInput::Listing { bucket } = &self.input else { return None };
        let urls = self.items.iter().filter_map(|item| match item {
            Item::Object { key } => Some(Url { bucket: bucket.clone(), key: key.clone() }),
            Item::Row { .. } => None,
        });
        Some(urls.collect())
    }
}

impl Join {
    /// Parses an event; `None` if it is not a request to join.
    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        let wrong = |error| Error::malformed(format!("expected the end of a run, but found: {error}"));
        event.get("join").map(Self::deserialize).transpose().map_err(wrong)
    }
}

/// The first line of a part.
#[derive(Debug, Serialize, Deserialize)]
struct PartHead {
    /// The rows before the part.
    first: u64,
    progress: Progress,
}

/// How a file is processed.
struct Plan {
    store: Store,
    input: JobInput,
    output: Url,
    model: Model,
    parameters: Parameters,
    predictor: Predictor,
    column: Option<String>,
    shape: Shape,
}

impl Plan {
    fn new(rules: &Rules, store: &Store, url: &str) -> Result<Self> {
        let url = url.parse::<Url>()?;
        let object = store.head(&url, None)?;
        let object =
            object.ok_or_else(|| Error::invalid(format!("expected a file at `{url}`, but found none")))?;
        let mut output = rules.output(&url)?;
        let (model, parameters) = rules.model(&url, &object)?;
        let predictor = Predictor::new(model.clone(), &parameters)?;
        let input = JobInput::Object(store.clone(), url, object);
        let opened = OpenInput::new(&input)?;
        let format = opened.format(parameters.format)?;
        let mut reader = open_rows(&opened, format, parameters.column.as_deref(), &Gauge::default())?;
        if reader.column().is_none() {
            // The first row determines the column.
            reader.skip(1)?;
        }
        let column = reader.column().map(str::to_owned);
        let mut shape = Shape::of(reader.as_ref(), format.1, predictor.kind());
        if format.0 == Format::Parquet {
            // The state machine passes rows as JSON, which lacks most types of Parquet.
            shape = Shape { head: Head::JsonLines, compression: Compression::None, ..shape };
            output = output.with_key(fit_key(&format!("{}.jsonl", output.key.trim_end_matches(".parquet"))));
        }
        Ok(Self { store: store.clone(), input, output, model, parameters, predictor, column, shape })
    }

    /// The prefix of the parts of a run.
    fn parts(&self, run: &str) -> Url {
        self.output.with_key(fit_key(&format!("{}.parts-{run}/", self.output.key)))
    }

    fn reader(&self, rows: &[Row]) -> Result<Box<dyn RowReader>> {
        if let Head::Csv(header) = &self.shape.head {
            let text = csv_of(header, rows)?;
            return Ok(Box::new(CsvReader::new(Cursor::new(text), self.column.as_deref())?));
        }
        let mut text = Vec::new();
        for row in rows {
            serde_json::to_writer(&mut text, row).map_err(unwritable)?;
            text.push(b'\n');
        }
        Ok(Box::new(JsonLinesReader::new(Cursor::new(text), self.column.as_deref())))
    }

    /// The part with these rows.
    async fn part(
        &self,
        first: u64,
        rows: &[Row],
        predict: impl AsyncFn(Vec<Result<String, RowError>>) -> Result<Answers>,
    ) -> Result<(PartHead, Vec<u8>)> {
        let plain = Shape { compression: Compression::None, ..self.shape.clone() };
        let writer = Writer {
            target: Target::Memory,
            // Without the header of the file.
            pieces: Pieces::resumed(plain, Vec::new(), Vec::new()),
            progress: Progress::default(),
            notes: Vec::new(),
            is_resumable: false,
        };
        let input = RowInput { reader: self.reader(rows)?, gauge: Gauge::default(), size: None };
        match process(input, predict, writer, Arc::new(()), None, pin!(pending())).await? {
            Ok((mut writer, End::Input)) => {
                Ok((PartHead { first, progress: writer.progress }, writer.pieces.take()?))
            }
            Ok((_, End::Rows(error) | End::Output(error))) => Err(error),
            Ok((_, End::Stopped)) | Err(_) => Err(panicked()),
        }
    }
}

/// Processes a batch of rows and writes it as a part.
pub(super) async fn process_batch(rules: &Rules, store: &Store, batch: &Batch) -> Result<Value> {
    let BatchInput::Rows { input, run } = &batch.input else {
        return Err(Error::malformed("expected a batch of rows, but found a listing"));
    };
    let plan = Plan::new(rules, store, input)?;
    let (first, rows) = rows_of(&batch.items)?;
    let (head, bytes) = plan.part(first, &rows, async |texts| plan.predictor.predict(texts).await).await?;
    let mut text = serde_json::to_vec(&head).map_err(unwritable)?;
    text.push(b'\n');
    text.extend_from_slice(&bytes);
    let prefix = plan.parts(run);
    let url = prefix.with_key(format!("{}{first:015}", prefix.key));
    plan.store.put(&url, text, &Condition::None, &BTreeMap::new())?;
    let errors: u64 = head.progress.errors.values().sum();
    Ok(json!({ "first": first, "rows": head.progress.rows, "errors": errors }))
}

/// The rows of a batch, and the number of rows before them.
fn rows_of(items: &[Item]) -> Result<(u64, Vec<Row>)> {
    let mut rows = Vec::new();
    let mut first = None;
    for item in items {
        let Item::Row { index, row } = item else {
            return Err(Error::malformed("expected items with `index` and `row`, but found others"));
        };
        let expected = *first.get_or_insert(*index) + rows.len() as u64;
        if *index != expected {
            return Err(Error::malformed(format!(
                "expected row {expected} next in the batch, but found row {index}"
            )));
        }
        rows.push(row.clone());
    }
    let first =
        first.ok_or_else(|| Error::malformed("expected at least one item in the batch, but found none"))?;
    Ok((first, rows))
}

fn csv_of(header: &CsvHeader, rows: &[Row]) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().delimiter(header.delimiter).from_writer(Vec::new());
    writer.write_record(&header.names).map_err(unwritable)?;
    for row in rows {
        let cells = header.names.iter().map(|name| match row.get(name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        });
        writer.write_record(cells).map_err(unwritable)?;
    }
    writer.into_inner().map_err(|error| unwritable(error.into_error()))
}

fn unwritable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::inference_because("the rows cannot be written", error)
}

/// Joins the parts of a run into the output, with errors for the rows of failed batches, and writes the report.
pub(super) async fn join(rules: &Rules, store: &Store, join: &Join) -> Result<Value> {
    let plan = Plan::new(rules, store, &join.input)?;
    let prefix = plan.parts(&join.run);
    let Some(checkpoint) = claim(&plan, &join.run)? else { return Ok(json!({ "status": "known" })) };
    let mut parts: Vec<(u64, Part)> = Vec::new();
    for key in plan.store.list(&prefix)? {
        let first = key.rsplit('/').next().and_then(|name| name.parse().ok());
        parts.extend(first.map(|first| (first, Part::Written(prefix.with_key(key)))));
    }
    parts.extend(failed(&plan.store, join.results.as_ref())?);
    // A batch may have failed before another attempt wrote its part.
    parts.sort_by_key(|(first, part)| (*first, matches!(part, Part::Failed(..))));
    parts.dedup_by_key(|(first, _)| *first);
    let compression = plan.shape.compression;
    let pieces = Pieces::new(plan.shape.clone());
    let mut output =
        JoinedOutput { checkpoint, pieces, compression, packer: None, progress: Progress::default() };
    let plain = Shape { compression: Compression::None, ..plan.shape.clone() };
    output.write(&Pieces::new(plain).take_last()?)?;
    let (mut next, mut missing) = (0, Vec::new());
    for (first, part) in &parts {
        if *first > next {
            missing.push([next + 1, *first]);
            next = *first;
        }
        let (head, bytes) = part.read(&plan, *first).await?;
        next += head.progress.rows;
        output.progress.join(&head.progress);
        output.write(&bytes)?;
    }
    output.finish()?;
    let JoinedOutput { checkpoint, progress, .. } = output;
    let job = Job {
        input: plan.input,
        output: JobOutput::Object(plan.store.clone(), plan.output),
        model: plan.model,
        parameters: plan.parameters,
        watcher: Arc::new(()),
        until: None,
        interval: Duration::MAX,
        existing: Existing::default(),
    };
    let mut report = job.report(Status::Finished, None, progress);
    report.missing = missing;
    job.write_report(&report)?;
    for (_, part) in &parts {
        if let Part::Written(url) = part {
            plan.store.delete(url)?;
        }
    }
    checkpoint.forget()?;
    Ok(json!(report))
}

/// Claims the output of a run, from its beginning; `None` if it exists.
fn claim(plan: &Plan, run: &str) -> Result<Option<Box<Checkpoint>>> {
    let id = blake3::hash(format!("{}\n{run}", plan.output).as_bytes()).to_hex().to_string();
    let claim = || s3_storage::claim(&plan.store, &plan.output, &id, Duration::MAX, Existing::default());
    loop {
        match claim()? {
            Claim::Done => return Ok(None),
            Claim::Claimed(checkpoint) if checkpoint.state().upload.is_none() => return Ok(Some(checkpoint)),
            // Joining takes seconds and starts again.
            Claim::Claimed(checkpoint) => checkpoint.abandon()?,
        }
    }
}

enum Part {
    Written(Url),
    /// The rows of a failed batch, and its error.
    Failed(Vec<Row>, String),
}

impl Part {
    async fn read(&self, plan: &Plan, first: u64) -> Result<(PartHead, Vec<u8>)> {
        match self {
            Self::Failed(rows, cause) => {
                let error = RowError::new(ErrorKind::Model, format!("its batch failed: {cause}"));
                let predict = async |texts: Vec<_>| {
                    let results = texts.iter().map(|_| Err(error.clone())).collect();
                    Ok(Answers { results, ..Answers::default() })
                };
                plan.part(first, rows, predict).await
            }
            Self::Written(url) => {
                let wrong = || Error::model(format!("expected a part in `{url}`, but found something else"));
                let (bytes, _) = plan.store.read(url)?.ok_or_else(wrong)?;
                let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
                let head = serde_json::from_slice(&bytes[..end]).map_err(|_| wrong())?;
                Ok((head, bytes[end + 1..].to_vec()))
            }
        }
    }
}

/// Writes the bytes of parts, with the compression of the output.
struct JoinedOutput {
    checkpoint: Box<Checkpoint>,
    pieces: Pieces,
    compression: Compression,
    packer: Option<Packer>,
    progress: Progress,
}

impl JoinedOutput {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let failed = || Error::io("cannot write the output");
        let packer = match &mut self.packer {
            Some(packer) => packer,
            None => self.packer.insert(self.compression.pack().map_err(failed())?),
        };
        packer.write_all(bytes).map_err(failed())?;
        if packer.len() < self.checkpoint.part_bytes() {
            return Ok(());
        }
        self.checkpoint.begin()?;
        let bytes = self.packed()?;
        self.checkpoint.send(bytes, &mut self.pieces, &self.progress)
    }

    fn packed(&mut self) -> Result<Vec<u8>> {
        let packed = self.packer.take().map(Packer::finish).transpose();
        packed.map(Option::unwrap_or_default).map_err(Error::io("cannot write the output"))
    }

    fn finish(&mut self) -> Result<()> {
        self.checkpoint.begin()?;
        let bytes = self.packed()?;
        self.checkpoint.finish(bytes, &mut self.pieces, &self.progress)
    }
}

/// The rows of batches that failed permanently, according to the results of the map run.
fn failed(store: &Store, results: Option<&Results>) -> Result<Vec<(u64, Part)>> {
    let Some(results) = results else { return Ok(Vec::new()) };
    let wrong =
        |error| Error::malformed(format!("expected the results of a state machine, but found: {error}"));
    let read = |key: &str| {
        let url = Url { bucket: results.bucket.clone(), key: key.to_owned() };
        let found = store
            .read(&url)?
            .ok_or_else(|| Error::invalid(format!("expected `{url}`, but found nothing")))?;
        serde_json::from_slice::<Value>(&found.0).map_err(wrong)
    };
    let manifest = read(&results.key)?;
    let files =
        manifest.pointer("/ResultFiles/FAILED").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut failed = Vec::new();
    for file in files.iter().filter_map(|file| file.get("Key")?.as_str()) {
        for execution in read(file)?.as_array().into_iter().flatten() {
            let text = |name: &str| execution.get(name).and_then(Value::as_str).unwrap_or_default();
            let input: Value = serde_json::from_str(text("Input")).map_err(wrong)?;
            if let Some(Batch { items, .. }) = Batch::of(&input)? {
                let (first, rows) = rows_of(&items)?;
                failed.push((first, Part::Failed(rows, text("Error").to_owned())));
            }
        }
    }
    Ok(failed)
}
