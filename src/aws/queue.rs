//! Messages to Amazon SQS in a build with the feature `s3`.

use std::{error, io, time::Duration};

use aws_sdk_sqs::{Client, types::MessageAttributeValue};
use tokio::{sync::OnceCell, time::timeout};

use super::client;
use crate::error::{Error, Result};

/// How long a message may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An Amazon SQS queue. The client is created on first use.
#[derive(Debug)]
pub struct Queue {
    url: String,
    client: OnceCell<Client>,
}

impl Queue {
    /// The standard queue at `url`, in the environment's account and region.
    pub fn new(url: &str) -> Result<Self> {
        if !url.starts_with("http") || url.ends_with(".fifo") {
            return Err(Error::config(format!("expected the URL of a standard queue, but found `{url}`")));
        }
        Ok(Self { url: url.to_owned(), client: OnceCell::new() })
    }

    /// Sends a message with an attribute, a text.
    pub async fn send(&self, body: &str, name: &str, value: &str) -> Result<()> {
        let failed = |source: Box<dyn error::Error + Send + Sync>| {
            Error::io(format!("cannot send a message to `{}`", self.url))(io::Error::other(source))
        };
        let attribute = MessageAttributeValue::builder().data_type("String").string_value(value).build();
        let attribute = attribute.map_err(|error| failed(error.into()))?;
        let sent = async {
            let client = self.client.get_or_init(async || Client::new(&client::configuration().await)).await;
            client
                .send_message()
                .queue_url(&self.url)
                .message_body(body)
                .message_attributes(name, attribute)
                .send()
                .await
        };
        match timeout(TIMEOUT, sent).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(failed(error.into())),
            Err(error) => Err(failed(error.into())),
        }
    }
}
