//! Rows of a file: what is read of each, and how its answer is added to it. One file a format.

mod csv;
mod json_lines;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
mod parquet;

use std::{collections::BTreeSet, io::Read};

use serde::Serialize;

#[cfg(test)]
pub(super) use self::parquet::samples;
pub(super) use self::{
    csv::{CsvReader, CsvWriter, Header as CsvHeader},
    json_lines::{JsonLinesReader, JsonLinesWriter},
    parquet::{FileSchema, Footer, ParquetReader, ParquetWriter, join_footers},
};
use super::{answer::Answer, compression::Packer};
use crate::error::Result;

/// What a Parquet file begins and ends with.
pub(super) const MAGIC: &[u8] = b"PAR1";
/// Rows that are read together; more would only make the last of them wait.
pub(super) const CHUNK_ROWS: usize = 64;
/// Rows of more bytes together are handed on earlier.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;
/// The longest row that is taken.
const LONGEST_ROW: usize = 64 * 1024 * 1024;

/// The columns that are looked for where none is named, best first.
const TEXT_COLUMNS: [&str; 12] = [
    "text", "inputs", "input", "sentence", "content", "document", "body", "review", "comment", "message",
    "title", "question",
];

/// Rows on their way: the text of each, and all that its output needs besides the answer.
pub(super) struct Chunk {
    pub(super) texts: Vec<std::result::Result<String, RowError>>,
    pub(super) rows: Rows,
}

/// What is kept of rows until their answers are there.
pub(super) enum Rows {
    Lines(Vec<Vec<u8>>),
    Records(Vec<::csv::ByteRecord>),
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only Parquet has it"))]
    Columns(parquet::Columns),
}

/// Why a row has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowError {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

/// The kinds of errors that a report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ErrorKind {
    /// The row cannot be read.
    Row,
    /// It has no text.
    Text,
    /// The text is not one that the model takes.
    Input,
    /// The model failed.
    Model,
}

impl ErrorKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Text => "text",
            Self::Input => "input",
            Self::Model => "model",
        }
    }
}

impl RowError {
    fn row(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Row, message: message.into() }
    }

    fn text(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Text, message: message.into() }
    }
}

/// The footers of pieces of an output, each with the length of its piece; only Parquet has any.
pub(super) type Footers = Vec<(u64, Footer)>;

/// What came of a row.
pub(super) type Outcome = std::result::Result<Answer, RowError>;

/// How far a reader has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// In bytes of the unpacked input.
    Byte(u64),
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only Parquet has it"))]
    Row { done: u64, all: u64 },
}

/// The rows of a file.
pub(super) enum Reader {
    JsonLines(JsonLinesReader<Box<dyn Read + Send>>),
    Csv(CsvReader<Box<dyn Read + Send>>),
    Parquet(ParquetReader),
}

impl Reader {
    /// Passes over rows that were done before.
    pub(super) fn skip(&mut self, rows: u64) -> Result<()> {
        match self {
            Self::JsonLines(reader) => reader.skip(rows),
            Self::Csv(reader) => reader.skip(rows),
            Self::Parquet(reader) => reader.skip(rows),
        }
    }

    pub(super) fn position(&self) -> Position {
        match self {
            Self::JsonLines(reader) => Position::Byte(reader.position()),
            Self::Csv(reader) => Position::Byte(reader.position()),
            Self::Parquet(reader) => reader.position(),
        }
    }

    /// The next rows; nothing at the end.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>> {
        match self {
            Self::JsonLines(reader) => reader.next(),
            Self::Csv(reader) => reader.next(),
            Self::Parquet(reader) => reader.next(),
        }
    }
}

/// Rows with their answers, in the form of the file that they came from.
pub(super) enum Writer {
    JsonLines(JsonLinesWriter<Packer>),
    Csv(Box<CsvWriter<Packer>>),
    Parquet(ParquetWriter),
}

impl Writer {
    pub(super) fn write(&mut self, rows: Rows, outcomes: &[Outcome]) -> Result<()> {
        match (self, rows) {
            (Self::JsonLines(writer), Rows::Lines(lines)) => writer.write(&lines, outcomes),
            (Self::Csv(writer), Rows::Records(records)) => writer.write(records, outcomes),
            (Self::Parquet(writer), Rows::Columns(batch)) => writer.write(&batch, outcomes),
            _ => Err(crate::error::Error::invalid(
                "expected rows in the form of their file, but found another",
            )),
        }
    }

    /// The names of the columns of answers so far.
    pub(super) fn columns(&self) -> &BTreeSet<String> {
        match self {
            Self::JsonLines(writer) => writer.columns(),
            Self::Csv(writer) => writer.columns(),
            Self::Parquet(writer) => writer.columns(),
        }
    }

    /// The bytes that have come out so far.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::JsonLines(writer) => writer.get_ref().len(),
            Self::Csv(writer) => writer.get_ref().len(),
            Self::Parquet(writer) => writer.len(),
        }
    }

    /// What was written, with the footer that Parquet files have.
    pub(super) fn finish(self) -> Result<(Vec<u8>, Option<Footer>)> {
        let failed = || crate::error::Error::io("cannot write the output");
        match self {
            Self::JsonLines(writer) => Ok((writer.into_inner().finish().map_err(failed())?, None)),
            Self::Csv(writer) => Ok((writer.into_inner()?.finish().map_err(failed())?, None)),
            Self::Parquet(writer) => writer.finish().map(|(bytes, footer)| (bytes, Some(footer))),
        }
    }
}

/// The error of reading an input: what S3 said, or that the contents are damaged.
pub(super) fn reading(error: std::io::Error) -> crate::error::Error {
    use crate::error::Error;
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::invalid(format!("expected an input that can be read, but found: {error}")),
    }
}

/// The column of texts among `names`, of which `strings` could be it.
fn find_column(wanted: Option<&str>, names: &[String], strings: &[String]) -> Result<String> {
    use crate::error::{Error, quoted};
    let only = |name: &String| match names.iter().filter(|other| *other == name).count() {
        1 => Ok(name.clone()),
        found => {
            Err(Error::invalid(format!("expected one column of texts, but found `{name}` {found} times")))
        }
    };
    if let Some(wanted) = wanted {
        let found = names.iter().find(|name| *name == wanted).ok_or_else(|| {
            Error::invalid(format!("expected a column `{wanted}`, but found {}", quoted(names)))
        });
        return found.and_then(only);
    }
    let known = TEXT_COLUMNS
        .iter()
        .find_map(|known| strings.iter().find(|name| name.trim().eq_ignore_ascii_case(known)));
    match (known, strings) {
        (Some(name), _) => only(name),
        (None, [name]) => Ok(name.clone()),
        (None, []) => Err(Error::invalid(format!("expected a column of texts, but found {}", quoted(names)))),
        (None, _) => Err(Error::invalid(format!(
            "expected a column called `text` or another that is known, but found {}; say which one with `column`",
            quoted(strings)
        ))),
    }
}

/// Whether a column of that name is taken for texts without being asked for.
fn is_known(name: &str) -> bool {
    TEXT_COLUMNS.iter().any(|known| name.trim().eq_ignore_ascii_case(known))
}

/// A name for a column of answers that none of the file's own columns has: `label`, `kivu_label`, `kivu_label_2`, ….
fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("kivu_{name}_{number}"));
    let mut names = [name.to_owned(), format!("kivu_{name}")].into_iter().chain(numbered);
    // One of any number of names is free.
    names.find(|name| !is_taken(name)).unwrap_or_default()
}
