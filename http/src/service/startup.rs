//! A router that is created while requests already arrive, as in a Lambda function whose models are still loading.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
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

use super::observe::Observed;
use crate::bodies::rejection::Rejection;
use kivu::{Error, Result, backend::Deadline, locked};

/// The shortest interval between a failed attempt and the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a request without its own deadline waits.
const TIMEOUT: Duration = Duration::from_secs(28);

/// An attempt to create the router, shared by all waiting requests.
type Attempt = Shared<BoxFuture<'static, Result<Router, Failed>>>;

/// An attempt's error, and when it failed.
#[derive(Clone, Debug)]
struct Failed(Arc<Error>, Instant);

/// A router that is created in the background, and again after a failure.
pub struct LazyRouter {
    make: Box<dyn Fn() -> Attempt + Send + Sync>,
    attempt: Mutex<Attempt>,
    prefix: String,
}

impl LazyRouter {
    /// Starts to create a router whose routes begin with `prefix`; must be called within a Tokio runtime.
    ///
    /// Each failed attempt is logged as `cannot start`.
    pub fn new<F>(prefix: Option<&str>, make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Router>> + Send + 'static,
    {
        let make = Box::new(move || {
            let attempt = AssertUnwindSafe(make()).catch_unwind();
            // A task runs, and logs its outcome, even if no request waits for it.
            let task = tokio::spawn(async move {
                attempt
                    .await
                    .unwrap_or_else(|_| Err(panicked()))
                    .map_err(|error| {
                        tracing::error!(error = error.chain(), "cannot start");
                        Failed(Arc::new(error), Instant::now())
                    })
            });
            let cancelled = |_| Err(Failed(Arc::new(panicked()), Instant::now()));
            async move { task.await.unwrap_or_else(cancelled) }
                .boxed()
                .shared()
        });
        Self {
            attempt: Mutex::new(make()),
            make,
            prefix: prefix.unwrap_or_default().to_owned(),
        }
    }

    /// Waits up to `limit` for the router. An error means that further attempts are useless, as after a wrong
    /// configuration; after an I/O failure, requests try again.
    pub fn prepare(&self, limit: Duration) -> BoxFuture<'_, Result<(), Arc<Error>>> {
        Box::pin(async move {
            match timeout(limit, self.attempt()).await {
                Ok(Err(Failed(error, _))) if !matches!(*error, Error::Io { .. }) => Err(error),
                _ => Ok(()),
            }
        })
    }

    /// The router's response, or 503 if there is no router within the request's deadline.
    pub fn respond(&self, request: Request) -> BoxFuture<'_, Response> {
        Box::pin(self.respond_or_refuse(request))
    }

    async fn respond_or_refuse(&self, request: Request) -> Response {
        let started = Instant::now();
        let limit = request
            .extensions()
            .get::<Deadline>()
            .map_or(TIMEOUT, Deadline::remaining);
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let rejection = match timeout(limit, self.attempt()).await {
            // The error type has no values.
            Ok(Ok(mut router)) => return router.call(request).await.into_response(),
            Ok(Err(Failed(error, _))) => {
                let message = "the models cannot be loaded at the moment; try again shortly";
                Rejection::because(unavailable, message, error)
            }
            Err(_) => Rejection::new(
                unavailable,
                "the models are still being loaded; try again shortly",
            ),
        };
        // The router observes its own requests.
        let (mut parts, _) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let observed = Observed::begun(started, &parts.method, &path, &mut parts.headers);
        let route = path.strip_prefix(&self.prefix).unwrap_or(&path);
        observed.finish(rejection.into_response(), route)
    }

    /// The current attempt, or a new one if it failed a while ago.
    fn attempt(&self) -> Attempt {
        let mut attempt = locked(&self.attempt);
        if let Some(Err(Failed(_, at))) = attempt.clone().now_or_never()
            && at.elapsed() >= RETRY_INTERVAL
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
    use tokio::sync::Notify;

    use super::*;
    use crate::bodies::request::REQUEST_ID;

    fn request(path: &str, time: Duration) -> Request {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(Deadline::within(time));
        request
    }

    fn transient() -> Error {
        Error::io("cannot read `s3://secret/place`")(std::io::Error::other("connection refused"))
    }

    async fn ask(router: &LazyRouter, path: &str, time: Duration) -> (u16, String) {
        let response = router.respond(request(path, time)).await;
        let status = response.status().as_u16();
        assert_eq!(
            response.headers().contains_key(REQUEST_ID),
            status == 503,
            "request id"
        );
        let body = axum::body::to_bytes(response.into_body(), 4096)
            .await
            .unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_transient_failure_is_retried() {
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let router = LazyRouter::new(Some("/large"), move || {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                if nth == 0 {
                    Err(transient())
                } else {
                    Ok(Router::new().route("/", get(|| async {})))
                }
            }
        });
        assert!(router.prepare(TIMEOUT).await.is_ok(), "transient");
        let (status, body) = ask(&router, "/large/v1/models", TIMEOUT).await;
        assert_eq!(status, 503);
        insta::assert_snapshot!(body, @r#"{"error":{"code":null,"message":"the models cannot be loaded at the moment; try again shortly","param":null,"type":"server_error"}}"#);
        assert_eq!(tries.load(Ordering::Relaxed), 1, "within the interval");
        tokio::time::sleep(RETRY_INTERVAL).await;
        assert_eq!(ask(&router, "/", TIMEOUT).await.0, 200);
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_request_waits_until_its_deadline() {
        let loaded = Arc::new(Notify::new());
        let waiting = Arc::clone(&loaded);
        let router = LazyRouter::new(None, move || {
            let loaded = Arc::clone(&waiting);
            async move {
                loaded.notified().await;
                Ok(Router::new().route("/", get(|| async {})))
            }
        });
        assert!(router.prepare(Duration::ZERO).await.is_ok());
        let (status, body) = ask(&router, "/v1/models", Duration::from_millis(200)).await;
        assert_eq!(status, 503);
        insta::assert_snapshot!(body, @r#"{"error":{"code":null,"message":"the models are still being loaded; try again shortly","param":null,"type":"server_error"}}"#);
        loaded.notify_one();
        assert_eq!(ask(&router, "/", TIMEOUT).await.0, 200);
    }

    #[tokio::test]
    async fn a_permanent_failure_is_returned() {
        let router = LazyRouter::new(None, || async { Err(Error::config("wrong configuration")) });
        assert_eq!(
            router.prepare(TIMEOUT).await.unwrap_err().to_string(),
            "wrong configuration"
        );
    }
}
