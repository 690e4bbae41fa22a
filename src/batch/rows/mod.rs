//! Readers and writers of rows, one file per format.

mod chunk;
mod column;
mod csv;
mod json_lines;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(test)]
pub(super) mod tests;

#[cfg(test)]
pub(super) use self::chunk::CHUNK_ROWS;
#[cfg(feature = "parquet")]
pub(super) use self::parquet::{ParquetReader, ParquetWriter, join_footers};
pub(super) use self::{
    chunk::{Chunk, CsvHeader, Footers, Head, PARQUET_MAGIC, RowReader, RowWriter, Rows, reading},
    csv::{CsvReader, CsvWriter},
    json_lines::{JsonLinesReader, JsonLinesWriter},
};
