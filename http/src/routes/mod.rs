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
pub static APIS: &[Api] = &[
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
    dialect: Dialect::Tei,
    prefix: None,
    routes: &[
        get!("/", "page_or_health", page::page_or_health)
            .open()
            .response_in::<String>("text/plain; charset=utf-8"),
        get!("/docs", "docs", page::docs)
            .open()
            .optional()
            .response_in::<String>("text/html; charset=utf-8"),
        kserve::HEALTH,
        kserve::HEALTH.at("/healthz", "healthz"),
        kserve::HEALTH.at("/ping", "ping"),
        get!("/metrics", "metrics", info::metrics)
            .optional()
            .response_in::<String>("text/plain; charset=utf-8"),
        get!("/models", "list", info::list).response::<info::Models>(),
        get!("/openapi.json", "openapi", document)
            .open()
            .optional()
            .response::<Object>(),
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

/// The query parameters that a request's route reads; `None` if there is no such route.
pub fn query_parameters(path: &str, method: &Method) -> Option<Vec<&'static str>> {
    let route = all().find(|route| route.method.is(method) && route.matches(path))?;
    let parameters = route.query.iter().flatten();
    Some(parameters.map(|parameter| parameter.name).collect())
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
