//! All routes. The router, access control, error bodies and the OpenAPI document are made from this table.

mod gliner2;
mod hub;
mod kserve;
mod ollama;
mod openai;
mod tei;
mod translation;

use std::sync::Arc;

use axum::{Router, extract::State, http::Method};

use super::{
    bodies::rejection::ApiResult,
    dialects::{Dialect, bedrock, cohere},
    page,
    service::{
        app::App,
        info, openapi,
        route::{Api, Route, RouteMethod, get},
    },
};
use kivu::json_schemas::Object;

/// The APIs, in the order of `/docs`.
static APIS: &[Api] = &[
    tei::TEI,
    openai::OPENAI,
    hub::HUB,
    gliner2::GLINER2,
    cohere::COHERE,
    bedrock::BEDROCK,
    openai::JINA,
    openai::LLAMA_CPP,
    ollama::OLLAMA,
    translation::DEEPL,
    translation::LIBRE_TRANSLATE,
    tei::PLATFORMS,
    kserve::KSERVE,
    translation::KIVU,
    SERVER,
];

const SERVER: Api = Api {
    name: "server",
    description: "Models, health and metrics.",
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        get!("/", "page_or_health", page::page_or_health, "Check health, or open the page for trying models")
            .open()
            .response_of::<String>(
                "text/plain; charset=utf-8",
                "`Ollama is running`, for clients of Ollama; or a page for clients that list `text/html` in `accept`, if \
                 pages are on.",
                Some(r#""Ollama is running""#),
            ),
        get!("/docs", "docs", page::docs, "Show the API documentation")
            .open()
            .optional()
            .response_of::<String>("text/html; charset=utf-8", "A page that renders `/openapi.json`.", None),
        kserve::HEALTH,
        kserve::HEALTH.at("/healthz", "healthz"),
        kserve::HEALTH.at("/ping", "ping"),
        get!("/metrics", "metrics", info::metrics, "Metrics in Prometheus format")
            .optional()
            .response_of::<String>(
                "text/plain; charset=utf-8",
                "Counters and durations.",
                Some(r#""kivu_requests_total 7""#),
            ),
        get!("/models", "list", info::list, "List the models").response::<info::Models>(
            "The models with their tasks, and the request limits.",
            r#"{"limits": {"body_bytes": 6291456, "texts": 1024}, "models": [{"architecture": "BertModel", "dimensions": 384, "max_tokens": 256, "memory": 24760849, "name": "minilm", "precision": "int8", "state": "loaded", "task": "feature-extraction"}], "version": "0.2.0"}"#,
        ),
        get!("/openapi.json", "openapi", document, "The OpenAPI document")
            .open()
            .optional()
            .description("Describes each route's requests, responses and errors, with examples.")
            .responses::<Object>("This document.", &[]),
    ],
};

pub fn router() -> Router<Arc<App>> {
    let add = |router: Router<_>, route: &Route| router.route(route.path, (route.handler)());
    // `allow` lists the methods in this order.
    let routes = [RouteMethod::Get, RouteMethod::Post].map(with_method);
    routes.into_iter().flatten().fold(Router::new(), add)
}

/// All routes for GET or POST.
pub fn with_method(method: RouteMethod) -> impl Iterator<Item = &'static Route> {
    all().filter(move |route| route.method == method)
}

fn all() -> impl Iterator<Item = &'static Route> {
    APIS.iter().flat_map(|api| api.routes)
}

/// Whether a request needs no credentials: its path is open, and no route with its method needs them.
pub fn is_open(path: &str, method: &Method) -> bool {
    let at_path = || all().filter(|route| route.path == path);
    at_path().any(|route| route.is_open)
        && at_path().all(|route| route.is_open || !route.method.is(method))
}

/// A path's error bodies.
pub fn dialect(path: &str) -> Dialect {
    let by_route = APIS
        .iter()
        .find(|api| api.routes.iter().any(|route| route.matches(path)));
    let has_prefix = |api: &&Api| api.prefix.is_some_and(|prefix| path.starts_with(prefix));
    by_route
        .or_else(|| APIS.iter().find(has_prefix))
        .map_or(Dialect::Tei, |api| api.dialect)
}

async fn document(State(app): State<Arc<App>>) -> ApiResult {
    openapi::respond(&app, APIS)
}
