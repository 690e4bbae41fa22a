//! Streamed responses: the body is sent to Lambda's runtime API while it is read, behind a prelude with the status and
//! the headers. A function URL with `RESPONSE_STREAM` and a REST API with `STREAM` expect this form.
//!
//! `lambda_http` streams too, but writes an error in the middle of a body into the body, and ends the process if the
//! runtime API closes the connection.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{Future, ready},
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response,
    header::{CONTENT_TYPE, SET_COOKIE, TRAILER, TRANSFER_ENCODING},
};
use http_body::Frame;
use http_body_util::{BodyStream, StreamBody};
use lambda_http::{
    Error,
    lambda_runtime::LambdaInvocation,
    tower::{Layer, Service},
};
use lambda_runtime_api_client::{PooledClient, body::Body as SentBody, build_request};
use serde::Serialize;

const RESPONSE_MODE: HeaderName = HeaderName::from_static("lambda-runtime-function-response-mode");
const INVOCATION_ID: HeaderName = HeaderName::from_static("lambda-runtime-invocation-id");
const ERROR_TYPE: HeaderName = HeaderName::from_static("lambda-runtime-function-error-type");
const ERROR_BODY: HeaderName = HeaderName::from_static("lambda-runtime-function-error-body");
/// The prelude's format.
const HTTP_RESPONSE: HeaderValue =
    HeaderValue::from_static("application/vnd.awslambda.http-integration-response");
/// Between the prelude and the body.
const SEPARATOR: [u8; 8] = [0; 8];
/// A body that broke off, in the runtime API's form.
const BROKEN: &str = r#"{"errorType":"Runtime.StreamError","errorMessage":"the response is incomplete; the log has the cause"}"#;

/// Streams the responses of `handler`. Events for which it has none go to the inner service.
#[derive(Clone)]
pub(crate) struct StreamLayer<H> {
    pub(crate) handler: H,
    pub(crate) runtime_api: Arc<PooledClient>,
}

impl<S, H> Layer<S> for StreamLayer<H>
where
    H: Clone,
{
    type Service = StreamService<S, H>;

    fn layer(&self, inner: S) -> Self::Service {
        let Self {
            handler,
            runtime_api,
        } = self;
        StreamService {
            inner,
            handler: handler.clone(),
            runtime_api: Arc::clone(runtime_api),
        }
    }
}

#[derive(Clone)]
pub(crate) struct StreamService<S, H> {
    inner: S,
    handler: H,
    runtime_api: Arc<PooledClient>,
}

impl<S, H> Service<LambdaInvocation> for StreamService<S, H>
where
    S: Service<LambdaInvocation, Response = (), Error = Error>,
    S::Future: Send + 'static,
    H: Fn(&LambdaInvocation) -> Option<BoxFuture<'static, Response<Body>>>,
{
    type Response = ();
    type Error = Error;
    type Future = BoxFuture<'static, Result<(), Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, invocation: LambdaInvocation) -> Self::Future {
        match (self.handler)(&invocation) {
            Some(response) => send(Arc::clone(&self.runtime_api), invocation, response).boxed(),
            None => self.inner.call(invocation).boxed(),
        }
    }
}

/// Sends a response. If the runtime API stops reading it, only this invocation ends.
async fn send(
    runtime_api: Arc<PooledClient>,
    invocation: LambdaInvocation,
    response: impl Future<Output = Response<Body>>,
) -> Result<(), Error> {
    let request = request(&invocation, response.await)?;
    match runtime_api.call(request).await {
        Ok(answer) if answer.status().is_success() => {}
        Ok(answer) => tracing::error!(
            status = answer.status().as_u16(),
            "Lambda refused a response"
        ),
        Err(error) => tracing::warn!(error, "Lambda did not read a response to its end"),
    }
    Ok(())
}

/// The request to the runtime API that carries a response.
fn request(
    invocation: &LambdaInvocation,
    response: Response<Body>,
) -> Result<Request<SentBody>, Error> {
    let path = format!(
        "/2018-06-01/runtime/invocation/{}/response",
        invocation.context.request_id
    );
    let mut request = build_request()
        .method("POST")
        .uri(path)
        .header(RESPONSE_MODE, "streaming")
        .header(CONTENT_TYPE, HTTP_RESPONSE)
        .header(TRANSFER_ENCODING, "chunked")
        .header(TRAILER, ERROR_TYPE.as_str())
        .header(TRAILER, ERROR_BODY.as_str());
    // Lambda refuses a late response without the id, after an invocation that timed out.
    if let Some(id) = invocation.parts.headers.get(INVOCATION_ID) {
        request = request.header(INVOCATION_ID, id);
    }
    let (parts, body) = response.into_parts();
    let prelude = serde_json::to_vec(&Prelude::new(parts.status.as_u16(), &parts.headers))?;
    let prelude = Bytes::from([prelude.as_slice(), &SEPARATOR].concat());
    Ok(request.body(SentBody::new(StreamBody::new(frames(prelude, body))))?)
}

/// A response's status and headers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Prelude {
    status_code: u16,
    headers: BTreeMap<String, String>,
    cookies: Vec<String>,
}

impl Prelude {
    fn new(status_code: u16, found: &HeaderMap) -> Self {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let all = |name: &HeaderName| found.get_all(name).iter().map(text).collect::<Vec<_>>();
        let names = found.keys().filter(|name| **name != SET_COOKIE);
        let headers = names
            .map(|name| (name.to_string(), all(name).join(", ")))
            .collect();
        Self {
            status_code,
            headers,
            cookies: all(&SET_COOKIE),
        }
    }
}

/// The prelude and a body's data. Trailers report an error in the middle of the body.
fn frames(prelude: Bytes, body: Body) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let body = BodyStream::new(body).filter_map(|frame| {
        ready(match frame {
            Ok(frame) => frame.into_data().ok().map(Frame::data),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a response broke off"
                );
                Some(Frame::trailers(broken()))
            }
        })
    });
    stream::iter([Frame::data(prelude)]).chain(body).map(Ok)
}

fn broken() -> HeaderMap {
    let body = HeaderValue::from_str(&BASE64_STANDARD.encode(BROKEN));
    let body = body.unwrap_or_else(|_| HeaderValue::from_static(""));
    HeaderMap::from_iter([
        (ERROR_TYPE, HeaderValue::from_static("Runtime.StreamError")),
        (ERROR_BODY, body),
    ])
}
