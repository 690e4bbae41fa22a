//! Distributed maps in Step Functions, for files that are too large for one function.
//!
//! One call reads a file once and writes an index: ranges of rows, with their bytes. The state machine passes each range
//! to a function, which reads these bytes and writes the rows' answers as a part. The last call runs the file's job with
//! the answers in the parts, so that the output is the one of a job without a state machine.

use std::{sync::Arc, time::Instant};

use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    parts::{Parts, Place, write_part},
    row_function::deadline,
    rules::Rules,
};
use crate::{
    input::{
        compression::Compression,
        format::Format,
        location::{JobInput, JobOutput},
        opened::{BytesRead, OpenInput},
    },
    job::{
        Ended, Job, is_permanent,
        predictor::Predictor,
        process::{CHUNKS_AT_ONCE, RowRange, catch_panic, open_range, open_rows},
        unfinished,
    },
    output::s3_storage::is_of,
    rows::{CHUNK_ROWS, Layout, Parquet, RowReader},
};
use kivu::{
    Error, Result,
    repository::s3::{Condition, Store, Url, fit_key},
    telemetry::trace::Trace,
};

#[cfg(test)]
pub use self::tests::compare_ranges;

/// A range with this many bytes has no further rows.
const MAX_RANGE_BYTES: u64 = 256 * 1024 * 1024;

/// Limits the index, whose length a damaged footer of Parquet could choose.
const MAX_RANGES: u64 = 1_000_000;

/// An event of the state machine.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "other fields")]
pub enum MapEvent {
    /// Requests a file's index.
    Index { index: IndexRequest },
    /// Requests the answers for a range of a file's rows.
    Range { range: RowRange, of: Index },
    /// Requests the output.
    Join { join: Join },
    /// Requests whole files' jobs.
    #[serde(rename_all = "PascalCase")]
    Listing {
        batch_input: Listing,
        items: Vec<Listed>,
    },
}

#[derive(Debug, Deserialize)]
pub struct IndexRequest {
    input: String,
    run: String,
    /// The rows in a range, at least.
    rows: u64,
}

/// How the ranges of a file are read. An execution keeps it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Index {
    input: String,
    run: String,
    /// Identifies the file's version, the model, the options and the settings, which all ranges share.
    job: String,
    layout: Layout,
    /// Bytes before the second row.
    second_row: u64,
    /// Number of ranges.
    ranges: u64,
    /// The object with the ranges.
    bucket: String,
    key: String,
}

#[derive(Debug, Deserialize)]
pub struct Join {
    of: Index,
    /// Object with the map run's results, which lists failed ranges.
    results: Option<Results>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Results {
    bucket: String,
    key: String,
}

#[derive(Debug, Deserialize)]
pub struct Listing {
    pub bucket: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Listed {
    pub key: String,
}

impl MapEvent {
    /// Parses an event; `None` if it is another program's.
    pub fn of(event: &Value) -> Result<Option<Self>> {
        const FIELDS: [&str; 4] = ["index", "range", "join", "Items"];
        if FIELDS.iter().all(|name| event.get(name).is_none()) {
            return Ok(None);
        }
        let wrong = |error| {
            Error::malformed(format!(
                "cannot read the event of the state machine: {error}"
            ))
        };
        Self::deserialize(event).map(Some).map_err(wrong)
    }
}

/// The stores and settings that all calls use.
pub struct Files<'a> {
    pub rules: &'a Rules,
    pub store: &'a Arc<dyn Store>,
    pub parquet: Parquet,
}

/// A file's job.
struct Plan {
    url: Url,
    output: Url,
    job: Job,
    predictor: Predictor,
    opened: OpenInput,
    format: Format,
    compression: Compression,
    layout: Layout,
    /// Job identity.
    id: String,
}

impl Plan {
    fn new(
        &Files {
            rules,
            store,
            parquet,
        }: &Files<'_>,
        url: &str,
    ) -> Result<Self> {
        let url = url.parse::<Url>()?;
        let object = store.head(&url)?;
        let object = object
            .ok_or_else(|| Error::invalid(format!("expected a file at `{url}`, but found none")))?;
        let (model, parameters) = rules.model(&url, &object)?;
        let predictor = Predictor::new(&model, &parameters)?;
        let layout = parameters.layout();
        let output = rules.output(&url)?;
        let input = JobInput::Object(Arc::clone(store), url.clone(), object);
        let opened = OpenInput::new(&input)?;
        let (format, compression) = opened.format(parameters.format, &layout)?;
        let target = JobOutput::Object(Arc::clone(store), output.clone());
        let job = Job {
            parquet,
            ..Job::new(input, target, model, parameters)
        };
        let id = job.id(opened.version(), format)?;
        Ok(Self {
            url,
            output,
            job,
            predictor,
            opened,
            format,
            compression,
            layout,
            id,
        })
    }

