//! Functions that data warehouses call with rows: Lambda UDFs of Amazon Redshift, and external functions of Snowflake
//! through API Gateway.

use std::{
    collections::BTreeMap,
    io::Read,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    row_function::{check_size, earlier},
    rules::Rules,
};
use kivu::{Error, Result};

/// Maximum unpacked size of a request.
const MAX_REQUEST_BYTES: u64 = 64 * 1024 * 1024;
/// Time for a response through API Gateway, which waits for 29 s.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(28);
/// Prefix of the header names that an external function's `HEADERS` have.
const CUSTOM: &str = "sf-custom-";

/// An invocation by Redshift.
#[derive(Debug, Deserialize)]
pub struct Redshift {
    /// The function with its schema, such as `public.embed`.
    #[serde(default)]
    external_function: String,
    /// A list of arguments per row.
    arguments: Vec<Vec<Value>>,
}

impl Redshift {
    /// Errors end the query, with their message.
    pub async fn answer(self, rules: &Rules, until: Option<Instant>) -> Value {
        let count = self.arguments.len();
        match self.results(rules, until).await {
            Ok(results) => json!({ "success": true, "num_records": count, "results": results }),
            Err(error) => {
                tracing::error!(error = error.chain(), "cannot answer Redshift");
                json!({ "success": false, "num_records": count, "error_msg": error.to_string() })
            }
        }
    }

    async fn results(self, rules: &Rules, until: Option<Instant>) -> Result<Vec<Value>> {
        let name = &self.external_function;
        let function = rules.function("redshift", name, &BTreeMap::new())?;
        let results = function.call(self.arguments, until).await?;
        check_escaped(&results, 3)?;
        results
            .into_iter()
            .map(|json| json.map_or(Ok(Value::Null), |json| scalar(&json)))
            .collect()
    }
}

/// A text or number; lists and objects as JSON text, since functions of Redshift return neither.
fn scalar(json: &str) -> Result<Value> {
    Ok(match parsed(json)? {
        value @ (Value::String(_) | Value::Number(_)) => value,
        _ => json.into(),
    })
}

fn parsed(json: &str) -> Result<Value> {
    serde_json::from_str(json)
        .map_err(|error| Error::inference_because("cannot write a result", error))
}

/// A request by Snowflake, as API Gateway passes it.
#[derive(Debug)]
pub struct Snowflake {
    /// By lower-case name.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

#[derive(Deserialize)]
struct SnowflakeRows {
    /// A row number and arguments per row.
    data: Vec<Vec<Value>>,
}

impl Snowflake {
    pub fn of(event: &Value) -> Result<Self> {
        let fields = |name: &str| event[name].as_object().into_iter().flatten();
        let one = fields("headers").filter_map(|(name, value)| Some((name, value.as_str()?)));
        let several = fields("multiValueHeaders")
            .filter_map(|(name, values)| Some((name, values.get(0)?.as_str()?)));
        let headers = several
            .chain(one)
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let body = event["body"].as_str().unwrap_or_default();
        let body = match event["isBase64Encoded"] == true {
            true => BASE64_STANDARD
                .decode(body)
                .map_err(|_| Error::malformed("the body is not base64"))?,
            false => body.as_bytes().to_vec(),
        };
        Ok(Self { headers, body })
    }

    /// An HTTP response. Snowflake repeats requests with the statuses 429 and 5xx; others end the query.
    pub async fn answer(self, rules: &Rules, until: Option<Instant>) -> Value {
        let until = earlier(until, GATEWAY_TIMEOUT);
        let (status, body) = match self.rows(rules, until).await {
            Ok(body) => (200, body),
            Err(error) => {
                tracing::error!(error = error.chain(), "cannot answer Snowflake");
                let status = match &error {
                    Error::Malformed { .. }
                    | Error::Invalid { .. }
                    | Error::UnknownModel { .. } => 400,
                    Error::TooLarge { .. } => 413,
                    Error::Overloaded { .. } => 429,
                    Error::Unavailable { .. } | Error::DeadlineExceeded { .. } => 503,
                    _ => 500,
                };
                (status, json!({ "error": error.to_string() }).to_string())
            }
        };
        json!({
            "statusCode": status,
            "headers": { "content-type": "application/json" },
            "body": body,
            "isBase64Encoded": false,
        })
    }

