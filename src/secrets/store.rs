//! Secrets in a build with the feature `s3`.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_secretsmanager::Client;
use aws_smithy_http_client::{
    Builder as HttpClient,
    tls::{Provider, rustls_provider::CryptoMode},
};
use tokio::{sync::OnceCell, time::timeout};

use crate::error::{Error, Result};

/// A secret, by its name or ARN. The client is created at the first read.
#[derive(Debug)]
pub struct Secret {
    name: String,
    client: OnceCell<Client>,
}

impl Secret {
    /// The secret called `name` in the account and region of the environment.
    pub fn new(name: &str) -> Result<Self> {
        Ok(Self { name: name.to_owned(), client: OnceCell::new() })
    }

    /// The current value of the secret.
    pub async fn read(&self, time_limit: Duration) -> Result<String> {
        timeout(time_limit, self.fetch()).await.unwrap_or_else(|_| {
            Err(Error::config(format!(
                "reading the secret `{}` took longer than {}ms",
                self.name,
                time_limit.as_millis()
            )))
        })
    }

    async fn fetch(&self) -> Result<String> {
        let client = self.client.get_or_init(connect).await;
        let response = client.get_secret_value().secret_id(&self.name).send().await;
        let response = response.map_err(|error| Error::Config {
            message: format!("cannot read the secret `{}`", self.name),
            source: Some(Box::new(error)),
        })?;
        response.secret_string.ok_or_else(|| {
            Error::config(format!("expected text in the secret `{}`, but found something else", self.name))
        })
    }
}

async fn connect() -> Client {
    let http = HttpClient::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    Client::new(&aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await)
}
