//! Row readers and writers, one file per format.

mod chunk;
mod column;
mod csv;
mod fields;
mod json_fields;
mod json_lines;
mod lines;
mod parquet;
mod request_lines;
#[cfg(test)]
pub mod tests;

pub use self::csv::dialect::{CsvOptions, Mark};
pub use self::parquet::{
    reader::ParquetReader,
    writer::{ParquetWriter, join_footers},
};
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
