//! Distributed maps in Step Functions, for files that are too large for one function.
//!
//! A state machine passes a file's rows, as JSON objects, to many functions in batches. Each batch becomes a part:
//! a JSON line with its first row's number and its progress, and its rows in the output format. At the end, one
//! call joins the parts.

use std::{
    collections::BTreeMap,
    future::pending,
    io::{Cursor, Write},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::{Answers, ErrorKind, RowError},
    checkpoint::{Checkpoint, State},
    compression::{Compression, Packer},
    format::Format,
    input::{Gauge, OpenInput},
    job::Job,
    location::{Existing, JobInput, JobOutput},
    output::{Pieces, Shape},
    output_form::OutputForm,
    predictor::Predictor,
    process::{End, RowInput, open_rows, panicked, process},
    report::{Progress, Status},
    rows::{CsvHeader, CsvReader, Head, JsonLinesReader, Layout, RowReader},
    rules::Rules,
    s3_storage,
    target::{Target, Writer},
};
use crate::{
    error::{Error, Result, quoted},
    json::kind,
    repository::s3::{Condition, Store, Url, fit_key},
};

/// The names that an error lists.
const MAX_LISTED: usize = 8;

/// A batch with rows or objects.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "other fields")]
pub(super) enum MapBatch {
    #[serde(rename_all = "PascalCase")]
    Rows { batch_input: Run, items: Vec<Item> },
    #[serde(rename_all = "PascalCase")]
    Listing {
        batch_input: Listing,
        items: Vec<Listed>,
    },
}

/// The rows' file, and the map run's id.
#[derive(Debug, Deserialize)]
pub(super) struct Run {
    input: String,
    run: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Item {
    index: u64,
    /// An object, unless the file has lines with other values.
    row: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    pub(super) bucket: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listed {
    pub(super) key: String,
}

/// Request to join a map run's parts.
#[derive(Debug, Deserialize)]
pub(super) struct Join {
    #[serde(flatten)]
    run: Run,
    /// Object with the map run's results, which lists failed batches.
    results: Option<Results>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Results {
    bucket: String,
    key: String,
}

impl MapBatch {
    /// Parses an event; `None` if it is not a batch.
    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        let wrong = |error| {
            Error::malformed(format!(
                "expected a state machine's batch, but found: {error}"
            ))
        };
        event
            .get("Items")
            .map(|_| Self::deserialize(event))
            .transpose()
            .map_err(wrong)
    }
}

impl Join {
    /// Parses an event; `None` if it is not a request to join.
    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        let wrong =
            |error| Error::malformed(format!("expected the end of a run, but found: {error}"));
        event
            .get("join")
            .map(Self::deserialize)
            .transpose()
            .map_err(wrong)
    }
}

/// How a file is processed.
struct Plan {
    store: Store,
    output: Url,
    job: Job,
    predictor: Predictor,
    layout: Layout,
    shape: Shape,
    /// Job identity, which all parts share.
    id: String,
}

impl Plan {
    fn new(rules: &Rules, store: &Store, url: &str) -> Result<Self> {
        let url = url.parse::<Url>()?;
        let object = store.head(&url)?;
        let object = object
            .ok_or_else(|| Error::invalid(format!("expected a file at `{url}`, but found none")))?;
        if rules.sink(&url)?.is_some() {
            return Err(Error::config(format!(
                "expected a rule without `sink` for the rows of a state machine, but found one for `{url}`; upload the \
                 file to a prefix that the queue processes"
            )));
        }
        let mut output = rules.output(&url)?;
        let (model, parameters) = rules.model(&url, &object)?;
        let predictor = Predictor::new(&model, &parameters)?;
        let input = JobInput::Object(store.clone(), url, object);
        let opened = OpenInput::new(&input)?;
        let format = opened.format(parameters.format)?;
        let reader = open_rows(&opened, format, &parameters.layout(), &Gauge::default())?;
        if let Head::Csv(header) = reader.head()
            && !header.is_common()
        {
            return Err(Error::config(format!(
                "state machines read CSV only with a header and doubled quotes, unlike `{}`; upload the file to a prefix \
                 that the queue processes",
                opened.name()
            )));
        }
        let (form, _) = OutputForm::of(&output.to_string(), &input.to_string(), format)?;
        let mut shape = Shape::of(reader.as_ref(), form, predictor.columns());
        let layout = reader.layout();
        if format.0 == Format::Parquet {
            // The state machine passes rows as JSON, which lacks most Parquet types.
            shape = Shape {
                head: Head::JsonLines,
                compression: Compression::None,
                ..shape
            };
            output = output.with_key(fit_key(&format!(
                "{}.jsonl",
                output.key.trim_end_matches(".parquet")
            )));
        }
        let job = Job::new(
            input,
            JobOutput::Object(store.clone(), output.clone()),
            model,
            parameters,
        );
        let id = job.id(opened.version()?)?;
        Ok(Self {
            store: store.clone(),
            output,
            job,
            predictor,
            layout,
            shape,
            id,
        })
    }

