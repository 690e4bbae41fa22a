//! Request bodies, methods and limits, on every route.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
};
use futures::stream;
use kivu::{
    api::{App, below, router},
    config::Limits,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::{answer, post, scripted},
    document::routes,
};

fn app(limits: Limits) -> Router {
    router(scripted(limits))
}

async fn ask(app: &Router, path: &str, body: &Value) -> (StatusCode, Value) {
    answer(
        app.clone()
            .oneshot(post(path, body.to_string()))
            .await
            .unwrap(),
    )
    .await
}

/// All paths of the API, and whether they take POST.
async fn paths() -> BTreeMap<String, bool> {
    let mut paths = BTreeMap::new();
    for (method, path) in routes().await {
        *paths.entry(path).or_insert(false) |= method == "POST";
    }
    paths
}

/// A body with many megabytes, and a count of the bytes read from it.
fn counted() -> (Body, Arc<AtomicUsize>) {
    const PIECE: usize = 1024;
    let read = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&read);
    let pieces = (0..64 * 1024).map(move |_| {
        counter.fetch_add(PIECE, Ordering::Relaxed);
        Ok::<_, std::io::Error>(vec![b' '; PIECE])
    });
    (Body::from_stream(stream::iter(pieces)), read)
}

/// Such requests have no permit, so that nothing limits their number.
#[tokio::test]
async fn only_post_reads_bodies() {
    let app = app(Limits::default());
    let paths = paths().await;
    assert!(paths.len() > 40, "{paths:?}");
    for (path, takes_post) in paths {
        let others = if takes_post { "PATCH" } else { "POST" };
        for method in [
            "GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH", "TRACE", others,
        ] {
            let (body, read) = counted();
            let request = Request::builder()
                .method(method)
                .uri(&path)
                .body(body)
                .unwrap();
            app.clone().oneshot(request).await.unwrap();
            let read = read.load(Ordering::Relaxed);
            assert!(read <= 8 * 1024, "{method} {path} has read {read} bytes");
        }
    }
}

/// A server that is busy is not removed by its load balancer.
#[tokio::test]
async fn only_post_needs_a_permit() {
    let app = app(Limits {
        requests: 0,
        ..Limits::default()
    });
    assert_eq!(
        ask(&app, "/embed", &json!({ "inputs": "cat" })).await.0,
        StatusCode::TOO_MANY_REQUESTS
    );
    for method in [Method::GET, Method::HEAD] {
        for path in [
            "/",
            "/health",
            "/ping",
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/models/tiny/ready",
        ] {
            let request = Request::builder()
                .method(&method)
                .uri(path)
                .body(Body::empty())
                .unwrap();
            assert_eq!(
                app.clone().oneshot(request).await.unwrap().status(),
                StatusCode::OK,
                "{method} {path}"
            );
        }
    }
}

