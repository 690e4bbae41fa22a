//! The HTTP API: one router for all dialects, for `kivu serve` and for the function behind API Gateway.

mod app;
mod auth;
mod body;
mod body_memory;
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
mod objects;
mod observe;
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

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};

pub use self::{
    app::App,
    auth::{BindScope, Date, GatewayVerified, Guard, KeyLimits, make_key, make_limited_key},
    startup::LazyRouter,
};
use self::{observe::Observed, rejection::Rejection};

/// The router of all dialects.
///
/// Errors are responses. Client errors are not logged as errors; server errors are logged once with their causes, which
/// the client does not see.
pub fn router(app: App) -> Router {
    let app = Arc::new(app);
    routes()
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe::observe))
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

/// Nests a router below `prefix`, if there is one. Its root is at the prefix with and without a slash at the end. All
/// other paths have no route.
pub fn below(prefix: Option<&str>, router: Router) -> Router {
    match prefix {
        Some(prefix) => Router::new().nest_service(prefix, router).fallback(outside),
        None => router,
    }
}

async fn outside(mut request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let observed = Observed::new(&method, &path, request.headers_mut());
    observed.finish(no_route(request).await.into_response(), &path)
}

async fn no_route(request: Request) -> Rejection {
    let message = format!("no route `{}`; `/docs` lists the routes", request.uri().path());
    Rejection::new(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: Request) -> Rejection {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    Rejection::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
