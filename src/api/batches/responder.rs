//! Responds to a batch's requests, with the code that handles them over HTTP.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    body::to_bytes,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
};
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{
    object::{BatchRecord, Endpoint},
    validation::Line,
};
use crate::{
    api::{
        app::{App, restricted_to},
        dialect::Dialect,
        files::now,
        openai,
        rejection::{Rejection, Reply},
        request::{Call, Context, parse},
    },
    batch::{LineResponse, Respond},
    error::Error,
    json::Budget,
};

/// Attempts per request, if the model or its fleet fails for now.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// Error codes for requests that did not run.
pub(super) const CANCELLED: &str = "batch_cancelled";
pub(super) const EXPIRED: &str = "batch_expired";

#[derive(Debug)]
pub(super) struct Responder {
    app: Arc<App>,
    models: Vec<String>,
    endpoint: Endpoint,
    expires_at: u64,
    is_cancelled: AtomicBool,
}

/// An output line.
#[derive(Serialize)]
struct OutputLine<'a> {
    id: String,
    custom_id: &'a str,
    response: Option<OutputResponse>,
    error: Option<OutputError>,
}

#[derive(Serialize)]
struct OutputResponse {
    status_code: u16,
    request_id: String,
    body: Box<RawValue>,
}

#[derive(Serialize)]
struct OutputError {
    code: &'static str,
    message: &'static str,
}

/// A body's usage.
#[derive(Deserialize)]
struct Usage {
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Tokens {
    prompt_tokens: u64,
}

impl Responder {
    pub(super) fn new(app: Arc<App>, record: &BatchRecord) -> Self {
        Self {
            app,
            models: record.models.clone(),
            endpoint: record.batch.endpoint(),
            expires_at: record.batch.expires_at,
            is_cancelled: AtomicBool::new(false),
        }
    }

    /// From now on, requests do not run.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Why requests do not run any more.
    fn stopped(&self) -> Option<OutputError> {
        if self.is_cancelled() {
            let message = "this request did not run before the batch was cancelled";
            return Some(OutputError {
                code: CANCELLED,
                message,
            });
        }
        let message = "this request did not run before the completion window ended";
        (now() >= self.expires_at).then_some(OutputError {
            code: EXPIRED,
            message,
        })
    }

    /// The status and the body, in JSON.
    async fn run(&self, body: &str) -> (StatusCode, String) {
        let mut attempt = 1;
        loop {
            let reply = AssertUnwindSafe(self.reply(body))
                .catch_unwind()
                .await
                .unwrap_or_else(|_| {
                    Err(Rejection::new(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "the request failed",
                    ))
                });
            let (status, body) = written(reply).await;
            let is_temporary = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            if !is_temporary || attempt == ATTEMPTS || self.is_cancelled() {
                return (status, body);
            }
            tokio::time::sleep(PAUSE * attempt).await;
            attempt += 1;
        }
    }

    async fn reply(&self, body: &str) -> Reply {
        let max = self.app.limits.body_bytes;
        if body.len() > max {
            return Err(Error::too_large(format!(
                "expected a body of at most {max} bytes, but found more"
            ))
            .into());
        }
        let context = Context::in_background(&self.app);
        match self.endpoint {
            Endpoint::Embeddings => {
                let body = parse(
                    body.as_bytes(),
                    Budget::new(body.len(), self.app.limits.texts),
                )?;
                let request = openai::embeddings(HeaderMap::new(), Call(context, body));
                restricted_to(self.models.clone(), request).await
            }
        }
    }
}

/// The status and the body of a reply, which OpenAI's errors have.
async fn written(reply: Reply) -> (StatusCode, String) {
    let dialect = Dialect::OpenAi;
    let response = reply.unwrap_or_else(|rejection| {
        let mut response = StatusCode::OK.into_response();
        dialect.complete(&rejection, &mut response);
        if response.status().is_server_error() {
            tracing::error!(cause = rejection.chain(), "a request in a batch failed");
        }
        response
    });
    let (status, body) = (response.status(), response.into_body());
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[async_trait]
impl Respond for Responder {
    async fn respond(&self, line: String) -> LineResponse {
        // The file was checked.
        let (custom_id, body) = match Line::parse(&line) {
            Ok(line) => (line.custom_id, line.body.get()),
            Err(_) => (String::new(), "null"),
        };
        let new_id = |prefix: &str| format!("{prefix}{}", Uuid::new_v4().simple());
        let mut output = OutputLine {
            id: new_id("batch_req_"),
            custom_id: &custom_id,
            response: None,
            error: self.stopped(),
        };
        let (mut is_failed, mut tokens) = (true, 0);
        if output.error.is_none() {
            let (status, body) = self.run(body).await;
            is_failed = status != StatusCode::OK;
            let usage = serde_json::from_str::<Usage>(&body)
                .ok()
                .and_then(|body| body.usage);
            tokens = usage.map_or(0, |usage| usage.prompt_tokens);
            let body = RawValue::from_string(body).unwrap_or_else(|_| RawValue::NULL.to_owned());
            let request_id = Uuid::new_v4().to_string();
            output.response = Some(OutputResponse {
                status_code: status.as_u16(),
                request_id,
                body,
            });
        }
        let line = serde_json::to_string(&output).unwrap_or_default();
        LineResponse {
            line,
            is_failed,
            tokens,
        }
    }
}
