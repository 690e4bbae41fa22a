//! Cross-origin requests by pages from configured origins.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{
        HeaderValue, Method,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
            ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
            ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
        },
    },
    middleware::{self, Next},
    response::Response,
};

/// The methods of all routes.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST");
/// A wildcard does not include `authorization`. The others are named for browsers without wildcards.
const HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, x-api-key, x-request-id, *");
/// Seconds for which browsers keep the answer to a preflight request.
const MAX_AGE: HeaderValue = HeaderValue::from_static("3600");

/// Lets pages from `origins` read all responses, errors included. Pages cannot send cookies, which no route reads.
pub fn cors(router: Router, origins: Vec<String>) -> Router {
    if origins.is_empty() {
        return router;
    }
    router.layer(middleware::from_fn_with_state(
        Arc::new(origins),
        add_headers,
    ))
}

async fn add_headers(
    State(origins): State<Arc<Vec<String>>>,
    request: Request,
    next: Next,
) -> Response {
    let is_known = |origin: &&HeaderValue| {
        origins
            .iter()
            .any(|known| known.as_bytes() == origin.as_bytes())
    };
    let origin = request.headers().get(ORIGIN).filter(is_known).cloned();
    let is_preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    // Also in responses to others, which a cache may have stored.
    headers.append(VARY, HeaderValue::from_static("origin"));
    let Some(origin) = origin else {
        return response;
    };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    } else {
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::{
        body::Body,
        http::{StatusCode, request::Builder},
    };
    use tower_service::Service;

    use super::*;
    use crate::{App, BindScope, Guard, below, router};
    use kivu::{
        cloud::Cloud,
        config::{AuthConfig, Limits},
    };

    /// The status, and the CORS headers in the order of their names.
    async fn ask(request: Builder, body: &str) -> (StatusCode, String) {
        let origins = vec![
            "https://a.example".to_owned(),
            "app://obsidian.md".to_owned(),
        ];
        let scope = BindScope::Address(([127, 0, 0, 1], 8080).into());
        let guard = Guard::new(&AuthConfig::default(), scope, &Cloud::default()).unwrap();
        let app = App {
            guard: guard.with_pages(origins.clone()),
            ..App::new(Vec::new(), Limits::default())
        };
        let mut app = cors(below(Some("/large"), router(app)), origins);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = app.call(request).await.unwrap();
        let mut found: Vec<String> = response
            .headers()
            .iter()
            .filter(|(name, _)| name.as_str().starts_with("access-control-") || *name == VARY)
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        found.sort();
        (response.status(), found.join("\n"))
    }

    #[tokio::test]
    async fn listed_origins_may_read_all_responses() {
        for origin in ["https://a.example", "app://obsidian.md"] {
            let readable = format!(
                "access-control-allow-origin: {origin}\naccess-control-expose-headers: *\nvary: origin"
            );
            for (path, status) in [
                ("/large/health", StatusCode::OK),
                ("/large/nowhere", StatusCode::NOT_FOUND),
                ("/outside", StatusCode::NOT_FOUND),
                ("/large/embed", StatusCode::METHOD_NOT_ALLOWED),
            ] {
                let found = ask(Request::get(path).header(ORIGIN, origin), "").await;
                assert_eq!(found, (status, readable.clone()), "{path}");
            }
            let long = "x".repeat(Limits::default().body_bytes + 1);
            let post = Request::post("/large/embed")
                .header(ORIGIN, origin)
                .header("content-type", "application/json");
            let found = ask(post, &long).await;
            assert_eq!(found, (StatusCode::PAYLOAD_TOO_LARGE, readable));
            let preflight = Request::options("/large/embed")
                .header(ORIGIN, origin)
                .header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
            let (status, headers) = ask(preflight, "").await;
            assert_eq!(status, StatusCode::NO_CONTENT);
            let (first, rest) = headers
                .split_once("\naccess-control-allow-origin: ")
                .unwrap();
            insta::allow_duplicates! {
                insta::assert_snapshot!(first, @r"
                access-control-allow-headers: authorization, content-type, x-api-key, x-request-id, *
                access-control-allow-methods: GET, POST
                ");
            }
            assert_eq!(
                rest,
                format!("{origin}\naccess-control-max-age: 3600\nvary: origin")
            );
        }
    }

    #[tokio::test]
    async fn other_origins_may_not() {
        for origin in [
            "https://b.example",
            "https://a.example.b.example",
            "http://a.example",
            "null",
            "HTTPS://A.EXAMPLE",
        ] {
            for request in [
                Request::get("/large/health"),
                Request::options("/large/embed").header(ACCESS_CONTROL_REQUEST_METHOD, "POST"),
            ] {
                let (_, headers) = ask(request.header(ORIGIN, origin), "").await;
                assert_eq!(headers, "vary: origin", "{origin}");
            }
        }
        let (_, headers) = ask(Request::get("/large/health"), "").await;
        assert_eq!(headers, "vary: origin", "no page");
        for (origin, status) in [
            ("https://b.example", StatusCode::FORBIDDEN),
            ("https://a.example", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ] {
            let post = Request::post("/large/embed").header(ORIGIN, origin);
            assert_eq!(ask(post, "").await.0, status, "{origin}");
        }
    }
}
