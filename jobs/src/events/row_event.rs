//! Events that contain rows: calls by data warehouses, and stream records.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::{
    rules::Rules,
    streams::{Firehose, StreamBatch},
    warehouse::{self, Redshift, Snowflake},
};
use kivu::{
    cloud::Cloud,
    error::{Error, Result},
};

/// Time for a response through API Gateway, which waits for 29 s.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(28);
/// Time for a response to Data Firehose, which waits for 5 minutes.
const FIREHOSE_TIMEOUT: Duration = Duration::from_secs(290);

/// An event with rows, by its shape.
#[derive(Debug)]
pub enum RowEvent {
    Redshift(Redshift),
    Snowflake(Snowflake),
    Firehose(Firehose),
    Stream(StreamBatch),
}

impl RowEvent {
    /// Parses an event; `None` if it contains no rows.
    pub fn of(event: &Value) -> Result<Option<Self>> {
        let Some(fields) = event.as_object() else {
            return Ok(None);
        };
        let records = || fields.get("Records").and_then(Value::as_array);
        let source = records().and_then(|records| records.first()?.get("eventSource")?.as_str());
        Ok(Some(match source {
            Some("aws:kinesis") => Self::Stream(StreamBatch::of_kinesis(
                records().map_or(&[], Vec::as_slice),
            )?),
            Some("aws:dynamodb") => Self::Stream(StreamBatch::of_dynamodb(
                records().map_or(&[], Vec::as_slice),
            )?),
            Some(_) => return Ok(None),
            None if fields.contains_key("deliveryStreamArn") => {
                Self::Firehose(read(event, "Data Firehose")?)
            }
            None if fields.contains_key("arguments") => Self::Redshift(read(event, "Redshift")?),
            None if warehouse::is_request(fields) => Self::Snowflake(Snowflake::of(event)?),
            None => return Ok(None),
        }))
    }

    /// The response to the event's source, before the time `until` or its own limit.
    pub async fn answer(
        self,
        rules: &Rules,
        cloud: &Cloud,
        until: Option<Instant>,
    ) -> Result<Value> {
        let within = |limit| {
            let limit = Instant::now() + limit;
            Some(until.map_or(limit, |until| until.min(limit)))
        };
        match self {
            Self::Redshift(call) => Ok(call.answer(rules, until).await),
            Self::Snowflake(request) => Ok(request.answer(rules, within(GATEWAY_TIMEOUT)).await),
            Self::Firehose(batch) => batch.answer(rules, within(FIREHOSE_TIMEOUT)).await,
            Self::Stream(batch) => batch.answer(rules, cloud, until).await,
        }
    }
}

fn read<'a, T: Deserialize<'a>>(event: &'a Value, source: &str) -> Result<T> {
    T::deserialize(event).map_err(|error| {
        Error::malformed(format!("expected an event of {source}, but found: {error}"))
    })
}
