//! Types and limits shared by readers and writers.

use std::{collections::BTreeSet, io};

use serde::{Deserialize, Serialize};

use crate::{
    batch::answer::{RowError, RowResult},
    error::{Error, Result},
};

/// The magic bytes at the beginning and the end of a Parquet file.
pub(in crate::batch) const PARQUET_MAGIC: &[u8] = b"PAR1";
/// The rows of a chunk. Larger chunks delay the first rows of the next one.
pub(in crate::batch) const CHUNK_ROWS: usize = 64;
/// A chunk of this size has fewer rows.
pub(super) const CHUNK_BYTES: usize = 4 * 1024 * 1024;
pub(super) const MAX_ROW_BYTES: usize = 64 * 1024 * 1024;

/// Rows that are processed together.
pub(in crate::batch) struct Chunk {
    /// The text of each row.
    pub(in crate::batch) texts: Vec<Result<String, RowError>>,
    pub(in crate::batch) rows: Rows,
}

/// The header of a CSV file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::batch) struct CsvHeader {
    pub(in crate::batch) delimiter: u8,
    pub(in crate::batch) names: Vec<String>,
}

/// How the rows of a file are read. Determined by the beginning of the file, and kept in the checkpoint, so that all
/// processes of a job read them the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::batch) struct Layout {
    /// The column of texts; `None` if it is to be found.
    pub(in crate::batch) column: Option<String>,
    /// The delimiter of CSV; `None` for other formats, or if it is to be found.
    pub(in crate::batch) delimiter: Option<char>,
}

impl Layout {
    /// A layout of which at most the column of texts is known.
    pub(in crate::batch) fn of_column(column: Option<&str>) -> Self {
        Self { column: column.map(str::to_owned), delimiter: None }
    }
}

/// The footer of a piece of Parquet, in base64.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::batch) struct Footer(pub(super) String);

/// The footers of the pieces of a Parquet file, each with the size of its piece in bytes.
pub(in crate::batch) type Footers = Vec<(u64, Footer)>;

/// The contents of rows, for the output.
pub(in crate::batch) enum Rows {
    Lines(Vec<Vec<u8>>),
    Records(Vec<::csv::ByteRecord>),
    #[cfg(feature = "parquet")]
    Columns(arrow_array::RecordBatch),
}

/// The properties that all rows of a file share.
#[derive(Clone)]
pub(in crate::batch) enum Head {
    JsonLines,
    Csv(CsvHeader),
    #[cfg(feature = "parquet")]
    Parquet(arrow_schema::SchemaRef),
}

/// Reads the rows of an input.
pub(in crate::batch) trait RowReader: Send {
    fn head(&self) -> Head;

    /// The column of texts.
    fn column(&self) -> &str;

    /// How the rows are read.
    fn layout(&self) -> Layout {
        let delimiter = match self.head() {
            Head::Csv(header) => Some(char::from(header.delimiter)),
            _ => None,
        };
        Layout { column: Some(self.column().to_owned()), delimiter }
    }

    /// Decisions about the file that may be wrong, for the report.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// The next rows; `None` at the end.
    fn next(&mut self) -> Result<Option<Chunk>>;

    /// Skips rows that are done.
    fn skip(&mut self, rows: u64) -> Result<()>;

    /// The bytes of the rows so far, unpacked.
    fn position(&self) -> u64;

    /// The share of the rows that were read, from 0 to 1, if the file states their number.
    fn share(&self) -> Option<f64> {
        None
    }
}

/// Writes rows with their answers, in the format of the input.
pub(in crate::batch) trait RowWriter: Send {
    fn write(&mut self, rows: Rows, results: &[RowResult]) -> Result<()>;

    /// The names of the columns that were added.
    fn columns(&self) -> &BTreeSet<String>;

    /// The size of the output so far, in bytes.
    fn size(&self) -> usize;

    fn finish(self: Box<Self>) -> Result<WrittenPiece>;
}

/// The bytes of a piece, and the footer of a piece of Parquet.
pub(in crate::batch) type WrittenPiece = (Vec<u8>, Option<Footer>);

/// The error of rows in another format than that of their writer.
pub(super) fn mismatched<T>() -> Result<T> {
    Err(Error::invalid("expected rows in the format of their file, but found another"))
}

/// The error of an unreadable input: an error of S3 or the operating system, or damaged contents.
pub(in crate::batch) fn reading(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::invalid(format!("expected an input that can be read, but found: {error}")),
    }
}
