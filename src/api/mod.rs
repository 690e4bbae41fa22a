//! The HTTP API: one router for all dialects, for `kivu serve` and for the function behind API Gateway.

mod app;
mod auth;
mod classification;
mod cohere;
mod content_encoding;
mod dialect;
mod embedding;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod generation;
mod inputs;
mod kserve;
mod ollama;
mod openai;
mod openapi;
mod page;
mod permit_body;
mod ranking;
mod rejection;
mod request;
mod response;
mod server;
mod startup;
mod tasks;
mod token_classification;
mod tokens;
mod translation;
mod translators;
mod vectors;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use axum::{
    Router,
    extract::{Request, State},
    http::{Method, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::FutureExt;

pub use self::{
    app::App,
    auth::{BindScope, Date, GatewayVerified, Guard, KeyLimits, make_key, make_limited_key},
    startup::LazyRouter,
};
use self::{
    dialect::Dialect,
    rejection::Rejection,
    request::{REQUEST_ID, request_id},
};
use crate::{
    error::Error,
    telemetry::{self, trace::Trace},
};

/// The router of all dialects.
///
/// Errors are responses. Client errors are not logged as errors; server errors are logged once with their causes, which
/// the client does not see.
pub fn router(app: App) -> Router {
    let app = Arc::new(app);
    routes()
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

/// All routes; `openapi/openapi.json` describes each of them.
fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(page::page_or_health).post(tasks::default_task))
        .route("/docs", get(page::docs))
        .route("/openapi.json", get(openapi::openapi))
        .route("/health", get(server::health))
        .route("/ping", get(server::health))
        .route("/info", get(server::info))
        .route("/metrics", get(server::metrics))
        .route("/embed", post(embedding::embed))
        .route("/embed_all", post(embedding::embed_all))
        .route("/embed_sparse", post(embedding::embed_sparse))
        .route("/similarity", post(embedding::similarity))
        .route("/predict", post(classification::predict))
        .route("/rerank", post(ranking::rerank))
        .route("/translate", post(translators::translate))
        .route("/languages", get(translators::languages))
        .route("/invocations", post(tasks::default_task))
        .route("/vertex", post(tasks::vertex))
        .route("/tokenize", post(tokens::tokenize))
        .route("/decode", post(tokens::decode))
        .route("/models", get(server::list))
        .route("/models/{model}", post(tasks::infer))
        .route("/v1/rerank", post(ranking::jina))
        .route("/v2/rerank", post(ranking::cohere))
        .route("/v1/embed", post(cohere::embed_v1))
        .route("/v2/embed", post(cohere::embed))
        .route("/v2/translate", post(translators::deepl))
        .route("/v2/languages", get(translators::deepl_languages))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/tags", get(ollama::tags))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/v2", get(kserve::server))
        .route("/v2/health/live", get(server::health))
        .route("/v2/health/ready", get(server::health))
        .route("/v2/repository/index", post(kserve::index))
        .route("/v2/models/{model}", get(kserve::metadata))
        .route("/v2/models/{model}/ready", get(kserve::model_ready))
        .route("/v2/models/{model}/config", get(kserve::config))
        .route("/v2/models/{model}/infer", post(kserve::infer))
        .route("/v2/models/{model}/versions/{version}", get(kserve::metadata))
        .route("/v2/models/{model}/versions/{version}/ready", get(kserve::model_ready))
        .route("/v2/models/{model}/versions/{version}/config", get(kserve::config))
        .route("/v2/models/{model}/versions/{version}/infer", post(kserve::infer))
        .route("/embeddings", post(openai::embeddings))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{model}", get(openai::model))
}

/// Nests a router below `prefix`, if there is one. Its root is at the prefix with and without a slash at the end.
pub fn below(prefix: Option<&str>, router: Router) -> Router {
    match prefix {
        Some(prefix) => Router::new().nest_service(prefix, router),
        None => router,
    }
}

async fn no_route(request: Request) -> Rejection {
    let message = format!("no route `{}`; `/docs` lists the routes", request.uri().path());
    Rejection::new(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: Request) -> Rejection {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    Rejection::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Gives each request an id, checks access, writes the body of errors, and logs one line, which never holds texts.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let id = request_id(&mut parts.headers);
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let trace = Trace::read(|name| parts.headers.get(name)?.to_str().ok());
    let trace_id = trace.as_ref().map(|trace| trace.id.clone());
    let (mut response, caller, refused) = match app.guard.admit(&parts).await {
        Ok(caller) => {
            let request = Request::from_parts(parts, body);
            let (name, models) =
                caller.map_or((None, Vec::new()), |caller| (Some(caller.name), caller.models));
            let response = app::restricted_to(models, Trace::follow(trace, run(&app, request, next)));
            (response.await, name, None)
        }
        Err(refusal) => (refusal.rejection.into_response(), None, Some(refusal.reason)),
    };
    let rejection = response.extensions_mut().remove::<Rejection>();
    if let Some(rejection) = &rejection {
        Dialect::of(&path).complete(rejection, &mut response);
    }
    let (status, took) = (response.status(), started.elapsed());
    telemetry::record_response(status.as_u16(), took);
    let ms = took.as_micros() as f64 / 1000.0;
    let (id_text, status_code) = (id.to_str().unwrap_or_default(), status.as_u16());
    if let Some(rejection) = rejection.filter(|_| status.is_server_error()) {
        let cause = rejection.chain();
        tracing::error!(
            id = id_text, %method, path, status = status_code, ms, caller, trace = trace_id, cause, "request failed"
        );
    } else {
        tracing::info!(
            id = id_text, %method, path, status = status_code, ms, caller, trace = trace_id, refused, "request"
        );
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Runs a request if a permit is free.
async fn run(app: &App, request: Request, next: Next) -> Response {
    // GET requests run no model: health checks pass even when the server is busy.
    let permit = match *request.method() {
        Method::GET => None,
        _ => match Arc::clone(&app.permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                return Rejection::from(Error::Overloaded { limit: app.limits.requests }).into_response();
            }
        },
    };
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
        Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed").into_response()
    });
    match permit {
        Some(permit) => permit_body::hold(permit, response),
        None => response,
    }
}
