//! The Lambda function behind API Gateway or a load balancer, with the same router as `kivu serve`.

mod flush;
mod response_size;
#[path = "../snapshot.rs"]
mod snapshot;
#[path = "../start.rs"]
mod start;
mod streaming;

use std::{
    convert::Infallible,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum::Router;
use futures::{FutureExt, future::BoxFuture};
use kivu::{
    backend::Deadline,
    cloud::Cloud,
    config::{Limits, LogFormat},
    model::Catalog,
    telemetry::{self, Embedded, Otlp, start_log},
};
use kivu_http::{App, BindScope, GatewayVerified, Guard, LazyRouter, below, cors, router};
use lambda_http::{
    Adapter, Body, Error, IntoResponse, LambdaEvent, Request, RequestExt, Response,
    http::{HeaderValue, Uri},
    lambda_runtime::{LambdaInvocation, Runtime, layers::TracingLayer},
    request::{LambdaRequest, RequestContext},
    service_fn,
    tower::ServiceExt,
};
use lambda_runtime_api_client::PooledClient;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, json};
use tokio::sync::SetOnce;

use crate::{
    flush::FlushLayer,
    snapshot::{Restorable, log},
    start::{Start, time_left},
    streaming::StreamLayer,
};

/// Time reserved for sending a response before the function's deadline.
const MARGIN: Duration = Duration::from_millis(200);

/// Lambda restarts an on-demand environment that is not ready after 10 s, and gives a restore as long. Models with longer load
/// times keep loading while the first requests wait, and so do keys that cannot be read.
const START_TIMEOUT: Duration = Duration::from_secs(9);

/// Environments for provisioned concurrency and Managed Instances have minutes to start.
const PROVISIONED_START_TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let started = Instant::now();
    start_log(LogFormat::Json);
    let configured = Function::configure().and_then(|function| Ok((function, is_streaming()?)));
    let (function, is_streaming) = configured.inspect_err(log)?;
    let function = Arc::new(function);
    if !snapshot::is_taken() {
        function.serve(started, start_timeout()).await?;
    }
    let buffered = Arc::clone(&function);
    let handler = Adapter::from(service_fn(move |request| {
        answer(Arc::clone(&buffered), request)
    }));
    let handler = handler.map_request(|event: LambdaEvent<Event>| {
        let LambdaEvent {
            payload: Event(request),
            context,
            ..
        } = event;
        LambdaEvent::new(request, context)
    });
    let store = function.cloud.store.clone();
    let runtime = snapshot::register(Runtime::new(handler), store, Arc::clone(&function) as _);
    let flush = FlushLayer(Arc::clone(&function));
    // Concurrent requests occur on Lambda Managed Instances only.
    if !is_streaming {
        return runtime
            .layer(flush)
            .layer(TracingLayer::new())
            .run_concurrent()
            .await;
    }
    let handler = move |invocation: &LambdaInvocation| stream(&function, invocation);
    let layer = StreamLayer {
        handler,
        runtime_api: Arc::new(PooledClient::builder().build()),
    };
    runtime
        .layer(layer)
        .layer(flush)
        .layer(TracingLayer::new())
        .run_concurrent()
        .await
}

/// The function, from its start on.
struct Function {
    start: Start,
    cloud: Cloud,
    /// The models in a snapshot.
    models: OnceLock<Arc<Catalog>>,
    /// Set before the first request.
    service: SetOnce<Service>,
}

/// Shared state of requests, besides the models.
struct Service {
    router: LazyRouter,
    otlp: Option<Otlp>,
    metrics: Embedded,
}

impl Function {
    fn configure() -> kivu::Result<Self> {
        let start = Start::read("api")?;
        Ok(Self {
            cloud: kivu_aws::cloud(&start.config),
            start,
            models: OnceLock::new(),
            service: SetOnce::new(),
        })
    }

    fn start_telemetry(&self) -> kivu::Result<(Option<Otlp>, Embedded)> {
        let otlp = self.start.exporter()?;
        let metrics = Embedded::install(&self.start.name, otlp.as_ref())?;
        Ok((otlp, metrics))
    }

