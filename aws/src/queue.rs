//! Sends messages to Amazon SQS.

use std::io;

use async_trait::async_trait;
use aws_sdk_sqs::{Client, types::MessageAttributeValue};

use super::client::{LazyClient, deliver};
use kivu::{
    address::shown,
    cloud,
    error::{Error, Result},
};

/// An Amazon SQS queue. The client is created on first use.
#[derive(Debug)]
pub struct Queue {
    url: String,
    client: LazyClient<Client>,
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
            client: LazyClient::new(),
        })
    }
}

#[async_trait]
impl cloud::Queue for Queue {
    async fn send(&self, body: &str, name: &str, value: &str) -> Result<()> {
        let failed = || Error::io(format!("cannot send a message to `{}`", shown(&self.url)));
        let attribute = MessageAttributeValue::builder()
            .data_type("String")
            .string_value(value)
            .build();
        let attribute = attribute.map_err(|error| failed()(io::Error::other(error)))?;
        let sent = async {
            let client = self.client.get(Client::new).await;
            client
                .send_message()
                .queue_url(&self.url)
                .message_body(body)
                .message_attributes(name, attribute)
                .send()
                .await
        };
        deliver(sent).await.map(drop).map_err(failed())
    }
}
