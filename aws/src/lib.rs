//! AWS for Kivu: objects in S3, secrets in Secrets Manager, request counts in DynamoDB, messages to SQS, events to EventBridge,
//! and the requests of sinks.

mod event_bus;
mod http;
mod queue;
mod quota_table;
mod retry;
mod secret;
pub mod service;
pub mod signed_http;
mod store;

use std::sync::Arc;

use kivu::{
    cloud::{self, Cloud},
    config::Config,
    error::Result,
    repository::s3::Store,
};

use self::{event_bus::EventBus, queue::Queue, quota_table::QuotaTable, secret::Secret, store::S3};

/// The S3 stores, secrets and tables that commands and servers use.
pub fn cloud(config: &Config) -> Cloud {
    Cloud {
        store: Some(store(config)),
        secret: Some(secret),
        quota_table: Some(quota_table),
        ..Cloud::default()
    }
}

/// S3, or the server in `AWS_ENDPOINT_URL`.
pub fn store(config: &Config) -> Arc<dyn Store> {
    Arc::new(S3::new(config.s3.timeout()))
}

/// The secret in AWS Secrets Manager with this name or ARN.
pub fn secret(name: &str) -> Result<Box<dyn cloud::Secret>> {
    Ok(Box::new(Secret::new(name)))
}

/// The table in Amazon DynamoDB with this name.
pub fn quota_table(name: &str) -> Result<Box<dyn cloud::QuotaTable>> {
    Ok(Box::new(QuotaTable::new(name)))
}

/// The bus in Amazon EventBridge with this name or ARN.
pub fn event_bus(name: &str) -> Result<Box<dyn cloud::EventBus>> {
    Ok(Box::new(EventBus::new(name)))
}

/// The standard queue in Amazon SQS at this URL.
pub fn queue(url: &str) -> Result<Box<dyn cloud::Queue>> {
    Ok(Box::new(Queue::new(url)?))
}
