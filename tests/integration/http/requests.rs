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
use kivu::config::Limits;
use kivu_http::{App, below, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::{routes, scripted},
    messages::{answer, ask},
};

fn app(limits: Limits) -> Router {
    router(scripted(limits))
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
        let one = json!({ "inputs": "cat" });
        let request = match path {
            "/vertex" => json!({ "instances": [one] }),
            _ => one,
        };
        let (status, body) = ask(&app, path, &request).await;
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

/// Clients of Ollama, and curl, send JSON as other types. Pages of other sites may send these without a preflight request,
/// so that they are refused.
#[tokio::test]
async fn ollamas_routes_take_other_content_types_but_not_from_pages_of_other_sites() {
    let app = app(Limits::default());
    let send = async |path: &str, body: &str, headers: &[(&str, &str)]| {
        let request = Request::post(path).header("host", "kivu.example");
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let request = request.body(Body::from(body.to_owned())).unwrap();
        answer(app.clone().oneshot(request).await.unwrap()).await
    };
    let form = ("content-type", "application/x-www-form-urlencoded");
    let types = [
        vec![],
        vec![form],
        vec![("content-type", "text/plain;charset=UTF-8")],
        vec![("content-type", "application/octet-stream")],
    ];
    let bodies = [
        ("/api/embed", r#"{"model": "tiny", "input": "cat"}"#),
        ("/api/embeddings", r#"{"model": "tiny", "prompt": "cat"}"#),
        ("/api/show", r#"{"model": "tiny"}"#),
        ("/api/pull", r#"{"model": "tiny", "stream": false}"#),
    ];
    for (path, body) in bodies {
        for kind in &types {
            let (status, found) = send(path, body, kind).await;
            assert_eq!(status, StatusCode::OK, "{path} {kind:?}: {found}");
            for own in [
                ("origin", "http://kivu.example"),
                ("origin", "vscode-file://vscode-app"),
                ("sec-fetch-site", "same-origin"),
            ] {
                let (status, found) = send(path, body, &[kind.as_slice(), &[own]].concat()).await;
                assert_eq!(status, StatusCode::OK, "{path} {kind:?} {own:?}: {found}");
            }
            for other in [
                ("origin", "https://evil.example"),
                ("origin", "null"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-site", "same-site"),
            ] {
                let (status, _) = send(path, body, &[kind.as_slice(), &[other]].concat()).await;
                let expected = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                assert_eq!(status, expected, "{path} {kind:?} {other:?}");
            }
        }
        let xml = [("content-type", "application/xml")];
        let (status, _) = send(path, body, &xml).await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path}");
    }
    let (status, _) = send("/api/embed", "model=tiny&input=cat", &[form]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    for path in ["/translate", "/v2/translate", "/detect"] {
        let (status, _) = send(path, "text=cat&q=cat", &[form]).await;
        assert_ne!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path}");
        for other in [
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let (status, _) = send(path, "text=cat&q=cat", &[form, other]).await;
            assert_eq!(
                status,
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "{path} {other:?}"
            );
        }
    }
    let (status, _) = send("/embed", r#"{"inputs": "cat"}"#, &[form]).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_is_ignored() {
    let app = app(Limits::default());
    for (path, body) in [
        ("/embed", json!({ "inputs": "cat" })),
        ("/v1/embeddings", json!({ "input": "cat" })),
        ("/models/tiny", json!({ "inputs": "cat" })),
        (
            "/v1/rerank",
            json!({ "query": "cat", "documents": ["dog"] }),
        ),
    ] {
        let expected = ask(&app, path, &body).await;
        assert_eq!(expected.0, StatusCode::OK, "{path}");
        assert_eq!(
            ask(&app, &format!("{path}/"), &body).await,
            expected,
            "{path}"
        );
        let (status, _) = ask(&app, &format!("{path}//"), &body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    for path in [
        "/healthz",
        "/healthz/",
        "/v2/languages/?type=target",
        "/v1/models/tiny/",
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let status = app.clone().oneshot(request).await.unwrap().status();
        assert_eq!(status, StatusCode::OK, "{path}");
    }
    let (status, error) = ask(&app, "/v1/nowhere/", &json!({})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(error["error"]["message"].is_string(), "{error}");
    let nested = below(Some("/kivu"), router(scripted(Limits::default())));
    let (status, _) = ask(&nested, "/kivu/embed/", &json!({ "inputs": "cat" })).await;
    assert_eq!(status, StatusCode::OK);
}

/// NVIDIA's clients send words.
#[tokio::test]
async fn long_texts_are_truncated_as_nvidias_clients_ask() {
    let app = app(Limits::default());
    let text = format!("{}{}", "cat ".repeat(20), "dog ".repeat(20));
    let embed = async |more: Value| {
        let mut body = json!({ "input": [text], "model": "tiny" });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, found) = ask(&app, "/v1/embeddings", &body).await;
        (status.as_u16(), found["data"][0]["embedding"].clone())
    };
    let default = embed(json!({})).await;
    let start = embed(json!({ "truncate": "START", "input_type": "passage" })).await;
    assert_eq!((default.0, start.0), (200, 200));
    assert_ne!(default, start, "the end of the text");
    for end in ["END", "end"] {
        assert_eq!(embed(json!({ "truncate": end })).await, default);
    }
    assert_eq!(embed(json!({ "truncate": "start" })).await, start);
    assert_eq!(embed(json!({ "truncation_side": "left" })).await, start);
    assert_eq!(
        embed(json!({ "truncate_prompt_tokens": -1 })).await,
        default
    );
    for refused in [json!("NONE"), json!("none"), json!(false)] {
        assert_eq!(embed(json!({ "truncate": refused })).await.0, 413);
    }
    // As LangChain's `NVIDIAEmbeddings` sends it.
    let body = json!({
        "input": ["cat"], "model": "tiny", "encoding_format": "float", "input_type": "passage", "truncate": "NONE",
    });
    assert_eq!(ask(&app, "/v1/embeddings", &body).await.0, StatusCode::OK);
    for wrong in [json!("MIDDLE"), json!(7)] {
        assert_eq!(embed(json!({ "truncate": wrong })).await.0, 422);
    }
    // The same words for documents, and in lower case for Cohere's route.
    let rank = async |truncate: Value| {
        let body = json!({ "query": "cat", "documents": [text], "truncate": truncate });
        ask(&app, "/rerank", &body).await.0.as_u16()
    };
    assert_eq!(
        [rank(json!("END")).await, rank(json!("NONE")).await],
        [200, 413]
    );
    let cohere = json!({ "texts": [text], "truncate": "none" });
    assert_eq!(ask(&app, "/v2/embed", &cohere).await.0.as_u16(), 413);
}

/// LiteLLM sends documents to `/rerank` for vLLM and infinity.
#[tokio::test]
async fn rerank_takes_texts_or_documents() {
    let app = app(Limits::default());
    let documents = json!({ "query": "cat", "documents": ["dog", { "text": "cat" }], "top_n": 1 });
    let expected = ask(&app, "/v1/rerank", &documents).await;
    assert_eq!(expected.0, StatusCode::OK);
    for path in ["/rerank", "/reranking", "/v1/reranking"] {
        assert_eq!(ask(&app, path, &documents).await, expected, "{path}");
    }
    let texts = json!({ "query": "cat", "texts": ["dog", "cat"], "documents": null });
    let (_, ranks) = ask(&app, "/rerank", &texts).await;
    assert_eq!(ranks[0]["index"], expected.1["results"][0]["index"]);
    let top = json!({ "query": "cat", "texts": ["dog", "cat"], "top_n": 1 });
    let best = vec![ranks[0].clone()];
    assert_eq!(ask(&app, "/rerank", &top).await.1, json!(best));
    let mut of_others = Vec::new();
    for (form, field, value) in [
        ("texts", "use_activation", json!(false)),
        ("texts", "top_k", json!(1)),
        ("documents", "truncation_direction", json!("Left")),
        ("documents", "return_text", json!(true)),
    ] {
        let body = json!({ "query": "cat", form: ["dog"], field: value });
        let (status, error) = ask(&app, "/rerank", &body).await;
        of_others.push(format!("{status} {}", error["error"]));
    }
    insta::assert_snapshot!(of_others.join("\n"), @r#"
    422 Unprocessable Entity "`use_activation: false` is not supported: use `raw_scores`"
    422 Unprocessable Entity "`top_k: 1` is not supported: use `top_n`"
    422 Unprocessable Entity "`truncation_direction` is not supported: use `truncation_side`"
    422 Unprocessable Entity "`return_text: true` is not supported: use `return_documents`"
    "#);
    let both = json!({ "query": "cat", "texts": ["dog"], "documents": ["dog"] });
    let (_, error) = ask(&app, "/rerank", &both).await;
    insta::assert_snapshot!(error["error"], @r#""expected either `texts` or `documents`, but found both; leave one of them out""#);
}

#[tokio::test]
async fn scores_are_in_the_order_of_the_texts() {
    let app = app(Limits::default());
    let texts = ["dog", "cat", "bird"];
    let scores = async |body: Value| {
        let (status, found) = ask(&app, "/v1/score", &body).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        let scores = found["data"].as_array().unwrap().iter();
        scores
            .map(|score| score["score"].as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    let of_cat = scores(json!({ "text_1": "cat", "text_2": texts })).await;
    let of_dog = scores(json!({ "text_1": ["dog"], "text_2": texts })).await;
    let pairs = json!({ "queries": ["cat", "dog", "cat"], "documents": texts });
    assert_eq!(scores(pairs).await, [of_cat[0], of_dog[1], of_cat[2]]);
    let (_, ranked) = ask(
        &app,
        "/rerank",
        &json!({ "query": "cat", "texts": texts, "raw_scores": true }),
    )
    .await;
    for rank in ranked.as_array().unwrap() {
        let index = usize::try_from(rank["index"].as_u64().unwrap()).unwrap();
        assert!((rank["score"].as_f64().unwrap() - of_cat[index]).abs() < 1e-6);
    }
}

/// Ollama truncates texts at `num_ctx`; LangChain and others send it with every request.
#[tokio::test]
async fn ollamas_context_is_not_exceeded() {
    let app = app(Limits::default());
    let texts = json!(["cat", "cat dog cat dog"]);
    let embed = async |options: Value| {
        let body = json!({ "model": "tiny", "input": texts, "options": options });
        ask(&app, "/api/embed", &body).await
    };
    let (_, expected) = embed(Value::Null).await;
    for options in [
        json!({ "num_ctx": 512, "temperature": 0.1, "stop": ["a"] }),
        json!({ "num_ctx": 6 }),
    ] {
        let (status, found) = embed(options).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        assert_eq!(found["embeddings"], expected["embeddings"]);
    }
    let (_, error) = embed(json!({ "num_ctx": 5 })).await;
    insta::assert_snapshot!(error["error"], @r#""text 1: expected at most 5 tokens, the request's `options.num_ctx`, but found 6; leave it out""#);
    let body = json!({ "model": "tiny", "prompt": "cat dog", "options": { "num_ctx": 3 } });
    let (status, _) = ask(&app, "/api/embeddings", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}
