//! Access control, and its errors in each dialect.

use axum::{
    Json, Router,
    body::{Body, Bytes},
    http::{Method, Request, Response, StatusCode},
    response::IntoResponse,
    routing,
};
use kivu::{
    cloud::Cloud,
    config::{AuthConfig, AuthMode, Limits},
};
use kivu_http::{
    App, BindScope, GatewayVerified, Guard, KeyLimits, below, make_key, make_limited_key, router,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::scripted,
    messages::{answer, post},
    server::{Server, alone, bundle, kivu},
};

fn guarded(config: &AuthConfig) -> Router {
    router(App {
        guard: Guard::new(config, BindScope::ApiGateway, &Cloud::default()).unwrap(),
        ..scripted(Limits::default())
    })
}

/// A router that requires a key, and a valid key.
fn with_keys() -> (Router, String) {
    let (key, line) = make_key("alice").unwrap();
    let (_, other) = make_key("bob").unwrap();
    (
        guarded(&AuthConfig {
            keys: vec![line, other],
            ..AuthConfig::default()
        }),
        key,
    )
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
async fn a_server_without_keys_does_not_answer_the_pages_of_other_sites() {
    let listening = BindScope::Address("127.0.0.1:8080".parse().unwrap());
    let guard = Guard::new(&AuthConfig::default(), listening, &Cloud::default()).unwrap();
    let router = router(App {
        guard,
        ..scripted(Limits::default())
    });
    let found = async |headers: &[(&'static str, &str)]| {
        let (status, body) = answer(send(&router, cat(), headers).await).await;
        match status {
            StatusCode::OK => "200".to_owned(),
            status => format!("{} {body}", status.as_u16()),
        }
    };
    assert_eq!(found(&[("host", "127.0.0.1:8080")]).await, "200");
    assert_eq!(
        found(&[
            ("host", "localhost:8080"),
            ("origin", "http://localhost:8080")
        ])
        .await,
        "200"
    );
    insta::assert_snapshot!(found(&[("host", "evil.example")]).await, @r#"403 {"error":"expected an address or `localhost` as the host, but found another name: a server without keys answers this machine only; configure keys, or `auth.mode = \"none\"` to answer under any name","error_type":"Validation"}"#);
    let page = [
        ("host", "localhost:8080"),
        ("origin", "https://evil.example"),
    ];
    insta::assert_snapshot!(found(&page).await, @r#"403 {"error":"expected no `origin`, or one of this machine, but found another: a server without keys does not answer other sites' pages; add the origin to `cors_origins`, configure keys, or `auth.mode = \"none\"` to answer all pages","error_type":"Validation"}"#);
    // Whether the server runs is open.
    let health = Request::get("/health").body(Body::empty()).unwrap();
    assert_eq!(
        send(&router, health, &[("host", "evil.example")])
            .await
            .status(),
        StatusCode::OK
    );
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
        Case(
            "next to a foreign token",
            &[("authorization", "Bearer hf_123"), ("x-api-key", &key)],
            200,
        ),
        Case("none", &[], 401),
        Case("empty", &[("x-api-key", "")], 401),
        Case("wrong", &[("x-api-key", "kivu_0")], 401),
        Case("too long", &[("x-api-key", &long)], 401),
        Case(
            "its end is missing",
            &[("x-api-key", &key[..key.len() - 1])],
            401,
        ),
        Case("without its scheme", &[("authorization", &key)], 401),
        Case(
            "with another scheme",
            &[("authorization", &bearer.replace("Bearer", "Basic"))],
            401,
        ),
        Case("in another header", &[("api-key", &key)], 401),
    ];
    for Case(what, headers, expected) in cases {
        assert_eq!(
            send(&router, cat(), headers).await.status().as_u16(),
            expected,
            "{what}"
        );
    }
}

#[tokio::test]
async fn each_dialect_has_its_own_401() {
    let (router, _) = with_keys();
    let mut answers = Vec::new();
    let paths = [
        "/embed",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/v2/models/tiny/infer",
        "/models/tiny",
    ];
    for path in paths {
        let response = send(&router, post(path, "{}"), &[]).await;
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let (status, body) = answer(response).await;
        answers.push(format!("{path}: {} {body}", status.as_u16()));
    }
    insta::assert_snapshot!(answers.join("\n"), @r#"
    /embed: 401 {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /v1/embeddings: 401 {"error":{"code":"invalid_api_key","message":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none","param":null,"type":"invalid_request_error"}}
    /v1/rerank: 401 {"detail":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /v2/rerank: 401 {"message":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /v2/models/tiny/infer: 401 {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    /models/tiny: 401 {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}
    "#);
    let response = send(
        &router,
        post("/v1/embeddings", "{}"),
        &[("x-api-key", "kivu_0")],
    )
    .await;
    insta::assert_snapshot!(answer(response).await.1["error"]["message"], @r#""unknown key""#);
    let response = send(
        &router,
        post("/v1/embeddings", "{}"),
        &[("authorization", "kivu_0")],
    )
    .await;
    insta::assert_snapshot!(answer(response).await.1["error"]["message"], @r#""expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found another header or form""#);
}

#[tokio::test]
async fn health_checks_need_no_key() {
    let (router, _) = with_keys();
    let get = |path| Request::get(path).body(Body::empty()).unwrap();
    for path in [
        "/health",
        "/health/",
        "/healthz",
        "/ping",
        "/v2/health/live",
        "/v2/health/ready",
    ] {
        assert_eq!(
            send(&router, get(path), &[]).await.status(),
            StatusCode::OK,
            "{path}"
        );
    }
    for path in [
        "/info",
        "/v1/models",
        "/v2",
        "/v2/models/tiny",
        "/nowhere",
        "/info/",
        "/health//",
    ] {
        assert_eq!(
            send(&router, get(path), &[]).await.status(),
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
    }
    for method in [
        Method::HEAD,
        Method::PUT,
        Method::DELETE,
        Method::TRACE,
        Method::CONNECT,
    ] {
        let mut other = cat();
        *other.method_mut() = method.clone();
        assert_eq!(
            send(&router, other, &[]).await.status(),
            StatusCode::UNAUTHORIZED,
            "{method}"
        );
    }
}

/// Browsers send OPTIONS without credentials, and send the request only after a success.
#[tokio::test]
async fn preflights_need_no_credentials() {
    let (with_keys, _) = with_keys();
    let iam = guarded(&AuthConfig {
        mode: Some(AuthMode::Iam),
        ..AuthConfig::default()
    });
    let proxied: AuthConfig =
        serde_json::from_value(json!({ "mode": "none", "proxy_secret": "sesame" })).unwrap();
    for router in [with_keys, iam, guarded(&proxied)] {
        for path in [
            "/embed",
            "/v1/embeddings",
            "/v2/models/tiny/infer",
            "/",
            "/nowhere",
        ] {
            let headers = [
                ("origin", "https://example.org"),
                ("access-control-request-method", "POST"),
                (
                    "access-control-request-headers",
                    "authorization,x-amz-date,x-stainless-os",
                ),
            ];
            let request = Request::options(path).body(Body::empty()).unwrap();
            let response = send(&router, request, &headers).await;
            assert_eq!(response.status(), StatusCode::NO_CONTENT, "{path}");
            assert!(response.headers().contains_key("x-request-id"));
            assert!(
                !response
                    .headers()
                    .contains_key("access-control-allow-origin"),
                "that is API Gateway's part"
            );
        }
    }
}

#[tokio::test]
async fn requests_are_rejected_before_their_body_is_read() {
    let (router, _) = with_keys();
    let never = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    assert_eq!(
        send(&router, post("/embed", never), &[]).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn behind_the_gateway_only_verified_requests_are_admitted() {
    let router = guarded(&AuthConfig {
        mode: Some(AuthMode::Iam),
        ..AuthConfig::default()
    });
    assert_eq!(
        send(&router, cat(), &[]).await.status(),
        StatusCode::UNAUTHORIZED
    );
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
    let name = "x-kivu-proxy-secret";
    let wrong = send(&router, cat(), &[("x-api-key", &key), (name, "open")]).await;
    assert_eq!(wrong.status(), StatusCode::FORBIDDEN);
    let through = send(&router, cat(), &[("x-api-key", &key), (name, "sesame")]).await;
    assert_eq!(through.status(), StatusCode::OK);
}

#[tokio::test]
async fn unreadable_keys_are_a_server_error() {
    let config = AuthConfig {
        keys_file: Some("/nowhere/keys".into()),
        ..AuthConfig::default()
    };
    let response = send(
        &guarded(&config),
        post("/v1/embeddings", "{}"),
        &[("x-api-key", "kivu_0")],
    )
    .await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, body) = answer(response).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    insta::assert_snapshot!(body["error"]["message"], @r#""cannot read the keys at the moment; try again shortly""#);
}

#[tokio::test]
async fn all_routes_can_have_a_prefix() {
    let (key, line) = make_key("alice").unwrap();
    let config = AuthConfig {
        keys: vec![line],
        ..AuthConfig::default()
    };
    let router = below(Some("/large"), guarded(&config));
    let request = post("/large/embed", json!({ "inputs": "cat" }).to_string());
    assert_eq!(
        send(&router, request, &[("x-api-key", &key)])
            .await
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        send(&router, cat(), &[("x-api-key", &key)]).await.status(),
        StatusCode::NOT_FOUND
    );
    let health = Request::get("/large/health").body(Body::empty()).unwrap();
    assert_eq!(send(&router, health, &[]).await.status(), StatusCode::OK);
    // The path after the prefix selects the dialect.
    let (status, body) = answer(send(&router, post("/large/v1/embeddings", "{}"), &[]).await).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (StatusCode::UNAUTHORIZED, &json!("invalid_api_key"))
    );
}

/// A router that requires a key with these limits, and the key.
fn with_limits(limits: &KeyLimits) -> (Router, String) {
    let (key, line) = make_limited_key("alice", limits).unwrap();
    (
        guarded(&AuthConfig {
            keys: vec![line],
            ..AuthConfig::default()
        }),
        key,
    )
}

#[tokio::test]
async fn expired_keys_are_rejected() {
    for (date, expected) in [("2020-12-31", 401), ("9999-12-31", 200)] {
        let (router, key) = with_limits(&KeyLimits {
            expires: Some(date.parse().unwrap()),
            ..KeyLimits::default()
        });
        let response = send(&router, cat(), &[("x-api-key", &key)]).await;
        assert_eq!(response.status().as_u16(), expected, "{date}");
    }
}

/// Models beyond a key's scope are unknown to it, in every dialect and list.
#[tokio::test]
async fn keys_are_limited_to_their_models() {
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    for (model, expected) in [("tiny", 1), ("other", 0)] {
        let (router, key) = with_limits(&KeyLimits {
            models: vec![model.to_owned()],
            ..KeyLimits::default()
        });
        let key = [("x-api-key", key.as_str())];
        let (_, list) = answer(send(&router, get("/v1/models"), &key).await).await;
        assert_eq!(list["data"].as_array().unwrap().len(), expected, "{list}");
        let (_, list) = answer(send(&router, get("/models"), &key).await).await;
        assert_eq!(list["models"].as_array().unwrap().len(), expected, "{list}");
        let is_allowed = expected == 1;
        for (path, body) in [
            ("/embed", json!({ "inputs": "cat" })),
            ("/v1/embeddings", json!({ "input": "cat", "model": "tiny" })),
            ("/models/tiny", json!({ "inputs": "cat" })),
            ("/tokenize", json!({ "inputs": "cat" })),
        ] {
            let status = send(&router, post(path, body.to_string()), &key)
                .await
                .status();
            assert_eq!(
                status.is_success(),
                is_allowed,
                "{path} with a key for `{model}`: {status}"
            );
        }
        let status = send(&router, get("/v2/models/tiny"), &key).await.status();
        assert_eq!(
            status.is_success(),
            is_allowed,
            "KServe's metadata: {status}"
        );
    }
}

/// The message and the seconds to wait of the third request, for a key that may make two.
async fn refused_after_two(limits: &KeyLimits) -> (u64, Value) {
    let (router, key) = with_limits(limits);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(
            send(&router, cat(), &[("x-api-key", &key)])
                .await
                .status()
                .as_u16(),
        );
    }
    assert_eq!(statuses, [200, 200, 429]);
    let response = send(
        &router,
        post("/v1/embeddings", "{}"),
        &[("x-api-key", &key)],
    )
    .await;
    let retry_after = response.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let (_, body) = answer(response).await;
    (retry_after, body["error"]["message"].clone())
}

/// Without a table, a server counts its own requests.
#[tokio::test]
async fn keys_are_limited_to_their_rate_and_quota() {
    let (retry_after, message) = refused_after_two(&KeyLimits {
        per_minute: Some(2),
        ..KeyLimits::default()
    })
    .await;
    assert!(
        (2..=30).contains(&retry_after),
        "until the next request is admitted: {retry_after}"
    );
    insta::assert_snapshot!(message, @r#""expected at most 2 requests per minute with this key; retry later""#);
    let (retry_after, message) = refused_after_two(&KeyLimits {
        per_day: Some(2),
        ..KeyLimits::default()
    })
    .await;
    assert!(
        (1..=86_400).contains(&retry_after),
        "until the next day in UTC: {retry_after}"
    );
    insta::assert_snapshot!(message, @r#""expected at most 2 requests per day (UTC) with this key; retry later""#);
}

/// Address of a Secrets Manager whose secret has these values, by label.
async fn secrets_manager(versions: &'static [(&str, &str)]) -> String {
    let answer = async move |body: Bytes| {
        let request: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(request["SecretId"], "proxy");
        match versions
            .iter()
            .find(|(stage, _)| request["VersionStage"] == *stage)
        {
            Some((_, secret)) => Json(json!({ "SecretString": secret })).into_response(),
            None => {
                let error = json!({ "__type": "ResourceNotFoundException" });
                (StatusCode::BAD_REQUEST, Json(error)).into_response()
            }
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", routing::post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// A rotation does not interrupt requests: until the proxy has the new secret, it sends the previous one.
#[tokio::test(flavor = "multi_thread")]
async fn the_current_and_the_previous_proxy_secret_are_accepted() {
    let Some((_folder, bundle)) = bundle() else {
        return;
    };
    let rotated: &[_] = &[("AWSCURRENT", "new\n"), ("AWSPREVIOUS", "old")];
    for (versions, expected) in [
        (rotated, [200, 200, 403]),
        (&[("AWSCURRENT", "new")], [200, 403, 403]),
    ] {
        let mut command = kivu(&bundle);
        command
            .env("KIVU_AUTH__PROXY_SECRET_ID", "proxy")
            .env("AWS_ENDPOINT_URL", secrets_manager(versions).await)
            .envs([
                ("AWS_ACCESS_KEY_ID", "a"),
                ("AWS_SECRET_ACCESS_KEY", "a"),
                ("AWS_REGION", "eu-west-1"),
            ]);
        let _alone = alone();
        let server = Server::wait(command.spawn().unwrap());
        let statuses = ["new", "old", "older"].map(|secret| {
            let head = "GET /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
            let answer =
                server.exchange(format!("{head}x-kivu-proxy-secret: {secret}\r\n\r\n").as_bytes());
            answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
        });
        assert_eq!(statuses, expected, "{versions:?}");
    }
}
