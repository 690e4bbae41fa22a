//! Responses to a load balancer, which takes shorter ones than API Gateway.

use kivu::api::LazyRouter;
use lambda_http::{
    Body, IntoResponse, Request, RequestExt, Response,
    http::{HeaderName, HeaderValue},
    request::RequestContext,
};

/// A load balancer answers 502 instead of a longer response. The limit is for the JSON that contains it.
const MAX_BYTES: usize = 1_000_000;

/// The header with a request's id.
const REQUEST_ID: &str = "x-request-id";

/// The path of a request through a load balancer.
pub(crate) fn path(request: &Request) -> Option<String> {
    match request.request_context_ref() {
        Some(RequestContext::Alb(_)) => Some(request.uri().path().to_owned()),
        _ => None,
    }
}

/// The response, or a refusal if it is too long.
pub(crate) async fn fit(
    response: Response<Body>,
    router: &LazyRouter,
    path: &str,
) -> Response<Body> {
    let size = encoded_size(&response);
    if size <= MAX_BYTES {
        return response;
    }
    tracing::warn!(bytes = size, "the response is too long for a load balancer");
    let error = kivu::Error::too_large(format!(
        "expected a response of at most {MAX_BYTES} bytes, the load balancer's limit, but found {size}; send fewer \
         texts at once"
    ));
    let id = response.headers().get(REQUEST_ID).cloned();
    let mut refusal = router.refuse(path, error).into_response().await;
    id.and_then(|id| refusal.headers_mut().insert(REQUEST_ID, id));
    refusal
}

/// The size of a response in JSON, where text is escaped, other bodies are base64, and headers occur twice.
fn encoded_size(response: &Response<Body>) -> usize {
    /// Field names, status and punctuation.
    const OVERHEAD: usize = 256;
    let body = match response.body() {
        Body::Text(text) => serde_json::to_string(text).map_or(usize::MAX, |json| json.len()),
        Body::Binary(bytes) => bytes.len().div_ceil(3) * 4,
        _ => 0,
    };
    let header = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 8;
    let headers: usize = response.headers().iter().map(header).sum();
    body.saturating_add(2 * headers + OVERHEAD)
}
