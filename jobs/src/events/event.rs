//! Events: objects from S3 or EventBridge, directly or in SQS and SNS messages; tasks of a state machine; rows from data
//! warehouses and streams.
//!
//! The types in `aws_lambda_events` are not used: they require fields that EventBridge and test events lack,
//! and do not decode keys.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;

use super::{
    distributed_map::MapEvent,
    streams::{Firehose, StreamBatch},
    warehouse::{self, Redshift, Snowflake},
};
use kivu::{Error, Result, repository::s3::Url};

/// Maximum message nesting: an SQS message may contain an SNS message, which contains an event.
const MAX_DEPTH: usize = 4;

/// A function's event.
#[derive(Debug)]
pub enum Event {
    Redshift(Redshift),
    Snowflake(Snowflake),
    Firehose(Firehose),
    Stream(StreamBatch),
    Map(MapEvent),
    /// A task of a state machine, a rule or a schedule, whose result is the job's status.
    Object(ObjectEvent),
    Objects(Vec<ObjectEvent>),
    Queue(Vec<Message>),
}

impl Event {
    /// Parses an event, whose shape tells its kind. Messages of a queue are parsed one by one, and so fail one by one.
    pub fn parse(event: &Value) -> Result<Self> {
        let records = records(event);
        let has = |name: &str| event.get(name).is_some();
        let source = records
            .first()
            .and_then(|first| first["eventSource"].as_str());
        Ok(match source {
            Some("aws:kinesis") => Self::Stream(StreamBatch::of_kinesis(records)?),
            Some("aws:dynamodb") => Self::Stream(StreamBatch::of_dynamodb(records)?),
            None if has("deliveryStreamArn") => Self::Firehose(read(event, "Data Firehose")?),
            None if has("arguments") => Self::Redshift(read(event, "Redshift")?),
            None if warehouse::is_request(event) => Self::Snowflake(Snowflake::of(event)?),
            _ => {
                if let Some(event) = MapEvent::of(event)? {
                    Self::Map(event)
                } else if let Some(object) = named(event)? {
                    Self::Object(object)
                } else if records.iter().any(is_queued) {
                    Self::Queue(messages(records))
                } else {
                    Self::Objects(objects(event, 0)?)
                }
            }
        })
    }
}

fn read<'a, T: Deserialize<'a>>(event: &'a Value, source: &str) -> Result<T> {
    T::deserialize(event)
        .map_err(|error| Error::malformed(format!("cannot read the event of {source}: {error}")))
}

/// An object that was created or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    pub url: Url,
    pub version: Option<String>,
    /// The ETag, without quotes.
    pub etag: Option<String>,
}

impl ObjectEvent {
    pub fn new(url: Url) -> Self {
        Self {
            url,
            version: None,
            etag: None,
        }
    }

    /// Whether the event names no version or ETag, so the object may have changed. S3's own events always name one.
    pub fn is_by_name(&self) -> bool {
        self.version.is_none() && self.etag.is_none()
    }
}

/// A message and its objects.
#[derive(Debug)]
pub struct Message {
    /// SQS message id.
    pub id: Option<String>,
    pub body: Option<String>,
    /// Progress of the previous run.
    pub reached: Reached,
    pub objects: Result<Vec<ObjectEvent>>,
}

/// A message's progress: finished objects, and rows in the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reached {
    pub objects: u64,
    pub rows: u64,
}

impl Reached {
    /// Message attribute name.
    pub const ATTRIBUTE: &str = "kivu-reached";

    /// The attribute's value in an SQS record; nothing if it is missing or not Kivu's.
    fn of(record: &Value) -> Self {
        let attribute = &record["messageAttributes"][Self::ATTRIBUTE];
        let text = attribute["stringValue"].as_str();
        let numbers = text.and_then(|text| text.split_once(' '));
        numbers
            .and_then(|(objects, rows)| {
                Some(Self {
                    objects: objects.parse().ok()?,
                    rows: rows.parse().ok()?,
                })
            })
            .unwrap_or_default()
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.objects, self.rows)
    }
}

/// The messages among an event's records.
fn messages(records: &[Value]) -> Vec<Message> {
    let message = |record: &Value| Message {
        id: record["messageId"].as_str().map(str::to_owned),
        body: text(record, "body").ok().map(str::to_owned),
        reached: Reached::of(record),
        objects: text(record, "body").and_then(|body| unwrap(body, 0)),
    };
    records
        .iter()
        .filter(|record| is_queued(record))
        .map(message)
        .collect()
}