    /// Prefix for a run's parts.
    fn parts(&self, run: &str) -> Url {
        self.output
            .with_key(fit_key(&format!("{}.parts-{run}/", self.output.key)))
    }

    fn uncompressed(&self) -> Shape {
        Shape {
            compression: Compression::None,
            ..self.shape.clone()
        }
    }

    /// Predicts these rows and returns their part.
    async fn part(
        &self,
        rows: &[Value],
        predict: impl AsyncFn(Vec<Result<String, RowError>>) -> Result<Answers>,
    ) -> Result<(Progress, Vec<u8>)> {
        let writer = Writer {
            target: Target::Memory,
            // Parts have no header.
            pieces: Pieces::resumed(self.uncompressed(), Vec::new(), Vec::new()),
            progress: Progress::default(),
            notes: Vec::new(),
            column: String::new(),
            is_resumable: false,
            sink: None,
        };
        let input = RowInput {
            reader: reader(&self.shape.head, &self.layout, rows)?,
            gauge: Gauge::default(),
            size: None,
        };
        match process(
            input,
            predict,
            writer,
            Arc::new(()),
            None,
            Box::pin(pending()),
        )
        .await?
        {
            Ok((mut writer, End::Input)) => Ok((writer.progress, writer.pieces.take()?)),
            Ok((_, End::Rows(error) | End::Output(error))) => Err(error),
            Ok((_, End::Stopped)) | Err(_) => Err(panicked()),
        }
    }
}

/// Processes a row batch and writes it as a part.
pub(super) async fn process_batch(
    rules: &Rules,
    store: &Store,
    run: Run,
    items: Vec<Item>,
) -> Result<Value> {
    let plan = Plan::new(rules, store, &run.input)?;
    let (first, rows) = rows_of(items)?;
    let (progress, bytes) = plan
        .part(&rows, async |texts| plan.predictor.predict(texts).await)
        .await?;
    let mut text = json!({ "first": first, "job": plan.id, "progress": progress })
        .to_string()
        .into_bytes();
    text.push(b'\n');
    text.extend_from_slice(&bytes);
    let prefix = plan.parts(&run.run);
    let url = prefix.with_key(format!("{}{first:015}", prefix.key));
    plan.store.put(&url, text, &Condition::None)?;
    let errors: u64 = progress.errors.values().sum();
    Ok(json!({ "first": first, "rows": progress.rows, "errors": errors }))
}

/// A batch's rows, and the number of rows before them.
fn rows_of(items: Vec<Item>) -> Result<(u64, Vec<Value>)> {
    let first = items.first().map(|item| item.index);
    let first = first.ok_or_else(|| {
        Error::malformed("expected at least one item in the batch, but found none")
    })?;
    if let Some((expected, Item { index, .. })) = (first..)
        .zip(&items)
        .find(|(next, item)| *next != item.index)
    {
        return Err(Error::malformed(format!(
            "expected row {expected} next in the batch, but found row {index}"
        )));
    }
    Ok((first, items.into_iter().map(|item| item.row).collect()))
}

/// Reads the rows that a state machine passes.
fn reader(head: &Head, layout: &Layout, rows: &[Value]) -> Result<Box<dyn RowReader>> {
    if let Head::Csv(header) = head {
        let text = csv_of(header, rows)?;
        return Ok(Box::new(CsvReader::new(Cursor::new(text), layout)?));
    }
    let mut text = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut text, row).map_err(unwritable)?;
        text.push(b'\n');
    }
    Ok(Box::new(JsonLinesReader::new(
        Cursor::new(text),
        layout.column.as_deref(),
    )?))
}

