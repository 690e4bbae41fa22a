//! The page at `/`: which clients get it, its content security policy, and its use in a browser.

use std::{
    env,
    process::{Command, Stdio},
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
};
use http_body_util::BodyExt;
use kivu::config::Limits;
use kivu_http::{App, make_key, router};
use serde_json::Value;
use tower::ServiceExt;

use crate::{
    app::scripted,
    bundles::all_bundles,
    server::{Server, kivu},
    tools::{root, succeed, tool},
};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

async fn get(router: Router, path: &str, accept: &str) -> Response<Body> {
    let request = Request::get(path)
        .header("accept", accept)
        .body(Body::empty())
        .unwrap();
    router.oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .into(),
    )
    .unwrap()
}

#[tokio::test]
async fn only_browsers_get_the_page() {
    let app = || router(scripted(Limits::default()));
    let page = get(app(), "/", BROWSER).await;
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let policy = page.headers()["content-security-policy"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    assert!(
        !policy.contains("unsafe") && !policy.contains('*'),
        "{policy}"
    );
    let html = text(page).await;
    assert!(html.starts_with("<!doctype html>"));
    // External resources would need a URL; the only URL is an XML namespace.
    let addresses: Vec<_> = html
        .match_indices("://")
        .map(|(at, _)| &html[at..])
        .collect();
    assert!(
        addresses
            .iter()
            .all(|rest| rest.starts_with("://www.w3.org/2000/svg")),
        "{addresses:?}"
    );

    for accept in ["*/*", "application/json"] {
        let health = get(app(), "/", accept).await;
        assert_eq!(
            (health.status(), text(health).await.as_str()),
            (StatusCode::OK, "Ollama is running"),
            "{accept}"
        );
    }
}

#[tokio::test]
async fn without_the_page_browsers_get_what_other_clients_get() {
    let response = get(
        router(App {
            has_page: false,
            ..scripted(Limits::default())
        }),
        "/",
        BROWSER,
    )
    .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(text(response).await, "Ollama is running");
}

#[tokio::test]
async fn models_are_listed_with_their_properties() {
    let response = get(router(scripted(Limits::default())), "/models", "*/*").await;
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    insta::assert_snapshot!(body["models"], @r#"[{"architecture":"BertModel","dimensions":2,"max_tokens":12,"memory":0,"name":"tiny","outputs":{"dense":2},"precision":"fp32","state":"loaded","task":"feature-extraction"}]"#);
    insta::assert_snapshot!(body["limits"], @r#"{"body_bytes":6291456,"texts":1024}"#);
}

#[test]
fn the_page_works_in_a_browser() {
    let Some(python) = tool("TEST_PAGE") else {
        return;
    };
    let Some(chromium) = tool("TEST_CHROMIUM").filter(|path| !path.as_os_str().is_empty()) else {
        crate::skips::unsupported("Chromium is not installed");
        return;
    };
    let bundles = all_bundles();
    let start =
        |command: &mut Command| Server::wait(command.stderr(Stdio::null()).spawn().unwrap());
    let (key, line) = make_key("alice").unwrap();
    let open = start(&mut kivu(bundles.path()));
    let locked = start(kivu(bundles.path()).env("KIVU_AUTH__KEYS", line));
    let mut browse = Command::new(python);
    browse
        .arg(root().join("tests/page/test_page.py"))
        .env("TEST_URL", format!("http://{}", open.address))
        .env("TEST_LOCKED_URL", format!("http://{}", locked.address))
        .env("TEST_KEY", key)
        .env("TEST_CHROMIUM", chromium);
    if env::var_os("TEST_SCREENSHOTS").is_none() {
        browse.env("TEST_SCREENSHOTS", root().join(".kivu/page/screenshots"));
    }
    succeed(&mut browse);
}
