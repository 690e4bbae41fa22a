//! Row readers and writers, one file per format.

mod chunk;
mod column;
mod csv;
mod csv_dialect;
mod csv_header;
mod csv_records;
mod csv_source;
mod fields;
#[cfg(test)]
mod generated_csv;
mod json_fields;
mod json_lines;
mod lines;
mod parquet_reader;
mod parquet_source;
mod parquet_text;
mod parquet_writer;
mod request_lines;
#[cfg(test)]
pub mod tests;

pub use self::csv_dialect::{CsvOptions, Mark};
pub use self::{
    chunk::{
        CHUNK_ROWS, Chunk, Footers, Head, Layout, PARQUET_MAGIC, RowReader, RowWriter, Rows,
        reading,
    },
    csv::{CsvReader, CsvWriter},
    fields::{Fields, failed},
    json_lines::{JsonLinesReader, JsonLinesWriter, write_line},
    lines::BYTE_ORDER_MARK,
    request_lines::{RequestReader, RequestWriter, is_request},
};
pub use self::{
    parquet_reader::ParquetReader,
    parquet_writer::{ParquetWriter, join_footers},
};
