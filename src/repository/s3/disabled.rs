//! What stands in for the store in a build without the feature `s3`: it cannot be opened.

#![expect(missing_docs, reason = "documented where the feature is enabled")]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{self, Read},
    ops::Range,
    time::Duration,
};

use bytes::Bytes;

use super::{Condition, Multipart, Object, Part, Url};
use crate::error::{Error, Result};

/// Nothing is tried in this build.
pub fn set_patience(_: Duration) {}

/// No store.
#[derive(Clone, Debug)]
pub struct Store(Infallible);

impl Store {
    /// The error that says what this build lacks.
    pub fn open() -> Result<Self> {
        Err(Error::config("this build has no support for S3; compile with `--features s3`"))
    }

    pub fn head(&self, _: &Url, _: Option<&str>) -> Result<Option<Object>> {
        match self.0 {}
    }

    pub fn read(&self, _: &Url) -> Result<Option<(Bytes, Object)>> {
        match self.0 {}
    }

    pub fn list(&self, _: &Url) -> Result<Vec<String>> {
        match self.0 {}
    }

    pub fn pieces(&self, _: &Url, _: &Object, _: Range<u64>) -> Pieces {
        match self.0 {}
    }

    pub fn put(
        &self,
        _: &Url,
        _: impl Into<Bytes>,
        _: &Condition,
        _: &BTreeMap<String, String>,
    ) -> Result<Option<String>> {
        match self.0 {}
    }

    pub fn delete(&self, _: &Url) -> Result<()> {
        match self.0 {}
    }

    pub fn begin(&self, _: &Url, _: &BTreeMap<String, String>) -> Result<Multipart> {
        match self.0 {}
    }

    pub fn upload(&self, _: &Multipart, _: i32, _: impl Into<Bytes>) -> Result<Option<Part>> {
        match self.0 {}
    }

    pub fn complete(&self, _: &Multipart, _: &[Part], _: &Condition) -> Result<bool> {
        match self.0 {}
    }

    pub fn knows(&self, _: &Multipart) -> Result<bool> {
        match self.0 {}
    }

    pub fn abort(&self, _: &Multipart) -> Result<()> {
        match self.0 {}
    }
}

/// The parts of no object.
#[derive(Debug)]
pub struct Pieces(Infallible);

impl Pieces {
    pub fn into_reader(self) -> Reader {
        match self.0 {}
    }
}

impl Iterator for Pieces {
    type Item = Result<Vec<Bytes>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.0 {}
    }
}

/// The bytes of no object.
#[derive(Debug)]
pub struct Reader(Infallible);

impl Read for Reader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}
