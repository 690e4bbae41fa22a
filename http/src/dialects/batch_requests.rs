//! Answers the requests in a batch job's rows with the code that answers them over HTTP.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    body::to_bytes,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
};
use futures::FutureExt;

use super::{Dialect, openai};
use crate::{
    bodies::{
        rejection::{ApiResult, Rejection},
        request::{Context, JsonRequest, parse},
    },
    service::{
        app::App,
        models::caller_models::{AllowedModels, CallerModels},
    },
};
use kivu::{
    Error,
    config::Limits,
    json::Budget,
    task::requests::{Requests, Respond},
};

/// Attempts per request, if the model or its fleet fails for now.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// Answers requests within `limits` with the job's model.
pub fn batch_requests(limits: Limits) -> Requests {
    Requests {
        limits,
        responder: |model, limits| {
            let app = App::new(vec![model.clone()], limits.clone());
            Arc::new(Responder(Arc::new(app)))
        },
    }
}

#[derive(Debug)]
struct Responder(Arc<App>);

impl Responder {
    async fn reply(&self, body: &str) -> ApiResult {
        let limits = &self.0.limits;
        if body.len() > limits.body_bytes {
            return Err(Error::too_large(format!(
                "expected a body of at most {} bytes, but found {}",
                limits.body_bytes,
                body.len()
            ))
            .into());
        }
        // The job's model is the only one.
        let models = CallerModels::new(&self.0, AllowedModels::All);
        let context = Context::in_background(&self.0, models);
        let body = parse(body.as_bytes(), Budget::new(body.len(), limits.texts))?;
        openai::embeddings(HeaderMap::new(), JsonRequest(context, body)).await
    }
}

/// The status and the body of a reply, which OpenAI's errors have.
async fn written(reply: ApiResult) -> (StatusCode, String) {
    let response = reply.unwrap_or_else(|rejection| {
        let mut response = StatusCode::OK.into_response();
        Dialect::OpenAi.complete(&rejection, &mut response);
        if response.status().is_server_error() {
            tracing::error!(cause = rejection.chain(), "a request in a batch job failed");
        }
        response
    });
    let (status, body) = (response.status(), response.into_body());
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[async_trait]
impl Respond for Responder {
    async fn respond(&self, body: &str) -> (u16, String) {
        let mut attempt = 1;
        loop {
            let reply = AssertUnwindSafe(self.reply(body)).catch_unwind().await;
            let reply = reply.unwrap_or_else(|_| {
                let message = "the request failed";
                Err(Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            });
            let (status, body) = written(reply).await;
            let is_temporary = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            if !is_temporary || attempt == ATTEMPTS {
                return (status.as_u16(), body);
            }
            tokio::time::sleep(PAUSE * attempt).await;
            attempt += 1;
        }
    }
}