    /// The file of an index.
    ///
    /// # Errors
    /// The file, its model or the settings have changed since.
    fn of(files: &Files<'_>, index: &Index) -> Result<Self> {
        let plan = Self::new(files, &index.input)?;
        if plan.id == index.job {
            return Ok(plan);
        }
        Err(Error::invalid(format!(
            "the file `{}`, its model or the configuration was changed during the execution",
            plan.url
        ))
        .with_hint("start the state machine again"))
    }

    /// Prefix for a run's parts and ranges.
    fn parts(&self, run: &str) -> Url {
        self.output
            .with_key(fit_key(&format!("{}.parts-{run}/", self.output.key)))
    }

    /// The object with a run's ranges. Those of another version of the file are other ranges, which no call continues.
    fn ranges(&self, run: &str) -> Url {
        let prefix = self.parts(run);
        prefix.with_key(format!("{}ranges-{}.jsonl", prefix.key, &self.id[..16]))
    }
}

/// A file that is read in ranges.
struct RangedFile<'a> {
    opened: &'a OpenInput,
    format: Format,
    /// The whole file's.
    layout: Layout,
    /// Bytes before the second row.
    second_row: u64,
    parquet: Parquet,
}

impl<'a> RangedFile<'a> {
    fn new(
        opened: &'a OpenInput,
        format: Format,
        layout: &Layout,
        parquet: Parquet,
    ) -> Result<Self> {
        let (form, gauge) = ((format, Compression::None), BytesRead::default());
        let mut reader = catch_panic(|| open_rows(opened, form, layout, &gauge, parquet))?;
        let layout = reader.layout();
        if format != Format::Parquet {
            reader.skip(1)?;
        }
        Ok(Self {
            opened,
            format,
            layout,
            second_row: reader.position(),
            parquet,
        })
    }

    fn open(&self, range: RowRange) -> Result<Box<dyn RowReader>> {
        catch_panic(|| {
            open_range(
                self.opened,
                self.format,
                &self.layout,
                self.second_row,
                range,
                self.parquet,
            )
        })
    }

    /// Appends the ranges that follow; returns whether these are all.
    fn find(&self, found: &mut Vec<RowRange>, rows: u64, until: Option<Instant>) -> Result<bool> {
        if self.format == Format::Parquet {
            let format = self.parquet.format()?;
            let reader = format.reader(self.opened.clone(), &self.layout, None)?;
            *found = ranges_of_rows(reader.rows().unwrap_or_default(), rows)?;
            return Ok(true);
        }
        let last = found.last();
        let mut next = RowRange {
            first: last.map_or(0, |last| last.first + last.rows),
            rows: 0,
            start: last.map_or(0, |last| last.end),
            end: 0,
        };
        let rest = RowRange {
            end: self.opened.size().unwrap_or_default(),
            ..next
        };
        let mut reader = self.open(rest)?;
        // The reader's position is the file's, except after a row that precedes the range.
        let before = if rest.first == 0 {
            0
        } else {
            reader.position()
        };
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            let Some(chunk) = catch_panic(|| reader.next())? else {
                found.extend((next.rows > 0).then_some(next));
                return Ok(true);
            };
            next.rows += chunk.texts.len() as u64;
            next.end = rest.start + reader.position() - before;
            if next.rows >= rows || next.end - next.start >= MAX_RANGE_BYTES {
                found.push(next);
                check_count(found.len() as u64)?;
                next = RowRange {
                    first: next.first + next.rows,
                    rows: 0,
                    start: next.end,
                    end: next.end,
                };
            }
        }
    }
}