    /// Begins to serve requests. Waits up to `limit` for what they need.
    async fn serve(self: &Arc<Self>, started: Instant, limit: Duration) -> Result<(), Error> {
        let (otlp, metrics) = self.start_telemetry().inspect_err(log)?;
        let (function, exporter) = (Arc::clone(self), otlp.clone());
        let router = LazyRouter::new(self.start.config.prefix.as_deref(), move || {
            load(Arc::clone(&function), exporter.clone(), started)
        });
        let service = Service {
            router,
            otlp,
            metrics,
        };
        // It is called once.
        let _ = self.service.set(service);
        self.service.wait().await.router.prepare(limit).await?;
        Ok(())
    }

    /// The models, which a snapshot has already.
    fn models(&self) -> kivu::Result<Arc<Catalog>> {
        match self.models.get() {
            Some(models) => Ok(Arc::clone(models)),
            None => Catalog::open(&self.start.config, &self.cloud).map(Arc::new),
        }
    }
}

impl Restorable for Function {
    fn load(&self) -> kivu::Result<Arc<Catalog>> {
        // Wrong settings end the deployment instead of all restores.
        Guard::new(&self.start.config.auth, BindScope::ApiGateway, &self.cloud)?;
        let models = self.models()?;
        Ok(Arc::clone(self.models.get_or_init(|| models)))
    }

    fn limits(&self) -> &Limits {
        &self.start.config.limits
    }

    fn start(self: Arc<Self>) -> BoxFuture<'static, Result<(), Error>> {
        async move { self.serve(Instant::now(), START_TIMEOUT).await }.boxed()
    }
}

/// Whether responses are streamed, which a function URL and a REST API in streaming mode understand.
fn is_streaming() -> kivu::Result<bool> {
    match env::var("RESPONSE_MODE").as_deref() {
        Err(_) | Ok("buffered") => Ok(false),
        Ok("streaming") => Ok(true),
        Ok(found) => Err(kivu::Error::config(format!(
            "expected `RESPONSE_MODE` to be `buffered` or `streaming`, but found `{found}`"
        ))),
    }
}

/// How long to wait for the models before accepting requests.
fn start_timeout() -> Duration {
    match env::var("AWS_LAMBDA_INITIALIZATION_TYPE").as_deref() {
        Ok("on-demand") | Err(_) => START_TIMEOUT,
        Ok(_) => PROVISIONED_START_TIMEOUT,
    }
}

/// Answers a request and writes the recorded metrics to the log.
async fn answer(function: Arc<Function>, request: Request) -> Result<Response<Body>, Infallible> {
    let mut request = prepare(request);
    let limit = response_size::limit(&request);
    request.extensions_mut().insert(limit);
    let service = function.service.wait().await;
    let response = service
        .router
        .respond(request.map(axum::body::Body::new))
        .await;
    let response = response.into_response().await;
    service.metrics.flush();
    Ok(response)
}

/// The response to an invocation; `None` if it is no HTTP request, which the runtime reports, or a load balancer's, which
/// does not read streams. Lambda accepts either form for each invocation.
fn stream(
    function: &Arc<Function>,
    invocation: &LambdaInvocation,
) -> Option<BoxFuture<'static, Response<axum::body::Body>>> {
    // `lambda_http` panics at URLs that it cannot build.
    let request = catch_unwind(AssertUnwindSafe(|| http_request(invocation))).ok()??;
    if response_size::is_balanced(&request) {
        return None;
    }
    let function = Arc::clone(function);
    let respond = async move {
        let service = function.service.wait().await;
        let response = service
            .router
            .respond(prepare(request).map(axum::body::Body::new))
            .await;
        service.metrics.flush();
        response
    };
    Some(respond.boxed())
}

fn http_request(invocation: &LambdaInvocation) -> Option<Request> {
    let Event(event) = serde_json::from_slice(&invocation.body).ok()?;
    let mut request = Request::from(event);
    let trace = invocation.context.xray_trace_id.as_deref();
    if let Some(trace) = trace.and_then(|trace| HeaderValue::from_str(trace).ok()) {
        request.headers_mut().insert("x-amzn-trace-id", trace);
    }
    Some(request.with_lambda_context(invocation.context.clone()))
}

