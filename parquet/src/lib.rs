//! Parquet files for Kivu's jobs.

mod batch;
mod columns;
mod reader;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod writer;

use std::ops::Range;

use kivu::Result;
use kivu_jobs::{
    input::opened::OpenInput,
    rows::{Layout, Parquet, ParquetFormat, RowReader},
};

use self::reader::ParquetReader;

/// Parquet, for a program's jobs.
pub fn parquet() -> Parquet {
    Parquet::new(&Files)
}

#[derive(Debug)]
struct Files;

impl ParquetFormat for Files {
    fn names(&self, input: OpenInput) -> Result<Vec<String>> {
        ParquetReader::names(input)
    }

    fn reader(
        &self,
        input: OpenInput,
        layout: &Layout,
        range: Option<Range<u64>>,
    ) -> Result<Box<dyn RowReader>> {
        Ok(Box::new(ParquetReader::new(input, layout, range)?))
    }

    fn column_reader(&self, input: OpenInput) -> Result<Box<dyn RowReader>> {
        Ok(Box::new(ParquetReader::of_columns(input)?))
    }
}
