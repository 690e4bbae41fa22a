//! Applied to all requests: an id, access control, a permit, an error body, and one log line.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{
        HeaderValue, Method, StatusCode,
        header::{CONTENT_ENCODING, HeaderMap},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use http_body::Body;
use tokio::task::JoinSet;

use super::{app::App, models::caller_models::AllowedModels, query, response_limit};
use crate::{
    bodies::{
        permit_body,
        rejection::Rejection,
        request::{REQUEST_ID, request_id},
    },
    routes,
};
use kivu::{
    Error,
    telemetry::{
        self,
        request::{Outcome, RequestDetails, RequestRecord, Stage},
        trace::Trace,
    },
};

/// The log target, by which lines are filtered.
const TARGET: &str = "kivu::api";

/// A request as it is logged.
pub struct Observed {
    record: Arc<RequestRecord>,
    id: HeaderValue,
    method: Method,
    path: String,
    /// The path with names of parameters in place of their values, if there is such a route.
    route: Option<MatchedPath>,
    origin: Origin,
    /// The time after which a request is slow.
    slow: Option<Duration>,
}

/// Where a request comes from, as far as it is known.
#[derive(Default)]
struct Origin {
    /// The key's name.
    caller: Option<String>,
    /// Why the request has no access.
    refused: Option<&'static str>,
}

impl Observed {
    /// Gives a request an id, which its headers have from now on. Its span is sent even if it is not finished.
    pub fn new(method: &Method, path: &str, headers: &mut HeaderMap) -> Self {
        Self::begun(Instant::now(), method, path, headers)
    }

    /// The same for a request that began at `started`.
    pub fn begun(started: Instant, method: &Method, path: &str, headers: &mut HeaderMap) -> Self {
        let id = request_id(headers);
        let trace = Trace::read(|name| headers.get(name)?.to_str().ok());
        let record = RequestRecord::begun(started, method.as_str(), trace);
        let (method, path, origin) = (method.clone(), path.to_owned(), Origin::default());
        Self {
            record,
            id,
            method,
            path,
            route: None,
            origin,
            slow: None,
        }
    }

    /// Writes the error body, in the dialect of `route`, and the log line, which never holds texts. Server errors are
    /// logged with their causes.
    pub fn finish(self, mut response: Response, route: &str) -> Response {
        let rejection = response.extensions_mut().remove::<Rejection>();
        if let Some(rejection) = &rejection {
            routes::dialect(route).complete(rejection, &mut response);
        }
        let (status, took) = (response.status(), self.record.elapsed());
        telemetry::record_response(status.as_u16(), took);
        let matched = self.route.as_ref().map(MatchedPath::as_str);
        let outcome = Outcome {
            method: self.method.as_str(),
            route: matched,
            status: status.as_u16(),
        };
        let details = self.record.end(&outcome);
        if self.slow.is_some_and(|slow| took >= slow) {
            self.log_slow(&outcome, &details, took);
        }
        let status_code = outcome.status;
        let Self {
            record,
            id,
            method,
            path,
            origin: Origin { caller, refused },
            ..
        } = self;
        let trace = record.trace.as_ref().map(|trace| &trace.id);
        let (id_text, ms) = (id.to_str().unwrap_or_default(), ms(took));
        if let Some(rejection) = rejection.filter(|_| status.is_server_error()) {
            let cause = rejection.chain();
            tracing::error!(
                target: TARGET, id = id_text, %method, path, status = status_code, ms, caller, trace, cause, "request failed"
            );
        } else {
            tracing::info!(target: TARGET, id = id_text, %method, path, status = status_code, ms, caller, trace, refused, "request");
        }
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// Logs where a slow request's time went.
    fn log_slow(&self, outcome: &Outcome<'_>, details: &RequestDetails, took: Duration) {
        tracing::warn!(
            target: TARGET,
            id = self.id.to_str().unwrap_or_default(),
            method = outcome.method,
            route = outcome.route,
            status = outcome.status,
            model = details.model,
            texts = details.texts,
            tokens = details.tokens,
            tokenization_ms = details.ms(Stage::Tokenization),
            queue_ms = details.ms(Stage::Queue),
            run_ms = details.ms(Stage::Run),
            response_ms = details.ms(Stage::Response),
            ms = ms(took),
            trace = self.record.trace.as_ref().map(|trace| &trace.id),
            "slow request"
        );
    }
}

fn ms(took: Duration) -> f64 {
    took.as_micros() as f64 / 1000.0
}

/// Checks access, and observes the request.
pub async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let mut observed = Observed::new(&parts.method, &path, &mut parts.headers);
    (observed.route, observed.slow) = (parts.extensions.get().cloned(), app.slow_request);
    if parts.method == Method::OPTIONS {
        // A CORS preflight: browsers send it without credentials, and require success. API Gateway adds the headers
        // that allow other origins.
        return observed.finish(StatusCode::NO_CONTENT.into_response(), &path);
    }
    if let Some(name) = repeated(&parts.headers) {
        let message = format!("expected the header `{name}` once, but found it several times");
        let rejection = Rejection::new(StatusCode::BAD_REQUEST, message);
        return observed.finish(rejection.into_response(), &path);
    }
    let access = match routes::is_open(&path, &parts.method) {
        true => Ok(None),
        false => app.guard.admit(&parts).await.map(Some),
    };
    let response = match access {
        Ok(admitted) => {
            let mut query = Ok(());
            if let Some(caller) = admitted {
                query = query::check(&parts);
                let allowed = AllowedModels::of_caller(caller.as_ref());
                parts.extensions.insert(allowed);
                observed.origin.caller = caller.map(|caller| caller.name);
            }
            let request = Request::from_parts(parts, body);
            match query {
                Ok(()) => run(&app, request, next, Arc::clone(&observed.record)).await,
                Err(error) => Rejection::from(error).into_response(),
            }
        }
        Err(refusal) => {
            observed.origin = Origin {
                caller: refusal.caller,
                refused: Some(refusal.reason),
            };
            refusal.rejection.into_response()
        }
    };
    observed.finish(response, &path)
}

