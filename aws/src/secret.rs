//! Reads secrets in AWS Secrets Manager.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::service::{ActionError, Service, ServiceClient};
use kivu::{
    cloud,
    error::{Error, Result},
};

/// Version labels: rotation moves `AWSPREVIOUS` to the value that it replaces.
const CURRENT: &str = "AWSCURRENT";
const PREVIOUS: &str = "AWSPREVIOUS";

/// A secret, by its name or ARN.
#[derive(Debug)]
pub struct Secret {
    name: String,
    client: ServiceClient,
}

impl Secret {
    /// The secret called `name` in the environment's account and region.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: ServiceClient::new(&Service::SECRETS_MANAGER),
        }
    }

    async fn version(&self, label: &str, time_limit: Duration) -> Result<Value, ActionError> {
        let wanted = json!({ "SecretId": self.name, "VersionStage": label });
        self.client
            .call_within(time_limit, "GetSecretValue", &wanted)
            .await
    }

    fn text(&self, version: Result<Value, ActionError>) -> Result<String> {
        let version = version.map_err(|error| Error::Config {
            message: format!("cannot read the secret `{}`", self.name).into(),
            source: Some(Box::new(error)),
        })?;
        let text = version["SecretString"].as_str().map(str::to_owned);
        text.ok_or_else(|| {
            Error::config(format!(
                "the secret `{}` is binary, not text; store the keys as `SecretString`",
                self.name
            ))
        })
    }
}

#[async_trait]
impl cloud::Secret for Secret {
    async fn read(&self, time_limit: Duration) -> Result<String> {
        self.text(self.version(CURRENT, time_limit).await)
    }

    async fn read_versions(&self, time_limit: Duration) -> Result<Vec<String>> {
        let (current, previous) = tokio::join!(
            self.version(CURRENT, time_limit),
            self.version(PREVIOUS, time_limit)
        );
        let mut versions = vec![self.text(current)?];
        // A secret that was never rotated has no previous version.
        if !previous
            .as_ref()
            .is_err_and(|error| error.code == "ResourceNotFoundException")
        {
            versions.push(self.text(previous)?);
        }
        Ok(versions)
    }
}
