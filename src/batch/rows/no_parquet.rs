//! What stands in for Parquet in a build without the feature `parquet`: no reader can be made, and so nothing else.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Chunk, Outcome, Position};
use crate::{
    batch::{answer::Kind, input::Place},
    error::{Error, Result},
};

pub(in crate::batch) type FileSchema = Arc<Infallible>;
pub(in crate::batch) type Columns = Infallible;

/// No rows.
pub(in crate::batch) struct ParquetReader(Infallible);

impl ParquetReader {
    /// The error that says what this build lacks.
    pub(in crate::batch) fn new(_: Place, _: Option<&str>) -> Result<Self> {
        Err(Error::config("this build has no support for Parquet; compile with `--features parquet`"))
    }

    pub(in crate::batch) fn schema(&self) -> &FileSchema {
        match self.0 {}
    }

    pub(in crate::batch) fn column(&self) -> String {
        match self.0 {}
    }

    pub(super) fn position(&self) -> Position {
        match self.0 {}
    }

    pub(super) fn skip(&mut self, _: u64) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>> {
        match self.0 {}
    }
}

/// No output.
pub(in crate::batch) struct ParquetWriter(Infallible);

impl ParquetWriter {
    pub(in crate::batch) fn new(rows: &FileSchema, _: Kind) -> Result<Self> {
        match **rows {}
    }

    pub(super) fn columns(&self) -> &BTreeSet<String> {
        match self.0 {}
    }

    pub(super) fn len(&self) -> usize {
        match self.0 {}
    }

    pub(super) fn write(&mut self, _: &Columns, _: &[Outcome]) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn finish(self) -> Result<(Vec<u8>, Footer)> {
        match self.0 {}
    }
}

/// The footer of no piece.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::batch) enum Footer {}

pub(in crate::batch) fn join_footers(pieces: &[(u64, Footer)]) -> Result<Vec<u8>> {
    match pieces {
        [] => Ok(Vec::new()),
        [(_, footer), ..] => match *footer {},
    }
}
