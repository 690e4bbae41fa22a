//! Readers and writers of rows, one file per format.

mod chunk;
mod column;
mod csv;
mod json_lines;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
mod parquet;

#[cfg(test)]
pub(super) use self::{chunk::CHUNK_ROWS, parquet::samples};
pub(super) use self::{
    chunk::{Chunk, CsvHeader, Footers, Head, PARQUET_MAGIC, RowReader, RowWriter, Rows, reading},
    csv::{CsvReader, CsvWriter},
    json_lines::{JsonLinesReader, JsonLinesWriter},
    parquet::{ParquetReader, ParquetWriter, join_footers},
};
