//! The function behind API Gateway: the same router as on a laptop.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use kivu::{
    api::{App, router},
    backend::Deadline,
    cli::start_log,
    config::{Config, LogFormat},
    model::Model,
};
use lambda_http::{
    Adapter, Error, LambdaEvent, Request, RequestExt,
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

/// Longer than any function runs.
const LONGEST: Duration = Duration::from_hours(24);

#[tokio::main]
async fn main() -> Result<(), Error> {
    start_log(LogFormat::Json);
    let router = load().inspect_err(|error| tracing::error!(error = error.chain(), "cannot start"))?;
    let handler = Adapter::from(service_fn(move |request| router.clone().oneshot(prepare(request))));
    let handler = handler.map_request(|event: LambdaEvent<Event>| {
        let LambdaEvent { payload: Event(request), context, .. } = event;
        LambdaEvent::new(request, context)
    });
    lambda_runtime::run(handler).await
}

fn load() -> kivu::Result<Router> {
    let config = Config::load(None, &Config::variables())?;
    let models = Model::open_all(&config)?;
    Ok(router(App::new(models, config.limits)))
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