fn objects(event: &Value, depth: usize) -> Result<Vec<ObjectEvent>> {
    // S3 sends this event when notifications are configured.
    if event["Event"] == "s3:TestEvent" || is_warm_up(event) {
        return Ok(Vec::new());
    }
    if let Some(object) = named(event)? {
        return Ok(vec![object]);
    }
    if event["source"] == "aws.s3" {
        return Ok(from_event_bridge(event)?.into_iter().collect());
    }
    if event["Type"] == "Notification" {
        return unwrap(text(event, "Message")?, depth);
    }
    let records = records(event);
    if records.is_empty() {
        return Err(Error::malformed(format!(
            "expected an event of S3, EventBridge, SQS, SNS or Step Functions, but found {}",
            kind(event)
        )));
    }
    let mut found = Vec::new();
    for record in records {
        match source(record) {
            Some("aws:s3") => found.extend(from_s3(record)?),
            Some("aws:sns") => {
                found.extend(unwrap(text(&record["Sns"], "Message")?, depth)?);
            }
            other => {
                return Err(Error::malformed(format!(
                    "expected records of `aws:s3`, `aws:sqs` or `aws:sns`, but found {}",
                    other.map_or("none".into(), |other| format!("`{other}`"))
                )));
            }
        }
    }
    Ok(found)
}

/// The object that a state machine's task, a rule or a schedule names.
fn named(event: &Value) -> Result<Option<ObjectEvent>> {
    let (Some(fields), Some(url)) = (event.as_object(), event["input"].as_str()) else {
        return Ok(None);
    };
    match fields.keys().find(|name| *name != "input") {
        Some(other) => Err(Error::malformed(format!(
            "expected only `input` in the event, but found `{other}`"
        ))
        .with_hint("a file's model and options are in its rule or its metadata")),
        None => Ok(Some(ObjectEvent::new(url.parse()?))),
    }
}

/// Whether the event only keeps the function warm: a schedule's default event, or one of the usual programs' for that.
fn is_warm_up(event: &Value) -> bool {
    event["detail-type"] == "Scheduled Event"
        || event["source"] == "serverless-plugin-warmup"
        || event["warmer"] == true
}

fn unwrap(body: &str, depth: usize) -> Result<Vec<ObjectEvent>> {
    if depth >= MAX_DEPTH {
        return Err(Error::malformed(format!(
            "expected at most {MAX_DEPTH} nested messages, but found more"
        )));
    }
    let event: Value = serde_json::from_str(body).map_err(|error| {
        Error::malformed(format!("the message is not an event as JSON: {error}"))
    })?;
    objects(&event, depth + 1)
}

fn records(event: &Value) -> &[Value] {
    event["Records"].as_array().map_or(&[], Vec::as_slice)
}

fn is_queued(record: &Value) -> bool {
    source(record) == Some("aws:sqs")
}

/// The key begins with a capital in SNS events.
fn source(record: &Value) -> Option<&str> {
    let named = |name: &str| record[name].as_str();
    named("eventSource").or_else(|| named("EventSource"))
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().ok_or_else(|| {
        Error::malformed(format!(
            "expected `{field}` in the message, but found {}",
            kind(value)
        ))
    })
}

/// Describes an unexpected value.
fn kind(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let names: Vec<&String> = fields.keys().take(8).collect();
            format!("an object with {}", kivu::error::quoted(&names))
        }
        Value::Array(_) => "a list".into(),
        _ => "something else".into(),
    }
}

/// An S3 record; `None` unless an object was created.
fn from_s3(record: &Value) -> Result<Option<ObjectEvent>> {
    let name = record["eventName"].as_str();
    if !name.is_some_and(|name| name.starts_with("ObjectCreated:")) {
        return Ok(None);
    }
    let mut object = object(&record["s3"], ["versionId", "eTag"], "the record of S3")?;
    object.url.key = decode(&object.url.key)?;
    Ok(Some(object))
}

/// An EventBridge event, whose keys are not encoded; `None` unless an object was created.
fn from_event_bridge(event: &Value) -> Result<Option<ObjectEvent>> {
    if event["detail-type"] != "Object Created" {
        return Ok(None);
    }
    let names = ["version-id", "etag"];
    object(&event["detail"], names, "the EventBridge event").map(Some)
}

/// The object that `place` describes in `details`; `names` are the fields with its version and its ETag.
fn object(details: &Value, names: [&str; 2], place: &str) -> Result<ObjectEvent> {
    let at = |part: &str, name: &str| details[part][name].as_str().map(str::to_owned);
    let (Some(bucket), Some(key)) = (at("bucket", "name"), at("object", "key")) else {
        return Err(Error::malformed(format!(
            "expected a bucket and a key in {place}, but found none"
        )));
    };
    let [version, etag] = names.map(|name| at("object", name));
    Ok(ObjectEvent {
        url: Url { bucket, key },
        version: version.filter(|version| version != "null"),
        etag,
    })
}

