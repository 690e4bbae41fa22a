//! Services outside of the process: object storage, secrets, request counts, queues and events. The crate `kivu-aws` has those of
//! AWS.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use crate::repository::s3::Store;
use kivu_base::{Error, Result};

/// The services that a program has; by default none. A program contains the clients that it names here, and no others.
///
/// Clients connect on first use.
#[derive(Clone, Debug, Default)]
pub struct Cloud {
    /// Object storage.
    pub store: Option<Arc<dyn Store>>,
    /// Secrets, by name or id.
    pub secret: Option<Client<dyn Secret>>,
    /// Tables of request counts, by name.
    pub quota_table: Option<Client<dyn QuotaTable>>,
    /// Event buses, by name or id.
    pub event_bus: Option<Client<dyn EventBus>>,
    /// Queues, by URL.
    pub queue: Option<Client<dyn Queue>>,
}

/// Makes the client for what has this name; fails if the name cannot be one.
pub type Client<T> = fn(&str) -> Result<Box<T>>;

/// A text that only some may read, and that is replaced from time to time.
#[async_trait]
pub trait Secret: fmt::Debug + Send + Sync {
    /// Current value.
    async fn read(&self, time_limit: Duration) -> Result<String>;

    /// Current value, and the one before the last rotation, if there is one.
    async fn read_versions(&self, time_limit: Duration) -> Result<Vec<String>>;
}

/// Counts requests per key and day.
#[async_trait]
pub trait QuotaTable: fmt::Debug + Send + Sync {
    /// Adds requests to the count for a key and day, unless the sum would exceed the limit; returns whether it added
    /// them. The check and the addition are atomic.
    async fn add(&self, claim: Claim<'_>) -> Result<bool>;
}

/// Requests to add to a count, unless it would exceed its limit.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// API key name.
    pub key: &'a str,
    /// The day, in days since 1970.
    pub day: u64,
    /// Number of requests.
    pub requests: u32,
    /// Daily limit.
    pub limit: u32,
}

/// Delivers events to those who listen.
#[async_trait]
pub trait EventBus: fmt::Debug + Send + Sync {
    /// Sends an event with the source `kivu`.
    async fn send(&self, kind: &str, detail: &Value) -> Result<()>;
}

/// Delivers each message to one reader.
#[async_trait]
pub trait Queue: fmt::Debug + Send + Sync {
    /// Sends a message with one string attribute.
    async fn send(&self, body: &str, name: &str, value: &str) -> Result<()>;
}

impl Cloud {
    /// Object storage.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        self.store.clone().ok_or_else(|| unsupported("S3"))
    }

    /// The secret with this name or id.
    pub fn secret(&self, name: &str) -> Result<Box<dyn Secret>> {
        let secret = self.secret;
        secret.ok_or_else(|| unsupported("AWS Secrets Manager"))?(name)
    }

    /// The table called `name`.
    pub fn quota_table(&self, name: &str) -> Result<Box<dyn QuotaTable>> {
        let table = self.quota_table;
        table.ok_or_else(|| unsupported("Amazon DynamoDB"))?(name)
    }

    /// The event bus with this name or id.
    pub fn event_bus(&self, name: &str) -> Result<Box<dyn EventBus>> {
        let bus = self.event_bus;
        bus.ok_or_else(|| unsupported("Amazon EventBridge"))?(name)
    }

    /// The queue at `url`.
    pub fn queue(&self, url: &str) -> Result<Box<dyn Queue>> {
        self.queue.ok_or_else(|| unsupported("Amazon SQS"))?(url)
    }
}

/// The error for a service that a program was compiled without.
pub fn unsupported(service: &str) -> Error {
    Error::config(format!("this program has no support for {service}"))
        .with_hint("compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_a_program_lacks_are_named() {
        let cloud = Cloud::default();
        let refused = [
            cloud.store().unwrap_err(),
            cloud.secret("s").unwrap_err(),
            cloud.quota_table("t").unwrap_err(),
            cloud.event_bus("b").unwrap_err(),
            cloud.queue("https://q").unwrap_err(),
        ];
        insta::assert_snapshot!(refused.map(|error| error.to_string()).join("\n"), @r"
        this program has no support for S3; compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`
        this program has no support for AWS Secrets Manager; compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`
        this program has no support for Amazon DynamoDB; compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`
        this program has no support for Amazon EventBridge; compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`
        this program has no support for Amazon SQS; compile it with the feature `services`, as `cargo install --path program` does, unlike `make run`
        ");
    }
}