async fn load(
    function: Arc<Function>,
    otlp: Option<Otlp>,
    started: Instant,
) -> kivu::Result<Router> {
    let config = &function.start.config;
    let guard = Guard::new(&config.auth, BindScope::ApiGateway, &function.cloud)?;
    let loading = Arc::clone(&function);
    let models = tokio::task::spawn_blocking(move || loading.models());
    // An error is logged here; the next request reads the keys again, and fails if that fails.
    let _ = guard.prepare().await;
    let models = models
        .await
        .map_err(|_| kivu::Error::model("loading the models panicked"))??;
    telemetry::record_cold_start(started.elapsed());
    let app = App {
        guard,
        has_page: config.page,
        slow_request: config.slow_request(),
        ..App::of_catalog(models, config.limits.clone())
    };
    if let Some(otlp) = &otlp {
        app.export(otlp);
    }
    let router = below(config.prefix.as_deref(), router(app));
    Ok(cors(router, config.cors_origins.clone()))
}

/// ASCII characters that a URL's query cannot have.
const INVALID_IN_URLS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

/// Type of a schedule's event, which keeps the function warm. It is answered as a health check.
const SCHEDULED: &str = "Scheduled Event";

/// An API Gateway or load balancer event without host and scheme, and with an encoded query: `lambda_http` builds a URL
/// from these, which clients can choose, and panics if it is invalid.
struct Event(LambdaRequest);

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut event = Value::deserialize(deserializer)?;
        if event["detail-type"] == SCHEDULED {
            event = health_check();
        }
        for headers in ["headers", "multiValueHeaders"] {
            if let Some(headers) = event.get_mut(headers).and_then(Value::as_object_mut) {
                headers.retain(|name, _| {
                    !name.eq_ignore_ascii_case("host")
                        && !name.eq_ignore_ascii_case("x-forwarded-proto")
                });
            }
        }
        if let Some(context) = event
            .get_mut("requestContext")
            .and_then(Value::as_object_mut)
        {
            context.remove("domainName");
        }
        if let Some(Value::String(query)) = event.get_mut("rawQueryString") {
            *query = utf8_percent_encode(query, INVALID_IN_URLS).to_string();
        }
        serde_json::from_value(event)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// The event of a load balancer's health check.
fn health_check() -> Value {
    json!({
        "requestContext": { "elb": { "targetGroupArn": "" } },
        "httpMethod": "GET",
        "path": "/health",
        "queryStringParameters": {},
        "headers": {},
        "isBase64Encoded": false,
    })
}

/// Removes the stage from the path, and adds the function's deadline.
fn prepare(mut request: Request) -> Request {
    if let Some(uri) = without_stage(&request) {
        *request.uri_mut() = uri;
    }
    if is_vouched_for(&request) {
        request.extensions_mut().insert(GatewayVerified);
    }
    let context = request.lambda_context_ref();
    if let Some(left) = context.and_then(|context| time_left(context.deadline)) {
        request
            .extensions_mut()
            .insert(Deadline::within(left.saturating_sub(MARGIN)));
    }
    request
}

/// Whether API Gateway has verified a signature or a token.
fn is_vouched_for(request: &Request) -> bool {
    match request.request_context_ref() {
        Some(RequestContext::ApiGatewayV2(context)) => context
            .authorizer
            .as_ref()
            .is_some_and(|by| by.iam.is_some() || by.jwt.is_some()),
        Some(RequestContext::ApiGatewayV1(context)) => {
            context.identity.user_arn.is_some() || context.authorizer.jwt.is_some()
        }
        _ => false,
    }
}

/// API Gateway keeps a named stage in the path of HTTP APIs, and `lambda_http` adds it to the path of REST APIs.
fn without_stage(request: &Request) -> Option<Uri> {
    let path = request.raw_http_path();
    let path = match request.request_context_ref()? {
        RequestContext::ApiGatewayV2(context) => {
            let stage = context.stage.as_deref().unwrap_or_default();
            let rest = path
                .strip_prefix('/')
                .and_then(|path| path.strip_prefix(stage));
            rest.filter(|rest| rest.is_empty() || rest.starts_with('/'))
                .unwrap_or(path)
        }
        _ => path,
    };
    let path = if path.is_empty() { "/" } else { path };
    match request.uri().query() {
        Some(query) => format!("{path}?{query}").parse().ok(),
        None => path.parse().ok(),
    }
}
