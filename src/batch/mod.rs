//! Files of texts to files of answers: row for row, in the same form, with memory that does not grow.
//!
//! A thread reads and a thread writes; between them texts are answered, a few chunks at a time, in order. What was
//! written is in pieces that are complete by themselves, so that a job can stop after any of them and be continued by
//! another process: see [`checkpoint`].

mod answer;
mod checkpoint;
mod compression;
mod event;
mod function;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/readers/batch.rs"]
pub(crate) mod fuzzing;
mod input;
mod job;
mod large;
mod local;
mod output;
mod parameters;
mod report;
mod rows;
mod work;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

#[cfg(test)]
use self::input::Place;
use self::{
    answer::{Answer, Kind},
    checkpoint::FILE_PIECE,
    compression::Compression,
    local::Stream,
    output::{Head, Pieces, Shape},
    rows::{Chunk, JsonLinesReader, Outcome, Reader, Rows},
};
pub use self::{
    function::Function,
    input::Format,
    local::Existing,
    parameters::Parameters,
    report::{Progress, Report, Status},
};
use crate::{
    error::{Error, Result},
    model::Model,
    repository::s3::{Condition, Object, Store, Url, fit_key},
};

/// What is added to an output's name for its report.
const REPORT: &str = ".report.json";

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of this machine; a FIFO or a device is read as a stream.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// An object of S3, as it was found.
    Object(Url, Object),
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// A file of this machine; a FIFO or a device is written to as it is.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// An object of S3.
    Object(Url),
}

/// Watches a job.
pub trait Watcher: Send + Sync {
    /// A job begins, or continues after so many rows.
    fn begin(&self, input: &str, rows: u64);
    /// So many rows are done, those of earlier processes included, and this share of the input (0 to 1), where its size
    /// is known.
    fn advance(&self, rows: u64, share: Option<f64>);
}

/// Nobody watches.
impl Watcher for () {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64, _: Option<f64>) {}
}

/// A file, what is asked of it, and where the answers go.
#[derive(Clone)]
pub struct Job {
    /// The file.
    pub source: Source,
    /// Where the answers go.
    pub sink: Sink,
    /// What answers.
    pub model: Model,
    /// What is asked.
    pub parameters: Parameters,
    /// Watches the rows that are done.
    pub watcher: Arc<dyn Watcher>,
    /// When to stop and save, to continue another time.
    pub until: Option<Instant>,
    /// How often to save, if not even that much output came together.
    pub interval: Duration,
    /// What to do about files of an earlier run, if the output is a file of this machine.
    pub existing: Existing,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// Its report is written, and unless it failed, its output.
    Done(Box<Report>),
    /// The output was there already.
    Known,
    /// It was stopped; unless its input is a stream, it continues where it stopped when it is run again.
    Unfinished(Progress),
}

impl Sink {
    /// Whether answers go to standard output, by whichever of its names.
    pub fn is_stdout(&self) -> bool {
        match self {
            Self::Stdout => true,
            Self::File(path) => Stream::of(path) == Some(Stream::Stdout),
            Self::Object(_) => false,
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Stdin => f.write_str("standard input"),
            Self::Object(url, _) => url.fmt(f),
        }
    }
}

impl std::fmt::Display for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Stdout => f.write_str("standard output"),
            Self::Object(url) => url.fmt(f),
        }
    }
}

impl Sink {
    fn write_report(&self, report: &Report) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(report)
            .map_err(|error| Error::inference_because("the report cannot be written", error))?;
        text.push(b'\n');
        match self {
            Self::File(path) if Stream::of(path).is_some() => Ok(()),
            Self::Stdout => Ok(()),
            Self::File(path) => local::write_report(path, &text),
            Self::Object(url) => {
                let url = url.with_key(fit_key(&format!("{}{REPORT}", url.key)));
                Store::open()?.put(&url, text, &Condition::None, &Default::default()).map(|_| ())
            }
        }
    }
}

/// Reads JSON Lines and writes them with answers that cost nothing; gives the number of rows.
pub fn pass_through(lines: Vec<u8>) -> Result<usize> {
    let contents: Box<dyn std::io::Read + Send> = Box::new(std::io::Cursor::new(lines));
    let mut reader = Reader::JsonLines(JsonLinesReader::new(contents, None));
    let shape = Shape { compression: Compression::None, kind: Kind::Label, head: Head::JsonLines };
    let (mut pieces, mut rows, label) = (Pieces::new(shape), 0, Arc::from("label"));
    while let Some(Chunk { texts, rows: lines }) = reader.next()? {
        let answer = |text| Result::map(text, |_| Answer::Label { label: Arc::clone(&label), score: 0.5 });
        let outcomes: Vec<Outcome> = texts.into_iter().map(answer).collect();
        rows += outcomes.len();
        pieces.write(lines, &outcomes)?;
        if pieces.len() >= FILE_PIECE {
            pieces.take()?;
        }
    }
    Ok(rows)
}
