//! Sends messages to Amazon SQS.

use std::io;

use async_trait::async_trait;
use serde_json::json;

use super::service::{DELIVERY_TIMEOUT, Service, ServiceClient};
use kivu::{
    address::shown,
    cloud,
    error::{Error, Result},
};

/// An Amazon SQS queue.
#[derive(Debug)]
pub struct Queue {
    url: String,
    client: ServiceClient,
}

impl Queue {
    /// The standard queue at `url`, in the environment's account and region.
    pub fn new(url: &str) -> Result<Self> {
        if !url.starts_with("http") || url.ends_with(".fifo") {
            return Err(Error::config(format!(
                "expected the URL of a standard queue, but found `{}`",
                shown(url)
            )));
        }
        Ok(Self {
            url: url.to_owned(),
            client: ServiceClient::new(&Service::SQS),
        })
    }
}

#[async_trait]
impl cloud::Queue for Queue {
    async fn send(&self, body: &str, name: &str, value: &str) -> Result<()> {
        let message = json!({
            "QueueUrl": self.url,
            "MessageBody": body,
            "MessageAttributes": { name: { "DataType": "String", "StringValue": value } },
        });
        let sent = self
            .client
            .call_within(DELIVERY_TIMEOUT, "SendMessage", &message);
        let failed = Error::io(format!("cannot send a message to `{}`", shown(&self.url)));
        sent.await
            .map(drop)
            .map_err(io::Error::other)
            .map_err(failed)
    }
}
