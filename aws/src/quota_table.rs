//! Request counts in DynamoDB.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::service::{Service, ServiceClient};
use kivu::{
    cloud::{self, Claim},
    error::{Error, Result},
};

/// Timeout for table requests.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which an item expires, from the start of its day.
const KEPT: Duration = Duration::from_hours(72);
const DAY: Duration = Duration::from_hours(24);

/// An Amazon DynamoDB table that counts requests per key and day.
///
/// An item has the attributes `key` and `day`, which identify it, `used_requests`, and `expires_at`, its time to live.
#[derive(Debug)]
pub struct QuotaTable {
    name: String,
    client: ServiceClient,
}

impl QuotaTable {
    /// The table called `name` in the environment's account and region.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: ServiceClient::new(&Service::DYNAMODB),
        }
    }
}

#[async_trait]
impl cloud::QuotaTable for QuotaTable {
    async fn add(&self, claim: Claim<'_>) -> Result<bool> {
        let Some(most) = claim.limit.checked_sub(claim.requests) else {
            return Ok(false);
        };
        let number = |value: u64| json!({ "N": value.to_string() });
        let update = json!({
            "TableName": self.name,
            "Key": { "key": { "S": claim.key }, "day": number(claim.day) },
            "UpdateExpression": "ADD used_requests :requests SET expires_at = :expires_at",
            "ConditionExpression": "attribute_not_exists(used_requests) OR used_requests <= :most",
            "ExpressionAttributeValues": {
                ":requests": number(claim.requests.into()),
                ":most": number(most.into()),
                ":expires_at": number(claim.day * DAY.as_secs() + KEPT.as_secs()),
            },
        });
        match self
            .client
            .call_within(TIMEOUT, "UpdateItem", &update)
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if error.code == "ConditionalCheckFailedException" => Ok(false),
            Err(error) => Err(Error::Config {
                message: format!("cannot update the table `{}`", self.name).into(),
                source: Some(Box::new(error)),
            }),
        }
    }
}
