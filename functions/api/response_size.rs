//! Limits for responses that are not streamed. Beyond them, clients get 502 after the whole computing time.

use axum::body::Body as AxumBody;
use futures::FutureExt;
use kivu_http::ResponseLimit;
use lambda_http::{
    Body, IntoResponse, Request, RequestExt, Response,
    http::{HeaderName, HeaderValue},
    request::RequestContext,
};

/// Lambda's limit for the JSON that contains a response.
const LAMBDA: ResponseLimit = ResponseLimit {
    bytes: 6_291_556,
    platform: "Lambda",
    measure: |response| measure(response, 1).boxed(),
};

/// A load balancer's. Its JSON has all headers twice.
const LOAD_BALANCER: ResponseLimit = ResponseLimit {
    bytes: 1_000_000,
    platform: "the load balancer",
    measure: |response| measure(response, 2).boxed(),
};

/// Whether a request comes through a load balancer.
pub(crate) fn is_balanced(request: &Request) -> bool {
    matches!(request.request_context_ref(), Some(RequestContext::Alb(_)))
}

/// The limit for the response to a request.
pub(crate) fn limit(request: &Request) -> ResponseLimit {
    if is_balanced(request) {
        LOAD_BALANCER
    } else {
        LAMBDA
    }
}

/// Collects a response, and returns its size in JSON, where text is escaped and other bodies are base64.
async fn measure(
    response: Response<AxumBody>,
    header_copies: usize,
) -> (Response<AxumBody>, usize) {
    /// Field names, status and punctuation.
    const OVERHEAD: usize = 256;
    let response = response.into_response().await;
    let body = match response.body() {
        Body::Text(text) => serde_json::to_string(text).map_or(usize::MAX, |json| json.len()),
        Body::Binary(bytes) => bytes.len().div_ceil(3) * 4,
        _ => 0,
    };
    let header = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 8;
    let headers: usize = response.headers().iter().map(header).sum();
    let size = body.saturating_add(header_copies * headers + OVERHEAD);
    let response = response.map(|body| match body {
        Body::Text(text) => text.into(),
        Body::Binary(bytes) => bytes.into(),
        _ => AxumBody::empty(),
    });
    (response, size)
}
