//! Files that one function would not get done: a state machine hands their rows out in batches, each batch becomes
//! a part beside the output, and in the end one call joins the parts.
//!
//! Rows come as the state machine reads them, as JSON objects. A part holds them as they stand in the output,
//! without what comes once a file, behind a line that says which rows they are and what was done.

use std::{
    io::{Cursor, Read, Write},
    sync::Arc,
    time::Instant,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Existing, Job, Parameters, Progress, Sink, Source, Status,
    answer::{Answerer, Answers},
    checkpoint::{Checkpoint, Claim},
    compression::Compression,
    function::Function,
    input::{Format, Gauge, Place},
    output::{Head, Pieces, Shape},
    rows::{Chunk, CsvHeader, CsvReader, ErrorKind, JsonLinesReader, Outcome, Reader, RowError},
};
use crate::{
    error::{Error, Result},
    model::Model,
    repository::s3::{Condition, Store, Url, fit_key},
};

/// A row, as a state machine reads it.
type Row = Map<String, Value>;

/// Rows of a file, from a state machine.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    #[serde(rename = "BatchInput")]
    about: About,
    #[serde(rename = "Items")]
    items: Vec<Item>,
}

/// The file that a batch is of, and the run of the state machine that it belongs to.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum About {
    Rows { input: String, run: String },
    Listing { bucket: String },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Item {
    Row {
        index: u64,
        row: Row,
    },
    Listed {
        #[serde(rename = "Key")]
        key: String,
    },
}

/// The end of a run: its parts are to be joined.
#[derive(Debug, Deserialize)]
pub(super) struct Join {
    input: String,
    run: String,
    /// Where the state machine tells of batches that failed.
    results: Option<Results>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Results {
    bucket: String,
    key: String,
}

impl Batch {
    /// The batch that an event is, if it is one.
    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        if event.get("Items").is_none() {
            return Ok(None);
        }
        let wrong =
            |error| Error::malformed(format!("expected a batch of a state machine, but found: {error}"));
        Self::deserialize(event).map(Some).map_err(wrong)
    }
}

impl Join {
    /// The end of a run that an event is, if it is one.
    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        let wrong = |error| Error::malformed(format!("expected the end of a run, but found: {error}"));
        event.get("join").map(Self::deserialize).transpose().map_err(wrong)
    }
}

/// What a part says of itself on its first line.
#[derive(Debug, Serialize, Deserialize)]
struct PartHead {
    first: u64,
    progress: Progress,
}

/// A file, and how its rows are answered.
struct Plan {
    store: Store,
    source: Source,
    model: Model,
    parameters: Parameters,
    answerer: Answerer,
    sink: Url,
    column: Option<String>,
    shape: Shape,
}

impl Plan {
    /// The plan for the file at `url`, which is looked at for what its rows have in common.
    fn new(function: &Function, url: &str) -> Result<Self> {
        let (store, url) = (Store::open()?, url.parse::<Url>()?);
        let object = store.head(&url, None)?;
        let object =
            object.ok_or_else(|| Error::invalid(format!("expected a file at `{url}`, but found none")))?;
        let (model, parameters, mut sink) = function.plan(&url, &object)?;
        let answerer = Answerer::new(model.clone(), &parameters)?;
        let place = Place::S3(store.clone(), url.clone(), object.clone());
        let (format, compression) = place.format(parameters.format)?;
        let mut reader =
            place.open((format, compression), parameters.column.as_deref(), &Gauge::default())?;
        let (column, head, compression) = match &mut reader {
            // The column is that of the first row.
            Reader::JsonLines(lines) => (lines.find_first()?, Head::JsonLines, compression),
            Reader::Csv(csv) => (Some(csv.column().to_owned()), Head::Csv(csv.header().clone()), compression),
            // A state machine hands the rows on as JSON, which has fewer types.
            Reader::Parquet(parquet) => (Some(parquet.column()), Head::JsonLines, Compression::None),
        };
        if format == Format::Parquet {
            sink = sink.with_key(fit_key(&format!("{}.jsonl", sink.key.trim_end_matches(".parquet"))));
        }
        let shape = Shape { compression, kind: answerer.kind(), head };
        Ok(Self {
            store,
            source: Source::Object(url, object),
            model,
            parameters,
            answerer,
            sink,
            column,
            shape,
        })
    }

    /// Where the parts of a run lie.
    fn parts(&self, run: &str) -> Url {
        self.sink.with_key(fit_key(&format!("{}.parts-{run}/", self.sink.key)))
    }

