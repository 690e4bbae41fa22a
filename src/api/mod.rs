//! The HTTP API: one router for all dialects, for `kivu serve` and for the function behind API Gateway.

mod app;
mod auth;
mod classification;
mod content_encoding;
mod dialect;
mod embedding;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/readers/api.rs"]
pub(crate) mod fuzzing;
mod inputs;
mod kserve;
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
mod tokens;
mod translation;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{Method, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::{
    app::App,
    auth::{BindScope, GatewayVerified, Guard, make_key},
    startup::LazyRouter,
};
use self::{
    dialect::Dialect,
    openapi::at,
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
    let document = openapi::Document { routes: || routes().into_openapi(), json: OnceLock::new() };
    Router::from(routes())
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(Arc::new(document)))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

/// All routes, with their declarations in the OpenAPI document.
fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::info())
        .routes(routes!(page::page_or_health, tasks::default_task))
        .routes(routes!(page::docs))
        .routes(routes!(openapi::openapi))
        .routes(routes!(server::health))
        .routes(at("/ping", routes!(server::health)))
        .routes(routes!(server::info))
        .routes(routes!(server::metrics))
        .routes(routes!(embedding::embed))
        .routes(routes!(embedding::embed_all))
        .routes(routes!(embedding::similarity))
        .routes(routes!(classification::predict))
        .routes(routes!(ranking::rerank))
        .routes(routes!(translation::translate))
        .routes(routes!(tokens::tokenize))
        .routes(routes!(tokens::decode))
        .routes(routes!(server::list))
        .routes(routes!(tasks::infer))
        .routes(routes!(ranking::jina))
        .routes(routes!(ranking::cohere))
        .routes(routes!(kserve::server))
        .routes(at("/v2/health/live", routes!(server::health)))
        .routes(at("/v2/health/ready", routes!(server::health)))
        .routes(routes!(kserve::index))
        .routes(routes!(kserve::metadata))
        .routes(routes!(kserve::model_ready))
        .routes(routes!(kserve::config))
        .routes(routes!(kserve::infer))
        .routes(at("/v2/models/{model}/versions/{version}", routes!(kserve::metadata)))
        .routes(at("/v2/models/{model}/versions/{version}/ready", routes!(kserve::model_ready)))
        .routes(at("/v2/models/{model}/versions/{version}/config", routes!(kserve::config)))
        .routes(at("/v2/models/{model}/versions/{version}/infer", routes!(kserve::infer)))
        .routes(routes!(openai::embeddings))
        .routes(routes!(openai::models))
        .routes(routes!(openai::model))
}

/// Nests a router below `prefix`, if there is one.
pub fn below(prefix: Option<&str>, router: Router) -> Router {
    match prefix {
        Some(prefix) => Router::new().nest(prefix, router),
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
            (Trace::follow(trace, run(&app, request, next)).await, caller, None)
        }
        Err(refusal) => (refusal.rejection.into_response(), None, Some(refusal.reason)),
    };
    let rejection = response.extensions_mut().remove::<Rejection>();
    if let Some(rejection) = &rejection {
        Dialect::of(&path).complete(rejection, &mut response);
    }
    let (status, took) = (response.status(), started.elapsed());
    telemetry::answered(status.as_u16(), took);
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
