//! Access control, and its errors in each dialect.

use axum::{
    Router,
    body::Body,
    http::{Method, Request, Response, StatusCode},
};
use kivu::{
    api::{BindScope, GatewayVerified, Guard, below, make_key, router},
    config::{AuthConfig, AuthMode, Limits},
};
use serde_json::json;
use tower::ServiceExt;

use crate::api::{answer, post, scripted};

fn guarded(config: &AuthConfig) -> Router {
    router(scripted(Limits::default()).with_guard(Guard::new(config, BindScope::ApiGateway).unwrap()))
}

/// A router that requires a key, and a valid key.
fn with_keys() -> (Router, String) {
    let (key, line) = make_key("alice").unwrap();
    let (_, other) = make_key("bob").unwrap();
    (guarded(&AuthConfig { keys: vec![line, other], ..AuthConfig::default() }), key)
}

async fn send(
    router: &Router,
    mut request: Request<Body>,
    headers: &[(&'static str, &str)],
) -> Response<Body> {
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    router.clone().oneshot(request).await.unwrap()
}

fn cat() -> Request<Body> {
    post("/embed", json!({ "inputs": "cat" }).to_string())
}

#[tokio::test]
async fn only_valid_keys_in_either_header_are_admitted() {
    let (router, key) = with_keys();
    let bearer = format!("Bearer {key}");
    let (lower, long) = (format!("bearer  {key} "), "x".repeat(4096));
    struct Case<'a>(&'a str, &'a [(&'static str, &'a str)], u16);
    let cases = [
        Case("as a bearer", &[("authorization", &bearer)], 200),
        Case("as a bearer, other case", &[("authorization", &lower)], 200),
        Case("without a scheme", &[("x-api-key", &key)], 200),
        Case("next to a foreign token", &[("authorization", "Bearer hf_123"), ("x-api-key", &key)], 200),
        Case("none", &[], 401),
        Case("empty", &[("x-api-key", "")], 401),
        Case("wrong", &[("x-api-key", "kivu_0")], 401),
        Case("too long", &[("x-api-key", &long)], 401),
        Case("its end is missing", &[("x-api-key", &key[..key.len() - 1])], 401),
        Case("without its scheme", &[("authorization", &key)], 401),
        Case("with another scheme", &[("authorization", &bearer.replace("Bearer", "Basic"))], 401),
        Case("in another header", &[("api-key", &key)], 401),
    ];
    for Case(what, headers, expected) in cases {
        assert_eq!(send(&router, cat(), headers).await.status().as_u16(), expected, "{what}");
    }
}

#[tokio::test]
async fn each_dialect_has_its_own_401() {
    let (router, _) = with_keys();
    let mut answers = Vec::new();
    let paths =
        ["/embed", "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v2/models/tiny/infer", "/models/tiny"];
    for path in paths {
        let response = send(&router, post(path, "{}"), &[]).await;
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let (status, body) = answer(response).await;
        answers.push(format!("{path}: {} {body}", status.as_u16()));
    }
    insta::assert_snapshot!(answers.join("\n"), @r#"
    /embed: 401 ""
    /v1/embeddings: 401 {"error":{"code":"invalid_api_key","message":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none","param":null,"type":"invalid_request_error"}}
    /v1/rerank: 401 {"detail":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /v2/rerank: 401 {"message":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /v2/models/tiny/infer: 401 {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /models/tiny: 401 {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    "#);
    let response = send(&router, post("/v1/embeddings", "{}"), &[("x-api-key", "kivu_0")]).await;
    insta::assert_snapshot!(answer(response).await.1["error"]["message"], @r#""unknown key""#);
}

#[tokio::test]
async fn health_checks_need_no_key() {
    let (router, _) = with_keys();
    let get = |path| Request::get(path).body(Body::empty()).unwrap();
    for path in ["/health", "/ping", "/v2/health/live", "/v2/health/ready"] {
        assert_eq!(send(&router, get(path), &[]).await.status(), StatusCode::OK, "{path}");
    }
    for path in ["/info", "/v1/models", "/v2", "/v2/models/tiny", "/nowhere", "/health/"] {
        assert_eq!(send(&router, get(path), &[]).await.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let mut head = cat();
    *head.method_mut() = Method::OPTIONS;
    assert_eq!(send(&router, head, &[]).await.status(), StatusCode::UNAUTHORIZED, "any method");
}

#[tokio::test]
async fn requests_are_rejected_before_their_body_is_read() {
    let (router, _) = with_keys();
    let never = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    assert_eq!(send(&router, post("/embed", never), &[]).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn behind_the_gateway_only_verified_requests_are_admitted() {
    let router = guarded(&AuthConfig { mode: Some(AuthMode::Iam), ..AuthConfig::default() });
    assert_eq!(send(&router, cat(), &[]).await.status(), StatusCode::UNAUTHORIZED);
    let mut verified = cat();
    verified.extensions_mut().insert(GatewayVerified);
    assert_eq!(send(&router, verified, &[]).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn with_a_trusted_proxy_direct_requests_are_rejected() {
    let (key, line) = make_key("alice").unwrap();
    let config: AuthConfig =
        serde_json::from_value(json!({ "keys": [line], "proxy_secret": "sesame" })).unwrap();
    let router = guarded(&config);
    let direct = send(&router, cat(), &[("x-api-key", &key)]).await;
    assert_eq!(direct.status(), StatusCode::FORBIDDEN);
    let wrong = send(&router, cat(), &[("x-api-key", &key), ("x-kivu-front", "open")]).await;
    assert_eq!(wrong.status(), StatusCode::FORBIDDEN);
    let through = send(&router, cat(), &[("x-api-key", &key), ("x-kivu-front", "sesame")]).await;
    assert_eq!(through.status(), StatusCode::OK);
}

#[tokio::test]
async fn unreadable_keys_are_a_server_error() {
    let config = AuthConfig { keys_file: Some("/nowhere/keys".into()), ..AuthConfig::default() };
    let response = send(&guarded(&config), post("/v1/embeddings", "{}"), &[("x-api-key", "kivu_0")]).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, body) = answer(response).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    insta::assert_snapshot!(body["error"]["message"], @r#""cannot read the keys at the moment; try again shortly""#);
}

#[tokio::test]
async fn all_routes_can_have_a_prefix() {
    let (key, line) = make_key("alice").unwrap();
    let config = AuthConfig { keys: vec![line], ..AuthConfig::default() };
    let router = below(Some("/large"), guarded(&config));
    let request = post("/large/embed", json!({ "inputs": "cat" }).to_string());
    assert_eq!(send(&router, request, &[("x-api-key", &key)]).await.status(), StatusCode::OK);
    assert_eq!(send(&router, cat(), &[("x-api-key", &key)]).await.status(), StatusCode::NOT_FOUND);
    let health = Request::get("/large/health").body(Body::empty()).unwrap();
    assert_eq!(send(&router, health, &[]).await.status(), StatusCode::OK);
    // The dialect is that of the path after the prefix.
    let (status, body) = answer(send(&router, post("/large/v1/embeddings", "{}"), &[]).await).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::UNAUTHORIZED, &json!("invalid_api_key")));
}
