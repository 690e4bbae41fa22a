//! Parquet, which a program has if it links the crate `kivu-parquet`.

use std::{fmt, ops::Range};

use super::chunk::{Layout, RowReader};
use crate::input::opened::OpenInput;
use kivu::{Result, cloud::unsupported};

/// Reads Parquet files. Their columns write them: see [`ParquetColumns`](super::chunk::ParquetColumns).
pub trait ParquetFormat: fmt::Debug + Sync {
    /// Column names in a file.
    fn names(&self, input: OpenInput) -> Result<Vec<String>>;

    /// Reads all rows, or those in a range. The layout's column has the texts, or the best one if it names none.
    fn reader(
        &self,
        input: OpenInput,
        layout: &Layout,
        range: Option<Range<u64>>,
    ) -> Result<Box<dyn RowReader>>;

    /// Reads all rows for their columns, of any type; the first column is taken for the texts.
    fn column_reader(&self, input: OpenInput) -> Result<Box<dyn RowReader>>;
}

/// A program's support for Parquet; by default none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parquet(Option<&'static dyn ParquetFormat>);

impl Parquet {
    /// Parquet as `format` reads it.
    pub fn new(format: &'static dyn ParquetFormat) -> Self {
        Self(Some(format))
    }

    /// What reads Parquet.
    ///
    /// # Errors
    /// The program was compiled without Parquet.
    pub fn format(self) -> Result<&'static dyn ParquetFormat> {
        self.0.ok_or_else(|| unsupported("Parquet"))
    }
}