    /// Rows in the form of the file.
    fn reader(&self, rows: &[Row]) -> Result<Reader> {
        match &self.shape.head {
            Head::Csv(header) => {
                let text = csv_of(header, rows)?;
                let contents: Box<dyn Read + Send> = Box::new(Cursor::new(text));
                Ok(Reader::Csv(CsvReader::new(contents, self.column.as_deref())?))
            }
            _ => {
                let mut text = Vec::new();
                for row in rows {
                    serde_json::to_writer(&mut text, row)
                        .map_err(|error| Error::inference_because("the rows cannot be written", error))?;
                    text.push(b'\n');
                }
                let contents: Box<dyn Read + Send> = Box::new(Cursor::new(text));
                Ok(Reader::JsonLines(JsonLinesReader::new(contents, self.column.clone())))
            }
        }
    }

    /// A part of rows whose chunks are answered by `answer`.
    async fn part(
        &self,
        first: u64,
        rows: &[Row],
        answer: impl AsyncFn(Chunk) -> Result<(super::Rows, Answers)>,
    ) -> Result<(PartHead, Vec<u8>)> {
        let started = Instant::now();
        let mut progress = Progress::default();
        let plain = Shape { compression: Compression::None, ..self.shape.clone() };
        // What comes once a file comes when the parts are joined.
        let mut pieces = Pieces::resumed(plain, Vec::new(), Vec::new());
        let mut reader = self.reader(rows)?;
        while let Some(chunk) = reader.next()? {
            let (rows, answers) = answer(chunk).await?;
            pieces.write(rows, &answers.outcomes)?;
            progress.add(&answers);
            progress.name_columns(pieces.columns());
        }
        progress.seconds = started.elapsed().as_secs_f64();
        Ok((PartHead { first, progress }, pieces.take()?))
    }
}

/// Answers the rows of a batch and writes them as a part; or does the files of a listing.
pub(super) async fn answer(function: &Function, batch: &Batch, until: Option<Instant>) -> Result<Value> {
    let (input, run) = match &batch.about {
        About::Rows { input, run } => (input, run),
        About::Listing { bucket } => {
            let urls = batch.items.iter().filter_map(|item| match item {
                Item::Listed { key } => Some(Url { bucket: bucket.clone(), key: key.clone() }),
                Item::Row { .. } => None,
            });
            return function.listed(urls.collect(), until).await;
        }
    };
    let plan = Plan::new(function, input)?;
    let (first, rows) = rows_of(&batch.items)?;
    let answered = async |Chunk { texts, rows }: Chunk| Ok((rows, plan.answerer.answer(texts).await?));
    let (head, bytes) = plan.part(first, &rows, answered).await?;
    let mut text = serde_json::to_vec(&head)
        .map_err(|error| Error::inference_because("the part cannot be written", error))?;
    text.push(b'\n');
    text.extend_from_slice(&bytes);
    let place = plan.parts(run);
    plan.store.put(
        &place.with_key(format!("{}{first:015}", place.key)),
        text,
        &Condition::None,
        &Default::default(),
    )?;
    let errors: u64 = head.progress.errors.values().sum();
    Ok(json!({ "first": first, "rows": head.progress.rows, "errors": errors }))
}

/// The rows of a batch, and the place of the first of them in the file.
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

/// Rows as the text of a CSV file.
fn csv_of(header: &CsvHeader, rows: &[Row]) -> Result<Vec<u8>> {
    let unwritable = |error| Error::inference_because("the rows cannot be written", error);
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
    writer
        .into_inner()
        .map_err(|error| Error::inference_because("the rows cannot be written", error.into_error()))
}

