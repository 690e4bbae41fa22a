//! The function behind API Gateway: the same router as on a laptop.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kivu::{
    api::{App, router},
    backend::Deadline,
    cli::start_log,
    config::{Config, LogFormat},
    model::Model,
};
use lambda_http::{
    Error, Request, RequestExt, http::Uri, request::RequestContext, run, service_fn, tower::ServiceExt,
};

/// What is left of the function's time for sending an answer that comes at the deadline.
const MARGIN: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let config = Config::load(None, &Config::variables())?;
    start_log(LogFormat::Json);
    let models = Model::open_all(&config)?;
    let router = router(App::new(models, config.limits));
    run(service_fn(move |request| router.clone().oneshot(prepare(request)))).await
}

/// A request as the router knows it: without the stage in its path, and with the function's own deadline.
fn prepare(mut request: Request) -> Request {
    if let Some(uri) = without_stage(&request) {
        *request.uri_mut() = uri;
    }
    if let Some(context) = request.lambda_context_ref() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_millis(context.deadline).saturating_sub(now);
        // The runtime API gives a deadline even where nothing ends at it; years ahead would overflow.
        let left = left.saturating_sub(MARGIN).min(Duration::from_hours(1));
        request.extensions_mut().insert(Deadline::within(left));
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
