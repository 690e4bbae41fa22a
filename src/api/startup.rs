//! A function that is called before its models are there: they are on their way, or what they come from does not
//! answer.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio::time::timeout;
use tower_service::Service;

use super::{REQUEST_ID, in_dialect, rejection::Rejection, request_id};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    telemetry,
};

/// How long after one that failed the next attempt begins, at the soonest.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a request waits that says nothing of how long it may.
const PATIENCE: Duration = Duration::from_secs(28);

/// One attempt to make the router, which everybody who waits shares.
type Attempt = Shared<BoxFuture<'static, Result<Router, Failed>>>;

/// An attempt that failed, and when.
#[derive(Clone, Debug)]
struct Failed(Arc<Error>, Instant);

/// A router that is being made, or is made again because that failed.
pub struct LazyRouter {
    make: Box<dyn Fn() -> Attempt + Send + Sync>,
    attempt: Mutex<Attempt>,
    prefix: String,
}

impl fmt::Debug for LazyRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyRouter").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl LazyRouter {
    /// Begins to make a router, whose routes begin with `prefix`; needs a runtime around it.
    ///
    /// Each attempt that fails is in the log as `cannot start`.
    pub fn new<F>(prefix: Option<&str>, make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Router>> + Send + 'static,
    {
        let make = Box::new(move || {
            let made = tokio::spawn(make());
            // A task as well: the log has its line whether or not anybody waits.
            let told = tokio::spawn(async move {
                made.await.unwrap_or_else(|_| Err(panicked())).map_err(|error| {
                    tracing::error!(error = error.chain(), "cannot start");
                    Failed(Arc::new(error), Instant::now())
                })
            });
            let lost = |_| Err(Failed(Arc::new(panicked()), Instant::now()));
            async move { told.await.unwrap_or_else(lost) }.boxed().shared()
        });
        Self { attempt: Mutex::new(make()), make, prefix: prefix.unwrap_or_default().to_owned() }
    }

    /// Waits for the router, `patience` at most; an error if there is no use in waiting longer, since what is
    /// wrong does not pass.
    pub async fn prepare(&self, patience: Duration) -> Result<(), Arc<Error>> {
        match timeout(patience, self.attempt()).await {
            Ok(Err(Failed(error, _))) if !matches!(*error, Error::Io { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    /// The router's answer, or within the request's own deadline why there is no router.
    pub async fn answer(&self, mut request: Request) -> Response {
        let started = Instant::now();
        let patience = request.extensions().get::<Deadline>().map_or(PATIENCE, Deadline::remaining);
        let rejection = match timeout(patience, self.attempt()).await {
            // The error type has no values.
            Ok(Ok(mut router)) => return router.call(request).await.into_response(),
            Ok(Err(Failed(error, _))) => Rejection::because(
                StatusCode::SERVICE_UNAVAILABLE,
                "the models cannot be loaded at the moment; try again shortly",
                error,
            ),
            Err(_) => Rejection::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the models are still being loaded; try again shortly",
            ),
        };
        telemetry::answered(rejection.status.as_u16(), started.elapsed());
        let id = request_id(&mut request);
        let path = request.uri().path();
        let (status, cause) = (rejection.status.as_u16(), rejection.chain());
        let id_text = id.to_str().unwrap_or_default();
        tracing::error!(id = id_text, method = %request.method(), path, status, cause, "request failed");
        let mut response = in_dialect(path.strip_prefix(&self.prefix).unwrap_or(path), rejection);
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// The attempt that is under way, or has succeeded; a new one where the last failed a while ago.
    fn attempt(&self) -> Attempt {
        let mut attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(Failed(_, at))) = attempt.clone().now_or_never()
            && at.elapsed() >= PAUSE
        {
            *attempt = (self.make)();
        }
        attempt.clone()
    }
}

fn panicked() -> Error {
    Error::model("loading the models panicked")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{body::Body, routing::get};

    use super::*;

    fn request(path: &str) -> Request {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(Deadline::within(Duration::from_millis(200)));
        request
    }

    fn passing() -> Error {
        Error::io("cannot read `s3://secret/place`")(std::io::Error::other("nobody is there"))
    }

    async fn told(starting: &LazyRouter, path: &str) -> (u16, String) {
        let response = starting.answer(request(path)).await;
        let status = response.status().as_u16();
        assert_eq!(
            response.headers().contains_key(REQUEST_ID),
            status == 503,
            "whoever answers names the request"
        );
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_passes_is_tried_again_and_told_meanwhile() {
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let starting = LazyRouter::new(Some("/large"), move || {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            async move { if nth == 0 { Err(passing()) } else { Ok(Router::new().route("/", get(|| async {}))) } }
        });
        assert!(starting.prepare(PATIENCE).await.is_ok(), "it may be mended");
        let (status, body) = told(&starting, "/large/v1/models").await;
        assert_eq!(status, 503);
        insta::assert_snapshot!(body, @r#"{"error":{"message":"the models cannot be loaded at the moment; try again shortly","type":"server_error","param":null,"code":null}}"#);
        assert_eq!(tries.load(Ordering::Relaxed), 1, "not at once");
        tokio::time::sleep(PAUSE).await;
        assert_eq!(told(&starting, "/").await.0, 200);
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_takes_its_time_is_waited_for_as_long_as_the_request_may() {
        let starting = LazyRouter::new(None, || async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            Ok(Router::new().route("/", get(|| async {})))
        });
        assert!(starting.prepare(Duration::ZERO).await.is_ok());
        let (status, body) = told(&starting, "/v1/models").await;
        assert_eq!(status, 503);
        insta::assert_snapshot!(body, @r#"{"error":{"message":"the models are still being loaded; try again shortly","type":"server_error","param":null,"code":null}}"#);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(told(&starting, "/").await.0, 200);
    }

    #[tokio::test]
    async fn what_does_not_pass_ends_the_start() {
        let starting = LazyRouter::new(None, || async { Err(Error::config("expected sense")) });
        assert_eq!(starting.prepare(PATIENCE).await.unwrap_err().to_string(), "expected sense");
    }
}