/// Joins the parts of a run into one output, with rows of batches that failed in their places, and writes the
/// report.
pub(super) async fn join(function: &Function, join: &Join) -> Result<Value> {
    let plan = Plan::new(function, &join.input)?;
    let place = plan.parts(&join.run);
    let id = blake3::hash(format!("{}\n{}", plan.sink, join.run).as_bytes()).to_hex().to_string();
    let mut checkpoint = match take(&plan, &id)? {
        Some(checkpoint) => checkpoint,
        None => return Ok(json!({ "status": "known" })),
    };
    let mut parts: Vec<(u64, Part)> = Vec::new();
    for key in plan.store.list(&place)? {
        let first = key.rsplit('/').next().and_then(|name| name.parse().ok());
        parts.extend(first.map(|first| (first, Part::Written(place.with_key(key)))));
    }
    parts.extend(failed(&plan.store, join.results.as_ref())?);
    // Of a batch that failed once and was answered then, the answers count.
    parts.sort_by_key(|(first, part)| (*first, matches!(part, Part::Failed(..))));
    parts.dedup_by_key(|(first, _)| *first);
    let mut output =
        Output { checkpoint: &mut checkpoint, pieces: Pieces::new(plan.shape.clone()), packer: None };
    let (mut progress, mut missing) = (Progress::default(), Vec::new());
    output.write(&plan, &head_of(&plan.shape)?, &progress)?;
    for (first, part) in &parts {
        if *first > progress.rows + missing.iter().map(|[from, to]: &[u64; 2]| to - from + 1).sum::<u64>() {
            let next = progress.rows + missing.iter().map(|[from, to]| to - from + 1).sum::<u64>();
            missing.push([next + 1, *first]);
        }
        let (head, bytes) = part.read(&plan, *first).await?;
        progress.join(&head.progress);
        output.write(&plan, &bytes, &progress)?;
    }
    output.finish(&progress)?;
    let job = Job {
        source: plan.source.clone(),
        sink: Sink::Object(plan.sink.clone()),
        model: plan.model.clone(),
        parameters: plan.parameters.clone(),
        watcher: Arc::new(()),
        until: None,
        interval: std::time::Duration::MAX,
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

/// The right to write the output, from its beginning; nothing where it is there.
fn take(plan: &Plan, id: &str) -> Result<Option<Box<Checkpoint>>> {
    let (interval, existing) = (std::time::Duration::MAX, Existing::default());
    let claim = || Checkpoint::claim(&plan.store, &plan.sink, id, interval, existing);
    match claim()? {
        Claim::Done => Ok(None),
        Claim::Taken(checkpoint) if checkpoint.is_new() => Ok(Some(checkpoint)),
        Claim::Taken(checkpoint) => {
            // Joining takes seconds: it is begun anew.
            checkpoint.abandon()?;
            match claim()? {
                Claim::Done => Ok(None),
                Claim::Taken(checkpoint) => Ok(Some(checkpoint)),
            }
        }
    }
}

/// Rows of a run, answered or not.
enum Part {
    Written(Url),
    Failed(Vec<Row>, String),
}

impl Part {
    async fn read(&self, plan: &Plan, first: u64) -> Result<(PartHead, Vec<u8>)> {
        match self {
            Self::Failed(rows, cause) => {
                let error =
                    || RowError { kind: ErrorKind::Model, message: format!("its batch failed: {cause}") };
                let answer = async |Chunk { texts, rows }: Chunk| {
                    let outcomes: Vec<Outcome> = texts.iter().map(|_| Err(error())).collect();
                    Ok((rows, Answers { outcomes, ..Answers::default() }))
                };
                plan.part(first, rows, answer).await
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

/// What stands at the beginning of a file, once.
fn head_of(shape: &Shape) -> Result<Vec<u8>> {
    let plain = Shape { compression: Compression::None, ..shape.clone() };
    Pieces::new(plain).take_last()
}

/// The output of a run, packed as its input is.
struct Output<'a> {
    checkpoint: &'a mut Checkpoint,
    pieces: Pieces,
    packer: Option<super::compression::Packer>,
}

impl Output<'_> {
    fn write(&mut self, plan: &Plan, bytes: &[u8], progress: &Progress) -> Result<()> {
        let failed = || Error::io("cannot write the output");
        let packer = match &mut self.packer {
            Some(packer) => packer,
            None => self.packer.insert(plan.shape.compression.pack().map_err(failed())?),
        };
        packer.write_all(bytes).map_err(failed())?;
        if packer.len() < self.checkpoint.part_bytes() {
            return Ok(());
        }
        self.checkpoint.begin()?;
        let bytes = self.packed()?;
        self.checkpoint.send(bytes, &mut self.pieces, progress)
    }

    fn packed(&mut self) -> Result<Vec<u8>> {
        self.packer
            .take()
            .map_or(Ok(Vec::new()), |packer| packer.finish().map_err(Error::io("cannot write the output")))
    }

    fn finish(&mut self, progress: &Progress) -> Result<()> {
        self.checkpoint.begin()?;
        let bytes = self.packed()?;
        self.checkpoint.finish(bytes, &mut self.pieces, progress)
    }
}

/// The rows of batches that failed for good, each with the cause, as the state machine wrote them down.
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