/// Decodes a key in an S3 event, which is encoded like a form field.
pub fn decode(key: &str) -> Result<String> {
    let spaced = key.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|_| Error::malformed(format!("expected a key in UTF-8, but found `{key}`")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_messages(event: &Value) -> Vec<Message> {
        let Event::Queue(messages) = Event::parse(event).unwrap() else {
            panic!("no queue's event: {event}");
        };
        messages
    }

    #[test]
    fn keys_are_decoded_once() {
        assert_eq!(
            decode("in/a+b%2Bc%3A%25d%C3%A9.jsonl").unwrap(),
            "in/a b+c:%dé.jsonl"
        );
        assert_eq!(decode("a%2520b").unwrap(), "a%20b");
        assert!(decode("%ff").is_err());
    }

    #[test]
    fn messages_may_name_their_input() {
        let message = |body: &str| {
            parse_messages(&json!({"Records": [{"eventSource": "aws:sqs", "body": body}]}))
                .remove(0)
                .objects
        };
        let url = Url {
            bucket: "files".into(),
            key: "in/a.csv".into(),
        };
        assert_eq!(
            message(r#"{"input": "s3://files/in/a.csv"}"#).unwrap(),
            [ObjectEvent::new(url)]
        );
        assert!(message(r#"{"input": "in/a.csv"}"#).is_err());
        let refused = |event| message(event).unwrap_err().to_string();
        insta::assert_snapshot!(refused(r#"{"input": "s3://files/in/a.csv", "model": "a"}"#), @"expected only `input` in the event, but found `model`; a file's model and options are in its rule or its metadata");
    }

    #[test]
    fn attributes_have_how_far_a_message_is_processed() {
        let reached = |text: &str| {
            let attributes = json!({"kivu-reached": {"stringValue": text, "dataType": "String"}});
            parse_messages(&json!({"Records": [{"eventSource": "aws:sqs", "body": "{}", "messageAttributes": attributes}]}))
                .remove(0)
                .reached
        };
        let some = Reached {
            objects: 2,
            rows: 1500,
        };
        assert_eq!(reached(&some.to_string()), some);
        assert_eq!(reached("all of them"), Reached::default());
        assert!(
            some > Reached {
                objects: 1,
                rows: 9000
            } && some
                < Reached {
                    objects: 2,
                    rows: 1501
                }
        );
    }

    #[test]
    fn warm_up_events_name_no_objects() {
        for event in [
            json!({"version": "0", "detail-type": "Scheduled Event", "source": "aws.events", "resources": ["arn:aws:events:eu-west-1:1:rule/warm"], "detail": {}}),
            json!({"detail-type": "Scheduled Event", "source": "aws.scheduler", "detail": "{}"}),
            json!({"source": "serverless-plugin-warmup"}),
            json!({"warmer": true, "concurrency": 3}),
        ] {
            let queued = json!({"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": event.to_string()}]});
            let [message] = parse_messages(&queued).try_into().unwrap();
            assert_eq!(message.objects.unwrap(), [], "{event}");
            let parsed = Event::parse(&event).unwrap();
            assert!(
                matches!(parsed, Event::Objects(found) if found.is_empty()),
                "{event}"
            );
        }
    }

    #[test]
    fn other_events_are_refused() {
        let refused = |event: Value| match Event::parse(&event) {
            Ok(Event::Queue(mut messages)) => messages.remove(0).objects.unwrap_err().to_string(),
            parsed => parsed.unwrap_err().to_string(),
        };
        insta::assert_snapshot!(refused(json!({"httpMethod": "GET"})), @"expected an event of S3, EventBridge, SQS, SNS or Step Functions, but found an object with `httpMethod`");
        insta::assert_snapshot!(refused(json!({"Records": [{"eventSource": "aws:ses"}]})), @"expected records of `aws:s3`, `aws:sqs` or `aws:sns`, but found `aws:ses`");
        insta::assert_snapshot!(refused(json!({"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": "hello"}]})), @"the message is not an event as JSON: expected value at line 1 column 1");
        let nested = (0..9).fold("{}".to_owned(), |inner, _| {
            json!({"Type": "Notification", "Message": inner}).to_string()
        });
        assert!(
            unwrap(&nested, 0)
                .unwrap_err()
                .to_string()
                .contains("nested messages")
        );
    }
}