/// Makes a file's index, until the time `until`; another call continues it.
///
/// The index has no ranges if one function does the whole job: for a compressed file, whose rows cannot be found by
/// their bytes, for few rows, for a sink, for requests, for a file that is done, for more than
/// [`MAX_RANGES`], and for an unusable file, whose job reports the reason.
pub async fn index(
    files: &Files<'_>,
    request: IndexRequest,
    until: Option<Instant>,
) -> Result<Value> {
    let Files { rules, store, .. } = files;
    let whole = json!({ "ranges": 0 });
    let url = request.input.parse::<Url>()?;
    if store.head(&url)?.is_none() {
        return Err(Error::invalid(format!(
            "expected a file at `{url}`, but found none"
        )));
    }
    if rules.sink(&url)?.is_some() || rules.is_hidden(&url) {
        return Ok(whole);
    }
    match ranges(files, request, until) {
        Ok(index) if index.ranges > 1 => Ok(json!(index)),
        Err(error) if !is_permanent(&error) => Err(error),
        Ok(_) | Err(_) => Ok(whole),
    }
}

fn ranges(files: &Files<'_>, request: IndexRequest, until: Option<Instant>) -> Result<Index> {
    let store = files.store;
    let plan = Plan::new(files, &request.input)?;
    let url = plan.ranges(&request.run);
    let mut index = Index {
        job: plan.id.clone(),
        layout: plan.layout.clone(),
        second_row: 0,
        ranges: 0,
        bucket: url.bucket.clone(),
        key: url.key.clone(),
        input: request.input,
        run: request.run,
    };
    let output = store.head(&plan.output)?;
    let is_done = output.is_some_and(|output| is_of(&output, &plan.id));
    if is_done || plan.compression != Compression::None || plan.format == Format::OpenAi {
        return Ok(index);
    }
    let file = RangedFile::new(&plan.opened, plan.format, &plan.layout, files.parquet)?;
    // An earlier call may have ended in time.
    let mut found = match store.read(&url)? {
        Some((bytes, _)) => parsed(&bytes, &url)?,
        None => Vec::new(),
    };
    let is_complete = file.find(&mut found, request.rows, until)?;
    if !is_complete || found.len() > 1 {
        store.put(&url, written(&found).into(), &Condition::None)?;
    }
    if !is_complete {
        return Err(unfinished(&plan.url));
    }
    index.ranges = found.len() as u64;
    (index.layout, index.second_row) = (file.layout, file.second_row);
    Ok(index)
}

/// Ranges of whole chunks.
fn ranges_of_rows(count: u64, rows: u64) -> Result<Vec<RowRange>> {
    let step = rows.clamp(1, u32::MAX.into());
    let step = step.next_multiple_of(CHUNK_ROWS as u64);
    check_count(count.div_ceil(step))?;
    let range = |first| RowRange {
        first,
        rows: step.min(count - first),
        start: 0,
        end: 0,
    };
    Ok((0..count).step_by(step as usize).map(range).collect())
}

fn check_count(ranges: u64) -> Result<()> {
    if ranges > MAX_RANGES {
        return Err(Error::invalid(format!(
            "expected at most {MAX_RANGES} ranges, but found more"
        ))
        .with_hint("set more `rows`"));
    }
    Ok(())
}

/// Ranges as JSON Lines, which the state machine reads.
fn written(ranges: &[RowRange]) -> Vec<u8> {
    let lines = ranges.iter().map(|range| format!("{}\n", json!(range)));
    lines.collect::<String>().into_bytes()
}

fn parsed(bytes: &[u8], url: &Url) -> Result<Vec<RowRange>> {
    let ranges = serde_json::Deserializer::from_slice(bytes).into_iter();
    ranges
        .collect::<Result<_, _>>()
        .map_err(|error| Error::inference_because(format!("`{url}` cannot be read"), error))
}

