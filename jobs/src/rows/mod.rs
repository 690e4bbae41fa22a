//! Row readers and writers, one file per format.

mod chunk;
mod column;
mod csv;
mod fields;
mod ids;
mod json_fields;
mod json_lines;
mod lines;
mod numbers;
mod parquet;
mod replace;
mod request_lines;
mod text_lines;

pub use self::csv::dialect::{CsvOptions, Mark};
pub use self::{
    chunk::{
        CHUNK_ROWS, Chunk, Footer, Footers, Head, JsonTypes, Layout, PARQUET_MAGIC, ParquetColumns,
        ParquetRows, Piece, RowReader, RowWriter, Rows, WrittenPiece, mismatched, reading,
    },
    column::{Content, find_column, free_name, has_known_column, is_known, places},
    csv::{CsvReader, CsvWriter},
    fields::{Fields, failed},
    ids::Ids,
    json_lines::{JsonLinesReader, JsonLinesWriter, write_line},
    lines::BYTE_ORDER_MARK,
    numbers::normal_number,
    parquet::{Parquet, ParquetFormat},
    replace::ReplacedColumns,
    request_lines::{RequestReader, RequestWriter, is_request},
    text_lines::{TEXT_COLUMN, TextReader},
};