fn csv_of(header: &CsvHeader, rows: &[Value]) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new()
        .delimiter(header.dialect.delimiter)
        .from_writer(Vec::new());
    writer.write_record(&header.names).map_err(unwritable)?;
    for row in rows {
        let fields = csv_fields(header, row)?;
        let cells = header
            .names
            .iter()
            .map(|name| match fields.get(name.as_str()) {
                Some(Value::String(text)) => text.clone(),
                None | Some(Value::Null) => String::new(),
                Some(other) => other.to_string(),
            });
        writer.write_record(cells).map_err(unwritable)?;
    }
    writer
        .into_inner()
        .map_err(|error| unwritable(error.into_error()))
}

/// A CSV row's fields by column.
///
/// # Errors
/// The state machine has split the file's lines at another delimiter.
fn csv_fields<'a>(header: &CsvHeader, row: &'a Value) -> Result<BTreeMap<&'a str, &'a Value>> {
    let fields = row.as_object().ok_or_else(|| {
        Error::invalid(format!(
            "expected CSV rows as objects in the batch, but found {}",
            kind(row)
        ))
    })?;
    // A byte order mark at the file's start may be in the first name.
    let name = |name: &'a String| name.trim_start_matches('\u{feff}');
    let fields: BTreeMap<&str, &Value> = fields
        .iter()
        .map(|(key, value)| (name(key), value))
        .collect();
    let is_known = |name: &&str| header.names.iter().any(|known| known == name);
    // A short row may lack columns, and a state machine may add fields.
    if header
        .names
        .iter()
        .all(|name| fields.contains_key(name.as_str()))
        || fields.keys().all(is_known)
    {
        return Ok(fields);
    }
    let found: Vec<&str> = fields.into_keys().take(MAX_LISTED).collect();
    let delimiter = match header.dialect.delimiter {
        b';' => "SEMICOLON",
        b'\t' => "TAB",
        b'|' => "PIPE",
        _ => "COMMA",
    };
    Err(Error::invalid(format!(
        "expected rows with the columns {}, but found {}; set `\"CSVDelimiter\": \"{delimiter}\"` in the state machine's \
         `ReaderConfig`, or upload the file to a prefix that the queue processes",
        quoted(&header.names[..header.names.len().min(MAX_LISTED)]),
        quoted(&found)
    )))
}

fn unwritable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::inference_because("the rows cannot be written", error)
}

/// Joins a run's parts into the output, with errors for rows in failed batches, and writes the report. An interrupted
/// join can be repeated: the checkpoint is deleted last.
pub(super) async fn join(rules: &Rules, store: &Store, join: &Join) -> Result<Value> {
    let plan = Plan::new(rules, store, &join.run.input)?;
    let prefix = plan.parts(&join.run.run);
    let Some(mut checkpoint) = claim(&plan, &join.run.run)? else {
        return Ok(json!({ "status": "known", "output": plan.output.to_string() }));
    };
    if checkpoint.state.is_whole {
        checkpoint.complete()?;
    } else {
        checkpoint = write_parts(&plan, &prefix, join.results.as_ref(), checkpoint).await?;
    }
    let State {
        progress, missing, ..
    } = checkpoint.state.clone();
    let mut report = plan.job.report(Status::Finished, None, progress);
    report.missing = missing;
    report.text_column.clone_from(&plan.layout.column);
    plan.job.write_report(&report)?;
    for (_, url) in written_parts(store, &prefix)? {
        store.delete(&url)?;
    }
    checkpoint.forget()?;
    Ok(json!(report))
}

/// Each part's first row and URL.
fn written_parts(store: &Store, prefix: &Url) -> Result<Vec<(u64, Url)>> {
    let part = |key: String| {
        Some((
            key.rsplit('/').next()?.parse::<u64>().ok()?,
            prefix.with_key(key),
        ))
    };
    Ok(store.list(prefix)?.into_iter().filter_map(part).collect())
}