/// Answers a range's rows and writes its part.
///
/// # Errors
/// The answers are not complete at the time `until`.
pub async fn process_range(
    files: &Files<'_>,
    index: &Index,
    range: RowRange,
    until: Option<Instant>,
) -> Result<Value> {
    let plan = Plan::of(files, index)?;
    let file = RangedFile {
        opened: &plan.opened,
        format: plan.format,
        layout: index.layout.clone(),
        second_row: index.second_row,
        parquet: files.parquet,
    };
    let mut reader = file.open(range)?;
    let chunks = std::iter::from_fn(|| catch_panic(|| reader.next()).transpose());
    let (predictor, deadline) = (&plan.predictor, deadline(until));
    let predict = |chunk: Result<crate::rows::Chunk>| async move {
        predictor.predict_by(chunk?.texts, deadline).await
    };
    let answers: Vec<_> = stream::iter(chunks)
        .map(predict)
        .buffered(CHUNKS_AT_ONCE)
        .try_collect()
        .await?;
    let rows: usize = answers.iter().map(|answers| answers.results.len()).sum();
    if rows as u64 != range.rows {
        return Err(Error::invalid(format!(
            "expected {} rows after row {}, but found {rows}",
            range.rows, range.first
        ))
        .with_hint("start the state machine again"));
    }
    let results = || answers.iter().flat_map(|answers| &answers.results);
    let errors = results().filter(|result| result.is_err()).count();
    write_part(
        files.store,
        &plan.parts(&index.run),
        range.first,
        &plan.id,
        answers,
    )?;
    Ok(json!({ "first": range.first, "rows": rows, "errors": errors }))
}

/// Runs the file's job with a run's parts, until the time `until`; another call continues it.
pub async fn join(
    files: &Files<'_>,
    Join { of: index, results }: &Join,
    until: Option<Instant>,
    trace: Option<Trace>,
) -> Result<(Url, Ended)> {
    let store = files.store;
    let plan = Plan::of(files, index)?;
    let prefix = plan.parts(&index.run);
    let mut places = written_parts(store, &prefix)?;
    places.extend(failed(store, results.as_ref())?);
    let parts = Parts::new(store, &plan.id, plan.predictor.columns(), places);
    let job = Job {
        until,
        trace,
        ..plan.job
    };
    let ended = job.join(parts).await?;
    if matches!(ended, Ended::Unfinished(_)) {
        return Err(unfinished(&plan.url));
    }
    for key in store.list(&prefix)? {
        store.delete(&prefix.with_key(key))?;
    }
    Ok((plan.output, ended))
}

/// The parts that were written.
fn written_parts(store: &Arc<dyn Store>, prefix: &Url) -> Result<Vec<(u64, Place)>> {
    let part = |key: String| {
        let first = key.rsplit('/').next()?.parse().ok()?;
        Some((first, Place::Written(prefix.with_key(key))))
    };
    Ok(store.list(prefix)?.into_iter().filter_map(part).collect())
}

