//! The function behind API Gateway: the same router as on a laptop.

use std::{
    convert::Infallible,
    env,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::Router;
use kivu::{
    api::{App, BindScope, GatewayVerified, Guard, LazyRouter, below, router},
    backend::Deadline,
    config::{Config, LogFormat},
    model::Model,
    telemetry::{self, Embedded, start_log},
};
use lambda_http::{
    Adapter, Body, Error, IntoResponse, LambdaEvent, Request, RequestExt, Response,
    http::Uri,
    lambda_runtime,
    request::{LambdaRequest, RequestContext},
    service_fn,
    tower::ServiceExt,
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// What is left of the function's time for sending an answer that comes at the deadline.
const MARGIN: Duration = Duration::from_millis(200);

/// Lambda gives a start 10 s before it begins anew, where nothing is kept warm; what takes longer goes on while the
/// first requests wait.
const START: Duration = Duration::from_secs(9);

/// The same where environments are started ahead of requests, which have minutes.
const START_AHEAD: Duration = Duration::from_secs(120);

/// Longer than any function runs.
const LONGEST: Duration = Duration::from_hours(24);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let started = Instant::now();
    start_log(LogFormat::Json);
    let name = env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_else(|_| "api".to_owned());
    let metrics = Embedded::install(&name)?;
    let config = Config::load(None, &Config::variables());
    let config = config.inspect_err(|error| tracing::error!(error = error.chain(), "cannot start"))?;
    let prefix = config.prefix.clone();
    let starting = Arc::new(LazyRouter::new(prefix.as_deref(), move || load(config.clone(), started)));
    starting.prepare(patience()).await?;
    let handler =
        Adapter::from(service_fn(move |request| answer(Arc::clone(&starting), metrics.clone(), request)));
    let handler = handler.map_request(|event: LambdaEvent<Event>| {
        let LambdaEvent { payload: Event(request), context, .. } = event;
        LambdaEvent::new(request, context)
    });
    // One request at a time, or as many as Lambda Managed Instances say.
    lambda_runtime::run_concurrent(handler).await
}

/// How long the models are waited for before requests are taken.
fn patience() -> Duration {
    match env::var("AWS_LAMBDA_INITIALIZATION_TYPE").as_deref() {
        Ok("on-demand") | Err(_) => START,
        Ok(_) => START_AHEAD,
    }
}

/// The router's answer; what it counted goes into the log.
async fn answer(
    starting: Arc<LazyRouter>,
    metrics: Embedded,
    request: Request,
) -> Result<Response<Body>, Infallible> {
    let response = starting.answer(prepare(request).map(axum::body::Body::new)).await;
    let response = response.into_response().await;
    metrics.flush();
    Ok(response)
}

async fn load(config: Config, started: Instant) -> kivu::Result<Router> {
    let guard = Guard::new(&config.auth, BindScope::ApiGateway)?;
    let (limits, prefix, page) = (config.limits.clone(), config.prefix.clone(), config.page);
    let models = tokio::task::spawn_blocking(move || Model::open_all(&config));
    // Meanwhile. Keys that cannot be read are in the log then and are looked for again; callers hear of it.
    let _ = guard.prepare().await;
    let models = models.await.map_err(|_| kivu::Error::model("loading the models panicked"))??;
    telemetry::started(started.elapsed());
    Ok(below(prefix.as_deref(), router(App::new(models, limits).with_guard(guard).with_page(page))))
}

/// An event of API Gateway without the host and scheme that `lambda_http` builds a URL from: it panics where
/// they make none, and a client can choose them.
struct Event(LambdaRequest);

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut event = Value::deserialize(deserializer)?;
        for headers in ["headers", "multiValueHeaders"] {
            if let Some(headers) = event.get_mut(headers).and_then(Value::as_object_mut) {
                headers.retain(|name, _| {
                    !name.eq_ignore_ascii_case("host") && !name.eq_ignore_ascii_case("x-forwarded-proto")
                });
            }
        }
        if let Some(context) = event.get_mut("requestContext").and_then(Value::as_object_mut) {
            context.remove("domainName");
        }
        serde_json::from_value(event).map(Self).map_err(D::Error::custom)
    }
}

/// A request as the router knows it: without the stage in its path, and with the function's own deadline.
fn prepare(mut request: Request) -> Request {
    if let Some(uri) = without_stage(&request) {
        *request.uri_mut() = uri;
    }
    if is_vouched_for(&request) {
        request.extensions_mut().insert(GatewayVerified);
    }
    if let Some(context) = request.lambda_context_ref() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The emulator gives a deadline in the past, and others one years ahead: neither is meant.
        let left = Duration::from_millis(context.deadline).checked_sub(now);
        if let Some(left) = left.filter(|left| *left < LONGEST) {
            request.extensions_mut().insert(Deadline::within(left.saturating_sub(MARGIN)));
        }
    }
    request
}

/// Whether API Gateway has checked the caller's signature or token.
fn is_vouched_for(request: &Request) -> bool {
    match request.request_context_ref() {
        Some(RequestContext::ApiGatewayV2(context)) => {
            context.authorizer.as_ref().is_some_and(|by| by.iam.is_some() || by.jwt.is_some())
        }
        Some(RequestContext::ApiGatewayV1(context)) => {
            context.identity.user_arn.is_some() || context.authorizer.jwt.is_some()
        }
        _ => false,
    }
}

/// API Gateway leaves a named stage in the path of HTTP APIs, and `lambda_http` puts it into that of REST APIs.
fn without_stage(request: &Request) -> Option<Uri> {
    let path = request.raw_http_path();
    let path = match request.request_context_ref()? {
        RequestContext::ApiGatewayV2(context) => {
            let stage = context.stage.as_deref().unwrap_or_default();
            let rest = path.strip_prefix('/').and_then(|path| path.strip_prefix(stage));
            rest.filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(path)
        }
        _ => path,
    };
    let path = if path.is_empty() { "/" } else { path };
    match request.uri().query() {
        Some(query) => format!("{path}?{query}").parse().ok(),
        None => path.parse().ok(),
    }
}
