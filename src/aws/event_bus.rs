//! Events to Amazon EventBridge in a build with the feature `s3`.

use std::{error, io, time::Duration};

use aws_sdk_eventbridge::{Client, types::PutEventsRequestEntry};
use serde_json::Value;
use tokio::{sync::OnceCell, time::timeout};

use super::client;
use crate::error::{Error, Result};

/// How long an event may take.
const TIMEOUT: Duration = Duration::from_secs(5);
const SOURCE: &str = "kivu";

/// An Amazon EventBridge bus. The client is created on first use.
#[derive(Debug)]
pub struct EventBus {
    name: String,
    client: OnceCell<Client>,
}

impl EventBus {
    /// The bus with this name or ARN, in the environment's account and region.
    pub fn new(name: &str) -> Result<Self> {
        Ok(Self { name: name.to_owned(), client: OnceCell::new() })
    }

    /// Sends an event with the source `kivu`.
    pub async fn send(&self, kind: &str, detail: &Value) -> Result<()> {
        let failed = |source: Box<dyn error::Error + Send + Sync>| {
            Error::io(format!("cannot send an event to the bus `{}`", self.name))(io::Error::other(source))
        };
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name(&self.name)
            .source(SOURCE)
            .detail_type(kind)
            .detail(detail.to_string())
            .build();
        let sent = async {
            let client = self.client.get_or_init(async || Client::new(&client::configuration().await)).await;
            client.put_events().entries(entry).send().await
        };
        let response = timeout(TIMEOUT, sent).await.map_err(|error| failed(error.into()))?;
        let response = response.map_err(|error| failed(error.into()))?;
        // The response is successful even if an event is refused.
        match response.entries().first().and_then(|entry| entry.error_code()) {
            Some(code) => Err(failed(code.into())),
            None => Ok(()),
        }
    }
}