/// Derived deserializers accept a list in place of an object.
#[tokio::test]
async fn lists_in_place_of_objects_are_refused() {
    let app = router(scripted(Limits::default()));
    let (cat, null) = (json!("cat"), Value::Null);
    let similarity = json!({ "source_sentence": "cat", "sentences": ["dog"] });
    for (path, body) in [
        ("/tokenize", json!([cat, null, true, null, null, null])),
        ("/decode", json!([[5], null, true])),
        ("/vertex", json!([[{ "inputs": "cat" }]])),
        (
            "/rerank",
            json!([cat, ["dog"], null, null, null, null, null]),
        ),
        ("/similarity", json!([similarity, null, null])),
        ("/similarity", json!({ "inputs": [cat, ["dog"]] })),
        (
            "/v1/rerank",
            json!([null, cat, ["dog"], null, null, null, null]),
        ),
        (
            "/v1/embeddings",
            Value::from([vec![cat.clone()], vec![null.clone(); 14]].concat()),
        ),
        (
            "/v2/embed",
            json!([null, ["cat"], null, null, null, null, null]),
        ),
        (
            "/v2/embed",
            json!({ "inputs": [[[{ "type": "text", "text": "cat" }]]] }),
        ),
        (
            "/v2/embed",
            json!({ "inputs": [{ "content": [["text", "cat"]] }] }),
        ),
        ("/api/embed", json!([null, cat, null, null])),
        ("/api/show", json!(["tiny", null])),
        (
            "/v2/models/tiny/infer",
            json!([null, [{ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": [cat] }], null, {}]),
        ),
        (
            "/v2/models/tiny/infer",
            json!({ "inputs": [["TEXT", [1], "BYTES", {}, [cat]]] }),
        ),
    ] {
        let (status, answer) = ask(&app, path, &body).await;
        assert!(
            matches!(status.as_u16(), 400 | 422),
            "{path} {body}: {status} {answer}"
        );
        assert!(
            answer.to_string().contains("to be an object"),
            "{path} {body}: {answer}"
        );
    }
    // Requests without a body or whose body is ignored.
    let ignored = ["/index", "/load", "/unload"];
    let is_json = |path: &str| !ignored.iter().any(|end| path.ends_with(end));
    for (path, _) in paths()
        .await
        .into_iter()
        .filter(|(path, takes_post)| *takes_post && is_json(path))
    {
        for body in [
            json!([]),
            json!(["cat"]),
            json!(["cat", ["dog"]]),
            json!(null),
            json!("cat"),
            json!(7),
        ] {
            let (status, answer) = ask(&app, &path, &body).await;
            assert!(
                matches!(status.as_u16(), 400 | 422),
                "{path} {body}: {status} {answer}"
            );
        }
    }
}

/// Values are checked even on routes that ignore them.
#[tokio::test]
async fn values_below_the_documented_minimum_are_refused() {
    let app = app(Limits::default());
    let mut answers = Vec::new();
    for path in ["/embed", "/embed_all"] {
        for (name, value) in [
            ("dimensions", json!(0)),
            ("max_active_dims", json!(0)),
            ("outputs", json!([])),
        ] {
            let (status, answer) = ask(&app, path, &json!({ "inputs": "cat", name: value })).await;
            assert_eq!(
                status,
                StatusCode::UNPROCESSABLE_ENTITY,
                "{path} {name}: {answer}"
            );
            answers.push(format!("{path}: {}", answer["error"].as_str().unwrap()));
        }
    }
    insta::assert_snapshot!(answers.join("\n"), @r"
    /embed: expected `dimensions` from 1 to 2, but found 0
    /embed: expected `max_active_dims` above 0, but found 0
    /embed: expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list
    /embed_all: expected `dimensions` above 0, but found 0
    /embed_all: expected `max_active_dims` above 0, but found 0
    /embed_all: expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list
    ");
}

#[tokio::test]
async fn the_instances_of_a_request_share_its_limits() {
    let app = app(Limits {
        texts: 4,
        ..Limits::default()
    });
    let instances = |texts: &[&[&str]]| {
        let instances: Vec<_> = texts
            .iter()
            .map(|texts| json!({ "inputs": texts }))
            .collect();
        json!({ "instances": instances })
    };
    let (status, answer) = ask(
        &app,
        "/vertex",
        &instances(&[&["cat", "dog"], &["bird", "cat"]]),
    )
    .await;
    assert_eq!(status, StatusCode::OK);
    for (index, texts) in [["cat", "dog"], ["bird", "cat"]].iter().enumerate() {
        let (_, alone) = ask(&app, "/embed", &json!({ "inputs": texts })).await;
        assert_eq!(
            answer["predictions"][index], alone,
            "in the order of the instances"
        );
    }
    let (status, answer) = ask(
        &app,
        "/vertex",
        &instances(&[&["cat", "dog"], &["bird"], &["cat", "dog"]]),
    )
    .await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    insta::assert_snapshot!(answer["error"], @r#""expected at most 4 texts in the request, but found more""#);
}

#[tokio::test]
async fn embedding_models_rank_by_cosine_similarity() {
    let app = app(Limits::default());
    let body = json!({ "query": "cat", "texts": ["a", "dog and dog"] });
    for named in [false, true] {
        let mut body = body.clone();
        if named {
            body["model"] = "tiny".into();
        }
        let (status, ranks) = ask(&app, "/rerank", &body).await;
        assert_eq!(
            (status, &ranks[0]["index"]),
            (StatusCode::OK, &json!(1)),
            "{ranks}"
        );
    }
    let body = json!({ "query": "cat", "documents": ["a", "dog and dog"] });
    for path in ["/v1/rerank", "/v2/rerank"] {
        assert_eq!(
            ask(&app, path, &body).await.1["results"][0]["index"],
            1,
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_server_without_models_says_so() {
    let app = router(App::new(Vec::new(), Limits::default()));
    let request = Request::get("/info").body(Body::empty()).unwrap();
    let (status, body) = answer(app.clone().oneshot(request).await.unwrap()).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    insta::assert_snapshot!(body["error"], @r#""expected a model to be served, but found none that the request may use; `GET /models` lists the models""#);
    for path in ["/", "/tokenize", "/api/show", "/vertex"] {
        let (status, body) = ask(
            &app,
            path,
            &json!({ "inputs": "cat", "instances": [{ "inputs": "cat" }] }),
        )
        .await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {body}");
        assert!(!body.to_string().contains("``"), "{path}: {body}");
    }
}

/// Errors outside the prefix equal errors for other unknown paths.
#[tokio::test]
async fn paths_outside_of_the_prefix_have_no_route() {
    let router = below(Some("/large"), app(Limits::default()));
    for path in [
        "/",
        "/embed",
        "/larger/embed",
        "/LARGE/embed",
        "/%6Carge/embed",
        "//large/embed",
        "/large%2Fembed",
    ] {
        for method in [Method::GET, Method::POST] {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .body(Body::empty())
                .unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.headers()["x-request-id"].len(), 36, "{path}");
            let (status, body) = answer(response).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
            let expected = format!("no route `{path}`; `/docs` lists the routes");
            assert_eq!(
                body,
                json!({ "error": expected, "error_type": "Validation" })
            );
        }
    }
}