/// A header with several values although it may have one only: a proxy could check another value than the one that counts
/// here.
fn repeated(headers: &HeaderMap) -> Option<&'static str> {
    const SINGLE: [&str; 6] = [
        "host",
        "origin",
        "authorization",
        "x-api-key",
        "content-type",
        "inference-header-content-length",
    ];
    let is_repeated = |name: &&str| headers.get_all(*name).iter().nth(1).is_some();
    SINGLE.into_iter().find(is_repeated)
}

/// Bytes of a body whose values can be read, and its response written, on the connection's thread: even with a vector
/// for each of its characters.
const MAX_SHORT_BODY: u64 = 2 * 1024;

/// Whether a request's body is known to be short.
fn is_short(request: &Request) -> bool {
    let upper = request.body().size_hint().upper();
    upper.is_some_and(|bytes| bytes <= MAX_SHORT_BODY)
        && !request.headers().contains_key(CONTENT_ENCODING)
}

/// Runs a request if a permit is free.
async fn run(app: &App, request: Request, next: Next, record: Arc<RequestRecord>) -> Response {
    // Other methods run no model and read no long body: health checks pass even when the server is busy.
    let permit = match *request.method() {
        Method::POST => match Arc::clone(&app.permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let overloaded = Error::Overloaded {
                    limit: app.limits.requests,
                    unit: "requests",
                };
                return Rejection::from(overloaded).into_response();
            }
        },
        _ => None,
    };
    let runtime = app.long_requests.as_ref().filter(|_| !is_short(&request));
    // The limit follows the work to the other runtime.
    let limit = request.extensions().get().copied();
    let work = record.follow(response_limit::within(limit, next.run(request)));
    let response = match runtime {
        Some(runtime) => {
            // Ends with the request.
            let mut task = JoinSet::new();
            task.spawn_on(work, runtime);
            task.join_next().await.and_then(Result::ok)
        }
        None => AssertUnwindSafe(work).catch_unwind().await.ok(),
    };
    let response = response.unwrap_or_else(|| {
        Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed").into_response()
    });
    match permit {
        Some(permit) => permit_body::hold(permit, response),
        None => response,
    }
}

#[cfg(test)]
mod tests {
    use tower_service::Service;

    use super::*;
    use crate::router;
    use kivu::config::Limits;

    #[tokio::test]
    async fn headers_with_one_value_occur_once() {
        let status = async |headers: &[(&str, &str)]| {
            let request = headers
                .iter()
                .fold(Request::get("/models"), |request, (name, value)| {
                    request.header(*name, *value)
                });
            let mut router = router(App::new(Vec::new(), Limits::default()));
            let response = router
                .call(request.body(axum::body::Body::empty()).unwrap())
                .await;
            response.unwrap().status()
        };
        for name in [
            "host",
            "origin",
            "authorization",
            "x-api-key",
            "content-type",
        ] {
            assert_eq!(status(&[(name, "a")]).await, StatusCode::OK, "{name}");
            for other in ["a", "b"] {
                let found = status(&[(name, "a"), (name, other)]).await;
                assert_eq!(found, StatusCode::BAD_REQUEST, "{name}");
            }
        }
        assert_eq!(
            status(&[("accept", "a"), ("accept", "b")]).await,
            StatusCode::OK
        );
    }
}
