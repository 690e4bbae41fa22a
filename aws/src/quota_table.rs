//! Request counts in DynamoDB.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use tokio::time::timeout;

use super::client::LazyClient;
use kivu::{
    cloud::{self, Claim},
    error::{Error, Result},
};

/// Timeout for table requests.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which an item expires, from the start of its day.
const KEPT: Duration = Duration::from_hours(72);
const DAY: Duration = Duration::from_hours(24);

/// An Amazon DynamoDB table that counts requests per key and day. The client is created on first use.
///
/// An item has the attributes `key` and `day`, which identify it, `used_requests`, and `expires_at`, its time to live.
#[derive(Debug)]
pub struct QuotaTable {
    name: String,
    client: LazyClient<Client>,
}

impl QuotaTable {
    /// The table called `name` in the environment's account and region.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: LazyClient::new(),
        }
    }
}

#[async_trait]
impl cloud::QuotaTable for QuotaTable {
    async fn add(&self, claim: Claim<'_>) -> Result<bool> {
        let Some(most) = claim.limit.checked_sub(claim.requests) else {
            return Ok(false);
        };
        let number = |value: u64| AttributeValue::N(value.to_string());
        let added = async {
            let client = self.client.get(Client::new).await;
            client
                .update_item()
                .table_name(&self.name)
                .key("key", AttributeValue::S(claim.key.to_owned()))
                .key("day", number(claim.day))
                .update_expression("ADD used_requests :requests SET expires_at = :expires_at")
                .condition_expression(
                    "attribute_not_exists(used_requests) OR used_requests <= :most",
                )
                .expression_attribute_values(":requests", number(claim.requests.into()))
                .expression_attribute_values(":most", number(most.into()))
                .expression_attribute_values(
                    ":expires_at",
                    number(claim.day * DAY.as_secs() + KEPT.as_secs()),
                )
                .send()
                .await
        };
        match timeout(TIMEOUT, added).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error))
                if error
                    .as_service_error()
                    .is_some_and(|e| e.is_conditional_check_failed_exception()) =>
            {
                Ok(false)
            }
            Ok(Err(error)) => Err(Error::Config {
                message: format!("cannot update the table `{}`", self.name).into(),
                source: Some(Box::new(error)),
            }),
            Err(_) => Err(Error::config(format!(
                "updating the table `{}` took longer than {}ms",
                self.name,
                TIMEOUT.as_millis()
            ))),
        }
    }
}
