//! Replaces this module in a build without the feature `s3`.

#![expect(missing_docs, reason = "documented where the feature is enabled")]

use std::{convert::Infallible, time::Duration};

use super::Claim;
use kivu_base::error::{Error, Result};

/// Cannot be created.
#[derive(Debug)]
pub struct Secret(Infallible);

impl Secret {
    /// An error that names the missing feature.
    pub fn new(_: &str) -> Result<Self> {
        Err(
            Error::config("this build has no support for AWS Secrets Manager")
                .with_hint("compile with `--features s3`"),
        )
    }

    pub async fn read(&self, _: Duration) -> Result<String> {
        match self.0 {}
    }

    pub async fn read_versions(&self, _: Duration) -> Result<Vec<String>> {
        match self.0 {}
    }
}

/// Cannot be created.
#[derive(Debug)]
pub struct QuotaTable(Infallible);

impl QuotaTable {
    /// An error that names the missing feature.
    pub fn new(_: &str) -> Result<Self> {
        Err(
            Error::config("this build has no support for Amazon DynamoDB")
                .with_hint("compile with `--features s3`"),
        )
    }

    pub async fn add(&self, _: Claim<'_>) -> Result<bool> {
        match self.0 {}
    }
}

/// Cannot be created.
#[derive(Debug)]
pub struct EventBus(Infallible);

impl EventBus {
    /// An error that names the missing feature.
    pub fn new(_: &str) -> Result<Self> {
        Err(
            Error::config("this build has no support for Amazon EventBridge")
                .with_hint("compile with `--features s3`"),
        )
    }

    pub async fn send(&self, _: &str, _: &serde_json::Value) -> Result<()> {
        match self.0 {}
    }
}

/// Cannot be created.
#[derive(Debug)]
pub struct Queue(Infallible);

impl Queue {
    /// An error that names the missing feature.
    pub fn new(_: &str) -> Result<Self> {
        Err(Error::config("this build has no support for Amazon SQS")
            .with_hint("compile with `--features s3`"))
    }

    pub async fn send(&self, _: &str, _: &str, _: &str) -> Result<()> {
        match self.0 {}
    }
}