    async fn rows(self, rules: &Rules, until: Option<Instant>) -> Result<String> {
        let header = |name: &str| self.headers.get(name).map(String::as_str);
        if let Some(other) =
            header("sf-external-function-format").filter(|format| *format != "json")
        {
            return Err(Error::malformed(format!(
                "expected the format `json`, but found `{}`",
                other.escape_default()
            )));
        }
        let name = header("sf-external-function-name").unwrap_or_default();
        let options = self.headers.iter().filter_map(|(name, value)| {
            Some((name.strip_prefix(CUSTOM)?.to_owned(), value.clone()))
        });
        let function = rules.function("snowflake", name, &options.collect())?;
        let (numbers, rows) = numbered(&unpacked(self.body)?)?;
        let results = function.call(rows, until).await?;
        // The body is a text in JSON, too.
        check_escaped(&results, 24)?;
        let rows = numbers.iter().zip(&results);
        let rows = rows
            .map(|(number, result)| format!("[{number},{}]", result.as_deref().unwrap_or("null")));
        Ok(format!(
            "{{\"data\":[{}]}}",
            rows.collect::<Vec<_>>().join(",")
        ))
    }
}

/// A body, which Snowflake compresses unless `COMPRESSION` is `NONE`.
fn unpacked(body: Vec<u8>) -> Result<Vec<u8>> {
    if !body.starts_with(&[0x1f, 0x8b]) {
        return Ok(body);
    }
    let mut unpacked = Vec::new();
    let mut decoder = MultiGzDecoder::new(body.as_slice()).take(MAX_REQUEST_BYTES + 1);
    decoder
        .read_to_end(&mut unpacked)
        .map_err(|_| Error::malformed("the body is damaged gzip data"))?;
    if unpacked.len() as u64 > MAX_REQUEST_BYTES {
        return Err(Error::too_large(format!(
            "expected a body of at most {MAX_REQUEST_BYTES} bytes, but found more"
        ))
        .with_hint("set `MAX_BATCH_ROWS`"));
    }
    Ok(unpacked)
}

/// Row numbers and arguments.
fn numbered(body: &[u8]) -> Result<(Vec<u64>, Vec<Vec<Value>>)> {
    let body: SnowflakeRows = serde_json::from_slice(body).map_err(|error| {
        Error::malformed(format!(
            "expected rows in `data`, but the body is different (line {})",
            error.line()
        ))
    })?;
    let split = |mut row: Vec<Value>| {
        let number = row.first().and_then(Value::as_u64);
        let number = number.ok_or_else(|| {
            Error::malformed("expected a row number before the arguments, but found none")
        })?;
        Ok((number, row.split_off(1)))
    };
    Ok(body
        .data
        .into_iter()
        .map(split)
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .unzip())
}

/// Refuses results that are too long for a response, as strings in JSON, each with so many more bytes.
fn check_escaped(results: &[Option<String>], others: usize) -> Result<()> {
    let escaped = |json: &String| escaped_len(json) + others;
    check_size(results.iter().flatten().map(escaped).sum())
}

/// The length of JSON within a JSON string, without the quotes around it.
fn escaped_len(json: &str) -> usize {
    json.len() + json.matches(['"', '\\']).count()
}

/// Whether an event is an HTTP request.
pub fn is_request(event: &Value) -> bool {
    event.get("requestContext").is_some() && event.get("body").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_include_escapes() {
        for json in [r#"{"text": "a\n\"b\" \u0007"}"#, "0.5", "\"\u{e9}\""] {
            let sent = serde_json::to_string(json).unwrap();
            assert_eq!(escaped_len(json) + 2, sent.len(), "{json}");
        }
    }
}
