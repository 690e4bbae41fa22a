//! Sends events to Amazon EventBridge.

use std::io;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::service::{DELIVERY_TIMEOUT, Service, ServiceClient};
use kivu::{
    cloud,
    error::{Error, Result},
};

const SOURCE: &str = "kivu";

/// An Amazon EventBridge bus.
#[derive(Debug)]
pub struct EventBus {
    name: String,
    client: ServiceClient,
}

impl EventBus {
    /// The bus with this name or ARN, in the environment's account and region.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: ServiceClient::new(&Service::EVENT_BRIDGE),
        }
    }
}

#[async_trait]
impl cloud::EventBus for EventBus {
    async fn send(&self, kind: &str, detail: &Value) -> Result<()> {
        let failed = || Error::io(format!("cannot send an event to the bus `{}`", self.name));
        let entry = json!({ "EventBusName": self.name, "Source": SOURCE, "DetailType": kind, "Detail": detail.to_string() });
        let entries = json!({ "Entries": [entry] });
        let sent = self
            .client
            .call_within(DELIVERY_TIMEOUT, "PutEvents", &entries);
        let response = sent.await.map_err(io::Error::other).map_err(failed())?;
        // EventBridge returns success even if it refuses an event.
        match response["Entries"][0]["ErrorCode"].as_str() {
            Some(code) => Err(failed()(io::Error::other(code.to_owned()))),
            None => Ok(()),
        }
    }
}
