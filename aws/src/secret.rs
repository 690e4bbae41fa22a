//! Reads secrets in AWS Secrets Manager.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_secretsmanager::Client;
use tokio::time::timeout;

use super::client::LazyClient;
use kivu::{
    cloud,
    error::{Error, Result},
};

/// Version labels: rotation moves `AWSPREVIOUS` to the value that it replaces.
const CURRENT: &str = "AWSCURRENT";
const PREVIOUS: &str = "AWSPREVIOUS";

/// A secret, by its name or ARN. The client is created at the first read.
#[derive(Debug)]
pub struct Secret {
    name: String,
    client: LazyClient<Client>,
}

impl Secret {
    /// The secret called `name` in the environment's account and region.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: LazyClient::new(),
        }
    }

    async fn within<T>(
        &self,
        time_limit: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout(time_limit, work).await.unwrap_or_else(|_| {
            Err(Error::config(format!(
                "reading the secret `{}` took longer than {}ms",
                self.name,
                time_limit.as_millis()
            )))
        })
    }

    /// Fetches the value with this label; `None` if there is no previous value.
    async fn fetch(&self, stage: &str) -> Result<Option<String>> {
        let client = self.client.get(Client::new).await;
        let response = match client
            .get_secret_value()
            .secret_id(&self.name)
            .version_stage(stage)
            .send()
            .await
        {
            Ok(response) => response,
            Err(error) => {
                let is_missing = error
                    .as_service_error()
                    .is_some_and(|e| e.is_resource_not_found_exception());
                if stage == PREVIOUS && is_missing {
                    return Ok(None);
                }
                return Err(Error::Config {
                    message: format!("cannot read the secret `{}`", self.name).into(),
                    source: Some(Box::new(error)),
                });
            }
        };
        let text = response.secret_string.ok_or_else(|| {
            Error::config(format!(
                "the secret `{}` is binary, not text; store the keys as `SecretString`",
                self.name
            ))
        })?;
        Ok(Some(text))
    }
}

#[async_trait]
impl cloud::Secret for Secret {
    async fn read(&self, time_limit: Duration) -> Result<String> {
        let current = self.within(time_limit, self.fetch(CURRENT)).await?;
        current.ok_or_else(|| {
            Error::config(format!(
                "expected a value in the secret `{}`, but found none",
                self.name
            ))
        })
    }

    async fn read_versions(&self, time_limit: Duration) -> Result<Vec<String>> {
        let both = async { tokio::try_join!(self.fetch(CURRENT), self.fetch(PREVIOUS)) };
        let (current, previous) = self.within(time_limit, both).await?;
        Ok(current.into_iter().chain(previous).collect())
    }
}
