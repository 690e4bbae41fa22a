//! Parquet in a build without the feature `parquet`: no reader can be created.

use std::{collections::BTreeSet, convert::Infallible};

use super::chunk::{Chunk, FileSchema, Footer, Head, RowReader, RowWriter, Rows, WrittenPiece};
use crate::{
    batch::{
        answer::{Kind, RowResult},
        input::OpenInput,
    },
    error::{Error, Result},
};

pub(in crate::batch) struct ParquetReader(Infallible);

fn unsupported<T>() -> Result<T> {
    Err(Error::config("this build has no support for Parquet; compile with `--features parquet`"))
}

impl ParquetReader {
    pub(in crate::batch) fn new(_: OpenInput, _: Option<&str>) -> Result<Self> {
        unsupported()
    }
}

impl RowReader for ParquetReader {
    fn head(&self) -> Head {
        Head::Parquet(self.0)
    }

    fn column(&self) -> Option<&str> {
        match self.0 {}
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        Ok(Some(Chunk { texts: Vec::new(), rows: Rows::Columns(self.0) }))
    }

    fn skip(&mut self, _: u64) -> Result<()> {
        match self.0 {}
    }

    fn position(&self) -> u64 {
        match self.0 {}
    }
}

pub(in crate::batch) struct ParquetWriter(Infallible);

impl ParquetWriter {
    pub(in crate::batch) fn new(rows: &FileSchema, _: Kind) -> Result<Self> {
        match *rows {}
    }
}

impl RowWriter for ParquetWriter {
    fn write(&mut self, _: Rows, _: &[RowResult]) -> Result<()> {
        match self.0 {}
    }

    fn columns(&self) -> &BTreeSet<String> {
        match self.0 {}
    }

    fn size(&self) -> usize {
        match self.0 {}
    }

    fn finish(self: Box<Self>) -> Result<WrittenPiece> {
        match self.0 {}
    }
}

pub(in crate::batch) fn join_footers(_: &[(u64, Footer)]) -> Result<Vec<u8>> {
    unsupported()
}
