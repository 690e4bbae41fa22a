//! Rows in Parquet files.

pub mod reader;
pub mod source;
pub mod text;
pub mod writer;