/// Writes the output from a run's parts.
async fn write_parts(
    plan: &Plan,
    prefix: &Url,
    results: Option<&Results>,
    checkpoint: Box<Checkpoint>,
) -> Result<Box<Checkpoint>> {
    let written = written_parts(&plan.store, prefix)?;
    let mut parts: Vec<(u64, Part)> = written
        .into_iter()
        .map(|(first, url)| (first, Part::Written(url)))
        .collect();
    parts.extend(failed(&plan.store, results)?);
    // A batch may have failed before another attempt wrote its part.
    parts.sort_by_key(|(first, part)| (*first, matches!(part, Part::Failed(..))));
    parts.dedup_by_key(|(first, _)| *first);
    let pieces = Pieces::new(plan.shape.clone());
    let packer = plan.shape.packer()?;
    let mut output = JoinedOutput {
        checkpoint,
        pieces,
        packer,
        progress: Progress::default(),
    };
    output.write(plan, &Pieces::new(plan.uncompressed()).take_last()?)?;
    let (mut next, mut missing) = (0, Vec::new());
    for (first, part) in &parts {
        if *first > next {
            missing.push([next + 1, *first]);
            next = *first;
        }
        let (progress, bytes) = part.read(plan).await?;
        next += progress.rows;
        output.progress.join(&progress);
        output.write(plan, &bytes)?;
    }
    output.checkpoint.state.missing = missing;
    output.finish()
}

/// Claims a run's output: from its beginning, or complete; `None` if its report is written, too.
fn claim(plan: &Plan, run: &str) -> Result<Option<Box<Checkpoint>>> {
    let id = blake3::hash(format!("{}\n{run}\n{}", plan.output, plan.id).as_bytes())
        .to_hex()
        .to_string();
    let Plan {
        store, output, job, ..
    } = plan;
    let claim = || {
        s3_storage::claim(
            store,
            output,
            &job.input,
            &id,
            Duration::MAX,
            Existing::default(),
        )
    };
    loop {
        match claim()? {
            None => return Ok(None),
            Some(checkpoint) if checkpoint.state.is_whole || checkpoint.state.upload.is_none() => {
                return Ok(Some(checkpoint));
            }
            // Joining takes only seconds, so an incomplete output is restarted, not resumed.
            Some(checkpoint) => checkpoint.abandon()?,
        }
    }
}

enum Part {
    Written(Url),
    /// A failed batch's rows and error.
    Failed(Vec<Value>, String),
}

impl Part {
    async fn read(&self, plan: &Plan) -> Result<(Progress, Vec<u8>)> {
        match self {
            Self::Failed(rows, cause) => {
                let error = RowError::new(ErrorKind::Model, format!("its batch failed: {cause}"));
                let predict = async |texts: Vec<_>| {
                    let results = texts.iter().map(|_| Err(error.clone())).collect();
                    Ok(Answers {
                        results,
                        ..Answers::default()
                    })
                };
                plan.part(rows, predict).await
            }
            Self::Written(url) => {
                let wrong = || {
                    Error::model(format!(
                        "expected a part in `{url}`, but found something else"
                    ))
                };
                let (bytes, _) = plan.store.read(url)?.ok_or_else(wrong)?;
                let end = bytes
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .ok_or_else(wrong)?;
                let head: Value = serde_json::from_slice(&bytes[..end]).map_err(|_| wrong())?;
                if head["job"].as_str() != Some(&plan.id) {
                    return Err(Error::invalid(format!(
                        "expected one input, model and configuration for all parts of a run, but found others in `{url}`; \
                         start the state machine again"
                    )));
                }
                let progress = Progress::deserialize(&head["progress"]).map_err(|_| wrong())?;
                Ok((progress, bytes[end + 1..].to_vec()))
            }
        }
    }
}

/// Writes part bytes, with the output's compression.
struct JoinedOutput {
    checkpoint: Box<Checkpoint>,
    pieces: Pieces,
    packer: Packer,
    progress: Progress,
}

impl JoinedOutput {
    fn write(&mut self, plan: &Plan, bytes: &[u8]) -> Result<()> {
        self.packer
            .write_all(bytes)
            .map_err(Error::io("cannot write the output"))?;
        if self.packer.len() < self.checkpoint.part_bytes(false) {
            return Ok(());
        }
        let packed = std::mem::replace(&mut self.packer, plan.shape.packer()?).finish();
        self.checkpoint.begin()?;
        let packed = packed.map_err(Error::io("cannot write the output"))?;
        self.checkpoint
            .send(packed, &mut self.pieces, &self.progress)
    }

    fn finish(mut self) -> Result<Box<Checkpoint>> {
        self.checkpoint.begin()?;
        let packed = self
            .packer
            .finish()
            .map_err(Error::io("cannot write the output"))?;
        self.checkpoint
            .finish(packed, &mut self.pieces, &self.progress)?;
        Ok(self.checkpoint)
    }
}

