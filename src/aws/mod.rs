//! AWS clients: secrets in Secrets Manager, request counts in DynamoDB, messages to SQS, events to EventBridge, and vectors
//! to S3 Vectors and OpenSearch.

#[cfg(feature = "s3")]
mod client;
#[cfg(not(feature = "s3"))]
mod disabled;
#[cfg(feature = "s3")]
mod event_bus;
#[cfg(feature = "s3")]
pub mod http;
#[cfg(feature = "s3")]
mod queue;
#[cfg(feature = "s3")]
mod quota_table;
#[cfg(feature = "s3")]
mod secret;
#[cfg(feature = "s3")]
pub mod signed_http;
#[cfg(feature = "s3")]
pub mod vector_index;

#[cfg(not(feature = "s3"))]
pub use self::disabled::{EventBus, Queue, QuotaTable, Secret};
#[cfg(feature = "s3")]
pub use self::{event_bus::EventBus, queue::Queue, quota_table::QuotaTable, secret::Secret};

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
