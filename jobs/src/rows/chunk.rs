//! Types and limits shared by readers and writers.

use std::{any::Any, collections::BTreeSet, io, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::csv::dialect::{CsvOptions, Dialect};
use crate::output::answer::{Columns, RowError, RowResult};
use kivu::{Error, Result};

/// Magic bytes at a Parquet file's start and end.
pub const PARQUET_MAGIC: &[u8] = b"PAR1";
/// Rows per chunk. Larger chunks delay the next chunk's first rows.
pub const CHUNK_ROWS: usize = 64;
/// A chunk that reaches this size ends before [`CHUNK_ROWS`] rows.
pub const CHUNK_BYTES: usize = 4 * 1024 * 1024;
pub const MAX_ROW_BYTES: usize = 64 * 1024 * 1024;

/// Rows that are processed together.
pub struct Chunk {
    /// Text per row.
    pub texts: Vec<Result<String, RowError>>,
    pub rows: Rows,
}

/// An output piece's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    First,
    Later,
}

/// How a CSV file begins, and is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvHeader {
    pub dialect: Dialect,
    /// The output's delimiter.
    pub written: u8,
    pub has_header: bool,
    /// Column names; numbered without a header.
    pub names: Vec<String>,
    /// The bytes before the first row, without the header's line end.
    pub start: Vec<u8>,
    pub line_end: Vec<u8>,
}

/// How a file's rows are read. Determined by the first rows, and kept in the checkpoint, so that all processes in a job
/// read them the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Text column; `None` if it must be detected.
    pub column: Option<String>,
    /// Ignored by other formats.
    #[serde(flatten)]
    pub csv: CsvOptions,
}

impl Layout {
    /// A layout with at most a known text column.
    pub fn of_column(column: Option<&str>) -> Self {
        Self {
            column: column.map(str::to_owned),
            ..Self::default()
        }
    }
}

/// A CSV record, as it is in the file.
#[derive(Debug, Default)]
pub struct CsvRow {
    /// The record with its line end.
    pub bytes: Vec<u8>,
    /// Bytes without the line end.
    pub content: usize,
    pub fields: usize,
}

impl CsvRow {
    pub fn content(&self) -> &[u8] {
        &self.bytes[..self.content]
    }
}

/// Footer for a Parquet piece, in base64.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Footer(pub String);

/// Footers for a Parquet file's pieces, each with its piece's size in bytes.
pub type Footers = Vec<(u64, Footer)>;

/// Row contents, for the output.
pub enum Rows {
    Lines(Vec<Vec<u8>>),
    Records(Vec<CsvRow>),
    Columns(Box<dyn ParquetRows>),
}

/// Properties shared by a file's rows.
#[derive(Clone)]
pub enum Head {
    JsonLines,
    Csv(CsvHeader),
    /// JSON Lines, where each response replaces its request.
    Requests,
    Parquet(Arc<dyn ParquetColumns>),
}

/// Column types that have a JSON form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonTypes {
    /// Texts, numbers and booleans.
    Scalars,
    /// Also lists of numbers, as vectors are stored.
    Vectors,
}

/// A Parquet file's columns.
pub trait ParquetColumns: Send + Sync {
    /// Column names.
    fn names(&self) -> Vec<&str>;

    /// Refuses the column at `place` if its type is not among `types`.
    fn check(&self, place: usize, types: JsonTypes) -> Result<()>;

    /// A writer for an output piece with these columns and the answer columns `added`.
    fn writer(&self, added: Columns) -> Result<Box<dyn RowWriter>>;

    /// A writer for a piece with these columns only, some of which get other texts.
    ///
    /// # Errors
    /// A column in `replaced` has no texts.
    fn copier(&self, replaced: &[usize]) -> Result<Box<dyn RowWriter>>;

    /// Joins the pieces' footers into the file's footer.
    fn join_footers(&self, pieces: &[(u64, Footer)]) -> Result<Vec<u8>>;
}

/// Rows in a Parquet file.
pub trait ParquetRows: Any + Send {
    /// A value in a column that [`ParquetColumns::check`] accepts; `None` for an infinity.
    fn value(&self, place: usize, row: usize) -> Option<Value>;

    /// One of the rows.
    fn row(&self, row: usize) -> Box<dyn ParquetRows>;

    /// The rows with other texts in a column, in the types of [`ParquetColumns::copier`].
    fn with_texts(&self, place: usize, texts: Vec<Option<String>>) -> Result<Box<dyn ParquetRows>>;
}

/// Reads input rows.
pub trait RowReader: Send {
    fn head(&self) -> Head;

    /// Text column.
    fn column(&self) -> &str;

    /// How the rows are read.
    fn layout(&self) -> Layout {
        let csv = match self.head() {
            Head::Csv(header) => header.options(),
            _ => CsvOptions::default(),
        };
        Layout {
            column: Some(self.column().to_owned()),
            csv,
        }
    }

    /// Decisions about the file that may be wrong, for the report.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// The next rows; `None` at the end.
    fn next(&mut self) -> Result<Option<Chunk>>;

    /// Skips rows that are done.
    fn skip(&mut self, rows: u64) -> Result<()>;

    /// Bytes in the rows so far, unpacked.
    fn position(&self) -> u64;

    /// Number of rows up to the last one that is read, if the file states it.
    fn rows(&self) -> Option<u64> {
        None
    }

    /// Share of rows that were read, from 0 to 1, if the file states their number.
    fn share(&self) -> Option<f64> {
        None
    }
}

/// Writes rows with their answers, in the input format.
pub trait RowWriter: Send {
    /// Answers that the output cannot state become errors in `results`.
    fn write(&mut self, rows: Rows, results: &mut [RowResult]) -> Result<()>;

    /// Names of added columns.
    fn columns(&self) -> &BTreeSet<String>;

    /// Output size so far, in bytes.
    fn size(&self) -> usize;

    fn finish(self: Box<Self>) -> Result<WrittenPiece>;
}

/// A piece's bytes, and its footer for Parquet.
pub type WrittenPiece = (Vec<u8>, Option<Footer>);

/// Error for rows whose format differs from the writer's.
pub fn mismatched<T>() -> Result<T> {
    Err(Error::invalid("the rows do not have their file's format"))
}

/// Error for an unreadable input: from S3 or the operating system, or for damaged contents.
pub fn reading(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::invalid(format!("cannot read the input: {error}")),
    }
}