/// Rows in batches that failed permanently, according to the map run's results.
fn failed(store: &Store, results: Option<&Results>) -> Result<Vec<(u64, Part)>> {
    let Some(results) = results else {
        return Ok(Vec::new());
    };
    let wrong = |error| {
        Error::malformed(format!(
            "expected a state machine's results, but found: {error}"
        ))
    };
    let read = |key: &str| {
        let url = Url {
            bucket: results.bucket.clone(),
            key: key.to_owned(),
        };
        let found = store
            .read(&url)?
            .ok_or_else(|| Error::invalid(format!("expected `{url}`, but found nothing")))?;
        serde_json::from_slice::<Value>(&found.0).map_err(wrong)
    };
    let manifest = read(&results.key)?;
    let files = manifest
        .pointer("/ResultFiles/FAILED")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let mut failed = Vec::new();
    for file in files.iter().filter_map(|file| file.get("Key")?.as_str()) {
        for execution in read(file)?.as_array().into_iter().flatten() {
            let text = |name: &str| {
                execution
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let input: Value = serde_json::from_str(text("Input")).map_err(wrong)?;
            if let Some(MapBatch::Rows { items, .. }) = MapBatch::of(&input)? {
                let (first, rows) = rows_of(items)?;
                failed.push((first, Part::Failed(rows, text("Error").to_owned())));
            }
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::rows::{Chunk, Rows};

    fn csv_rows(delimiter: u8, rows: &[Value]) -> Result<Vec<String>> {
        let file = format!("id{}text\n", char::from(delimiter));
        let opened = CsvReader::new(Cursor::new(file), &Layout::default())?;
        let mut reader = reader(&opened.head(), &opened.layout(), rows)?;
        let texts = reader.next()?.map_or(Vec::new(), |chunk| chunk.texts);
        Ok(texts
            .into_iter()
            .map(|text| text.unwrap_or_else(|error| error.message))
            .collect())
    }

    #[test]
    fn rows_split_at_another_delimiter_are_refused() {
        let right = json!({ "id": 1, "text": "a;b" });
        let with_mark = json!({ "\u{feff}id": 1, "text": "c" });
        let short = json!({ "text": "d" });
        let with_more = json!({ "id": 1, "text": "e", "run": 7 });
        let rows = [right, with_mark, short, with_more];
        for delimiter in *b",;\t|" {
            assert_eq!(csv_rows(delimiter, &rows).unwrap(), ["a;b", "c", "d", "e"]);
        }
        let refused = |rows: &[Value]| csv_rows(b';', rows).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&[json!({ "id;text": "1;a" })]), @r#"expected rows with the columns `id`, `text`, but found `id;text`; set `"CSVDelimiter": "SEMICOLON"` in the state machine's `ReaderConfig`, or upload the file to a prefix that the queue processes"#);
        insta::assert_snapshot!(refused(&[json!("1;a")]), @"expected CSV rows as objects in the batch, but found a string");
    }

    #[test]
    fn json_lines_that_are_not_objects_are_rows_with_errors() {
        let items = [
            json!({ "text": "a" }),
            json!(5),
            json!("x"),
            json!([1]),
            Value::Null,
        ];
        let items = items
            .into_iter()
            .enumerate()
            .map(|(index, row)| json!({ "index": index, "row": row }));
        let event = json!({ "BatchInput": { "input": "s3://a/b.jsonl", "run": "r" }, "Items": items.collect::<Vec<_>>() });
        let Some(MapBatch::Rows { items, .. }) = MapBatch::of(&event).unwrap() else {
            panic!("{event}")
        };
        let (_, rows) = rows_of(items).unwrap();
        let mut reader = reader(&Head::JsonLines, &Layout::of_column(Some("text")), &rows).unwrap();
        let Chunk { texts, rows } = reader.next().unwrap().unwrap();
        assert_eq!(texts[0], Ok("a".to_owned()));
        assert!(texts[1..].iter().all(|text| {
            text.as_ref()
                .is_err_and(|error| error.kind == ErrorKind::Row)
        }));
        let Rows::Lines(lines) = rows else {
            panic!("other rows")
        };
        assert_eq!(lines[1..], [&b"5"[..], b"\"x\"", b"[1]", b"null"]);
    }
}
