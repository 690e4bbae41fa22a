//! Sends events to Amazon EventBridge.

use std::io;

use async_trait::async_trait;
use aws_sdk_eventbridge::{Client, types::PutEventsRequestEntry};
use serde_json::Value;

use super::client::{LazyClient, deliver};
use kivu::{
    cloud,
    error::{Error, Result},
};

const SOURCE: &str = "kivu";

/// An Amazon EventBridge bus. The client is created on first use.
#[derive(Debug)]
pub struct EventBus {
    name: String,
    client: LazyClient<Client>,
}

impl EventBus {
    /// The bus with this name or ARN, in the environment's account and region.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: LazyClient::new(),
        }
    }
}

#[async_trait]
impl cloud::EventBus for EventBus {
    async fn send(&self, kind: &str, detail: &Value) -> Result<()> {
        let failed = || Error::io(format!("cannot send an event to the bus `{}`", self.name));
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name(&self.name)
            .source(SOURCE)
            .detail_type(kind)
            .detail(detail.to_string())
            .build();
        let sent = async {
            self.client
                .get(Client::new)
                .await
                .put_events()
                .entries(entry)
                .send()
                .await
        };
        let response = deliver(sent).await.map_err(failed())?;
        // EventBridge returns success even if it refuses an event.
        match response
            .entries()
            .first()
            .and_then(|entry| entry.error_code())
        {
            Some(code) => Err(failed()(io::Error::other(code))),
            None => Ok(()),
        }
    }
}
