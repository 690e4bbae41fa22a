//! The store in a build without the feature `s3`: every operation fails.

#![expect(missing_docs, reason = "documented where the feature is enabled")]

use std::{ops::Range, time::Duration};

use bytes::Bytes;

use super::{
    object::{Change, Condition, Multipart, Object, Part},
    pieces::Pieces,
    url::Url,
};
use kivu_base::error::{Error, Result};

#[derive(Clone, Debug)]
pub struct Store(());

fn unsupported<T>() -> Result<T> {
    Err(Error::config("this build has no support for S3").with_hint("compile with `--features s3`"))
}

impl Store {
    pub fn new(_: Duration) -> Self {
        Self(())
    }

    pub fn head(&self, _: &Url) -> Result<Option<Object>> {
        unsupported()
    }

    pub fn current(&self, _: &Url) -> Result<Option<Object>> {
        unsupported()
    }

    pub fn change(&self, _: &Url, _: &Object) -> Result<Option<Change>> {
        unsupported()
    }

    pub fn read(&self, _: &Url) -> Result<Option<(Bytes, Object)>> {
        unsupported()
    }

    pub fn list(&self, _: &Url) -> Result<Vec<String>> {
        unsupported()
    }

    pub fn list_tags(&self, _: &Url) -> Result<Vec<(String, String)>> {
        unsupported()
    }

    pub fn pieces(&self, _: &Url, _: &Object, _: Range<u64>) -> Result<Pieces> {
        unsupported()
    }

    pub fn put(&self, _: &Url, _: impl Into<Bytes>, _: &Condition) -> Result<Option<String>> {
        unsupported()
    }

    pub fn copy(&self, _: &Url, _: &Url) -> Result<bool> {
        unsupported()
    }

    pub fn delete(&self, _: &Url) -> Result<()> {
        unsupported()
    }

    pub fn begin(&self, _: &Url, _: &str, _: &str) -> Result<Multipart> {
        unsupported()
    }

    pub fn upload(&self, _: &Multipart, _: i32, _: impl Into<Bytes>) -> Result<Option<Part>> {
        unsupported()
    }

    pub fn complete(&self, _: &Multipart, _: &[Part], _: &Condition) -> Result<bool> {
        unsupported()
    }

    pub fn has_upload(&self, _: &Multipart) -> Result<bool> {
        unsupported()
    }

    pub fn abort(&self, _: &Multipart) -> Result<()> {
        unsupported()
    }
}
