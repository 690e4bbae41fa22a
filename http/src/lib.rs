//! The HTTP API: one router for all dialects, for `kivu serve` and for the function behind API Gateway.

mod auth;
mod bodies;
mod dialects;
mod fields;
mod page;
#[doc(hidden)]
pub mod routes;
#[cfg(test)]
mod scripted;
#[doc(hidden)]
pub mod service;
mod tasks;

use std::{borrow::Cow, sync::Arc};

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
};

pub use self::{
    auth::{BindScope, Date, GatewayVerified, Guard, KeyLimits, make_key, make_limited_key},
    dialects::batch_requests::batch_requests,
    service::{
        app::App,
        cors::cors,
        example,
        models::pull::{FetchModel, FetchProgress},
        response_limit::ResponseLimit,
        startup::LazyRouter,
        warm_up::warm_up,
    },
};
use self::{bodies::rejection::Rejection, dialects::kserve, service::observe::Observed};

/// The router for all dialects.
///
/// Errors are responses. Client errors are not logged as errors; server errors are logged once with their causes, which
/// the client does not see.
pub fn router(app: App) -> Router {
    let app = Arc::new(app);
    let router = routes::router()
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            service::observe::observe,
        ))
        .with_state(app);
    // A layer of the same router would run after a route is found.
    Router::new()
        .fallback_service(router)
        .layer(middleware::map_request(with_plain_path))
}

/// Removes a slash at the end of the path, and encodes the one in a model's name where routes expect a single segment.
async fn with_plain_path(mut request: Request) -> Request {
    let uri = request.uri();
    let path = match uri.path().strip_suffix('/') {
        Some(path) if !path.is_empty() && !path.ends_with('/') => path,
        _ => uri.path(),
    };
    let path = kserve::with_encoded_name(path).map_or(Cow::Borrowed(path), Cow::Owned);
    if path != uri.path() {
        let mut parts = uri.clone().into_parts();
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}").try_into(),
            None => path.parse(),
        };
        if let Ok(target) = target {
            parts.path_and_query = Some(target);
        }
        if let Ok(uri) = parts.try_into() {
            *request.uri_mut() = uri;
        }
    }
    request
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
    let message = format!(
        "no route `{}`; `/docs` lists the routes",
        request.uri().path()
    );
    Rejection::new(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: Request) -> Rejection {
    let message = format!(
        "`{}` does not take {}",
        request.uri().path(),
        request.method()
    );
    Rejection::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
