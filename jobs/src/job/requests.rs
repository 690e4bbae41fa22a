//! Jobs whose rows are requests in the file format of OpenAI's Batch API: each line of the output is a response.

use std::{fmt::Debug, sync::Arc};

use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::predictor::Predictor;
use crate::output::answer::{Answer, Answers, Cell, Columns, ErrorKind, RowError};
use kivu::{Result, task::requests::Respond};

/// Requests that are processed at once, within a chunk of rows.
const AT_ONCE: usize = 8;
/// The only route that requests may name.
const URL: &str = "/v1/embeddings";
const OK: u16 = 200;
/// Error code for a line that is not a request.
const INVALID: &str = "invalid_request";

/// A line of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Request<'a> {
    custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// A line of the output.
#[derive(Serialize)]
struct Output<'a> {
    id: String,
    custom_id: Option<&'a str>,
    response: Option<Response>,
    error: Option<Refusal>,
}

#[derive(Serialize)]
struct Response {
    status_code: u16,
    request_id: String,
    body: Box<RawValue>,
}

#[derive(Serialize)]
struct Refusal {
    code: &'static str,
    message: String,
}

impl<'a> Request<'a> {
    fn parse(line: &'a str) -> Result<Self, String> {
        let request: Self = serde_json::from_str(line).map_err(|error| {
            format!(
                "the line is not a request with `custom_id`, `method`, `url` and `body`: {error}"
            )
        })?;
        for (field, expected, found) in [
            ("method", "POST", &request.method),
            ("url", URL, &request.url),
        ] {
            if found != expected {
                return Err(format!(
                    "expected `{expected}` in `{field}`, but found `{found}`"
                ));
            }
        }
        Ok(request)
    }
}

/// Computes rows' answers.
#[derive(Debug)]
pub enum Answerer {
    Model(Box<Predictor>),
    Requests(Arc<dyn Respond>),
}

impl Answerer {
    pub fn columns(&self) -> Columns {
        match self {
            Self::Model(predictor) => predictor.columns(),
            Self::Requests(_) => [].into(),
        }
    }

    pub async fn answer(&self, rows: Vec<Result<String, RowError>>) -> Result<Answers> {
        let responder = match self {
            Self::Model(predictor) => return predictor.predict(rows).await,
            Self::Requests(responder) => responder.as_ref(),
        };
        let responses = rows.into_iter().map(|row| respond(responder, row));
        let responses: Vec<(Result<Answer, RowError>, u64)> =
            stream::iter(responses).buffered(AT_ONCE).collect().await;
        let mut answers = Answers::default();
        for (result, tokens) in responses {
            answers.tokens += tokens;
            answers.results.push(result);
        }
        Ok(answers)
    }
}

/// A row's response, as the only cell or as the error's, and its input tokens.
async fn respond(
    responder: &dyn Respond,
    row: Result<String, RowError>,
) -> (Result<Answer, RowError>, u64) {
    let (output, is_ok, tokens) = match &row {
        Ok(line) => match Request::parse(line) {
            Ok(request) => {
                let (status, body) = responder.respond(request.body.get()).await;
                let (output, tokens) = responded(line, &request, status, body);
                (output, status == OK, tokens)
            }
            Err(message) => (refused(line, message), false, 0),
        },
        Err(error) => {
            let message = error.message.to_string();
            (refused(&message, message.clone()), false, 0)
        }
    };
    if is_ok {
        return (Ok(Answer::from([Cell::Text(output.into())])), tokens);
    }
    let error = row
        .err()
        .unwrap_or_else(|| RowError::new(ErrorKind::Input, "the response has an error"));
    let error = RowError {
        response: Some(output),
        ..error
    };
    (Err(error), tokens)
}

/// The ids of a line's response, which are the same in each run.
fn ids(line: &str) -> (String, String) {
    let hash = blake3::hash(line.as_bytes()).to_hex();
    (
        format!("batch_req_{}", &hash[..32]),
        format!("req_{}", &hash[32..]),
    )
}

/// The response to a line that is not a request, with the line's own id if it has one.
fn refused(line: &str, message: String) -> String {
    #[derive(Deserialize)]
    struct Named {
        custom_id: String,
    }

    let named = serde_json::from_str::<Named>(line).ok();
    written(&Output {
        id: ids(line).0,
        custom_id: named.as_ref().map(|named| named.custom_id.as_str()),
        response: None,
        error: Some(Refusal {
            code: INVALID,
            message,
        }),
    })
}

fn responded(line: &str, request: &Request<'_>, status: u16, body: String) -> (String, u64) {
    #[derive(Deserialize)]
    struct Body {
        usage: Option<Usage>,
    }
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: u64,
    }

    let usage = serde_json::from_str::<Body>(&body)
        .ok()
        .and_then(|body| body.usage);
    let (id, request_id) = ids(line);
    let output = Output {
        id,
        custom_id: Some(&request.custom_id),
        response: Some(Response {
            status_code: status,
            request_id,
            body: RawValue::from_string(body).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        }),
        error: None,
    };
    (
        written(&output),
        usage.map_or(0, |usage| usage.prompt_tokens),
    )
}

fn written(output: &Output<'_>) -> String {
    serde_json::to_string(output).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_requests_are_refused_by_name() {
        let refused = |line: &str| Request::parse(line).err().unwrap();
        insta::assert_snapshot!(refused(r#"{"custom_id": "a", "method": "GET", "url": "/v1/embeddings", "body": {}}"#), @"expected `POST` in `method`, but found `GET`");
        insta::assert_snapshot!(refused(r#"{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}"#), @"expected `/v1/embeddings` in `url`, but found `/v1/chat/completions`");
        insta::assert_snapshot!(refused(r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings"}"#), @"the line is not a request with `custom_id`, `method`, `url` and `body`: missing field `body` at line 1 column 61");
        insta::assert_snapshot!(refused(r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}, "priority": 1}"#), @"the line is not a request with `custom_id`, `method`, `url` and `body`: unknown field `priority`, expected one of `custom_id`, `method`, `url`, `body` at line 1 column 84");
        assert!(refused("{").contains("EOF"));
    }

    /// OpenAI's clients find the request of a response, or of an error, by this id.
    #[test]
    fn refusals_keep_the_id_of_their_line() {
        let id = |line: &str| {
            let output: serde_json::Value =
                serde_json::from_str(&refused(line, String::new())).unwrap();
            output["custom_id"].clone()
        };
        assert_eq!(
            id(r#"{"custom_id": "a", "method": "GET", "url": "/v1/rerank"}"#),
            "a"
        );
        for line in [
            "",
            "{",
            "[]",
            r#"{"custom_id": 7}"#,
            r#"{"method": "POST"}"#,
        ] {
            assert!(id(line).is_null(), "{line}");
        }
    }
}