/// The ranges that failed permanently, according to the map run's results.
fn failed(store: &Arc<dyn Store>, results: Option<&Results>) -> Result<Vec<(u64, Place)>> {
    let Some(results) = results else {
        return Ok(Vec::new());
    };
    let wrong =
        |error| Error::malformed(format!("cannot read the state machine's results: {error}"));
    let read = |key: &str| {
        let url = Url {
            bucket: results.bucket.clone(),
            key: key.to_owned(),
        };
        let found = store
            .read(&url)?
            .ok_or_else(|| Error::invalid(format!("`{url}` does not exist")))?;
        serde_json::from_slice::<Value>(&found.0).map_err(wrong)
    };
    let manifest = read(&results.key)?;
    let files = manifest["ResultFiles"]["FAILED"].as_array();
    let mut failed = Vec::new();
    for file in files
        .into_iter()
        .flatten()
        .filter_map(|file| file["Key"].as_str())
    {
        for execution in read(file)?.as_array().into_iter().flatten() {
            let text = |name: &str| execution[name].as_str().unwrap_or_default();
            let input: Value = serde_json::from_str(text("Input")).map_err(wrong)?;
            if let Some(MapEvent::Range { range, .. }) = MapEvent::of(&input)? {
                failed.push((range.first, Place::Failed(text("Error").to_owned())));
            }
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::output::answer::RowError;

    fn texts(mut reader: Box<dyn RowReader>) -> Vec<Result<String, RowError>> {
        let mut texts = Vec::new();
        while let Some(chunk) = reader.next().unwrap() {
            texts.extend(chunk.texts);
        }
        texts
    }

    /// Reads a file as a whole and in ranges of a chunk each, and returns the number of ranges.
    pub fn compare_ranges(format: Format, file: &[u8], layout: &Layout) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, file).unwrap();
        let opened = OpenInput::file(&path).unwrap();
        let gauge = BytesRead::default();
        let (form, parquet) = ((format, Compression::None), Parquet::default());
        let whole = open_rows(&opened, form, layout, &gauge, parquet).unwrap();
        let expected = texts(whole);
        let file = RangedFile::new(&opened, format, layout, parquet).unwrap();
        let mut found = Vec::new();
        assert!(file.find(&mut found, 1, None).unwrap());
        // As if each call ended in time after a range.
        for length in 0..found.len() {
            let mut continued = found[..length].to_vec();
            assert!(file.find(&mut continued, 1, None).unwrap());
            assert_eq!(continued, found);
        }
        let read = found.iter().flat_map(|range| {
            let texts = texts(file.open(*range).unwrap());
            assert_eq!(texts.len() as u64, range.rows);
            texts
        });
        assert_eq!(read.collect::<Vec<_>>(), expected);
        found.len()
    }

    #[test]
    fn ranges_have_the_rows_of_the_whole_file() {
        let line = |number: u64| match number % 6 {
            0 => format!("{{\"opinion\": \"text {number}\"}}\r\n"),
            1 => format!("{number}\n"),
            2 => "\n\r\n".to_owned(),
            3 => format!("no JSON {number}\n"),
            4 => format!("\u{feff}{{\"opinion\": \"{number}\"}}\n"),
            _ => format!("{{\"text\": {number}}}\n"),
        };
        let lines: String = (0..500).map(line).collect();
        for text in [
            lines.clone(),
            format!("\u{feff}\n{lines}"),
            lines.trim_end().to_owned(),
        ] {
            assert_eq!(
                compare_ranges(Format::JsonLines, text.as_bytes(), &Layout::default()),
                7
            );
        }
        assert_eq!(
            compare_ranges(Format::Csv, b"text\n", &Layout::default()),
            0
        );
        let text: String = (0..300)
            .map(|number| ["\r\n", "\n", "\n\n"][number % 3])
            .enumerate()
            .map(|(number, end)| format!("text {number} {end}"))
            .collect();
        let text = format!("\u{feff}{text}last");
        assert_eq!(
            compare_ranges(Format::Text, text.as_bytes(), &Layout::default()),
            7
        );
    }

    #[test]
    fn ranges_of_rows_are_whole_chunks() {
        let of = |count, rows| {
            let ranges = ranges_of_rows(count, rows).unwrap();
            ranges.iter().map(|range| range.rows).collect::<Vec<_>>()
        };
        assert_eq!(of(150, 0), [64, 64, 22]);
        assert_eq!(of(2500, 1000), [1024, 1024, 452]);
        assert_eq!(of(9, u64::MAX), [9]);
        assert!(of(0, 1).is_empty());
        // A footer may state any number.
        assert!(ranges_of_rows(u64::MAX, 1000).is_err());
    }

    #[test]
    fn events_are_read_by_their_fields() {
        let of = json!({
            "input": "s3://b/in/a.csv", "run": "1", "job": "2", "layout": { "column": "text" }, "second_row": 9,
            "ranges": 2, "bucket": "b", "key": "k",
        });
        let range = json!({ "first": 64, "rows": 64, "start": 9, "end": 99 });
        let parsed = |event: Value| MapEvent::of(&event).unwrap();
        let index = json!({ "index": { "input": "s3://b/in/a.csv", "run": "1", "rows": 9 } });
        assert!(matches!(parsed(index), Some(MapEvent::Index { .. })));
        let event = json!({ "range": range, "of": of });
        assert!(matches!(parsed(event), Some(MapEvent::Range { .. })));
        let event = json!({ "join": { "of": of, "results": { "Bucket": "b", "Key": "k" } } });
        assert!(matches!(parsed(event), Some(MapEvent::Join { .. })));
        let event = json!({ "BatchInput": { "bucket": "b" }, "Items": [{ "Key": "in/a" }] });
        assert!(matches!(parsed(event), Some(MapEvent::Listing { .. })));
        assert!(parsed(json!({ "input": "s3://b/in/a.csv" })).is_none());
        let refused = MapEvent::of(&json!({ "range": range })).unwrap_err();
        insta::assert_snapshot!(refused, @"cannot read the event of the state machine: other fields");
    }
}
