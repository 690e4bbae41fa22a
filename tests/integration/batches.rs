//! Uploaded files and batches of requests, over HTTP.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use kivu::{
    api::{App, BatchRunner, BindScope, Files, Guard, KeyLimits, make_limited_key, router},
    config::{AuthConfig, Config, FilesConfig, Limits},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::{
    api::{answer, post, scripted, scripted_model},
    live::{root, succeed, tool},
    models::runtime,
    serving::{Server, kivu},
};

fn files_in(folder: &TempDir, limits: &FilesConfig) -> Arc<Files> {
    let place = folder.path().join("files").display().to_string();
    let files = FilesConfig {
        folder: Some(place),
        ..limits.clone()
    };
    Files::open(&Config {
        files,
        ..Config::default()
    })
    .unwrap()
    .unwrap()
}

/// A form with a file and other fields.
fn form(fields: &[(&str, &str)], file: &str) -> Request<Body> {
    let mut body = String::new();
    for (name, value) in fields {
        body +=
            &format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    body += &format!(
        "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{file}\r\n--x--\r\n"
    );
    let request =
        Request::post("/v1/files").header("content-type", "multipart/form-data; boundary=x");
    request.body(body.into()).unwrap()
}

fn line(id: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": "/v1/embeddings", "body": body}).to_string()
        + "\n"
}

/// A caller of a router, with or without a key.
struct Caller<'a> {
    router: &'a Router,
    key: Option<String>,
}

impl Caller<'_> {
    async fn send(&self, mut request: Request<Body>) -> (StatusCode, Value) {
        if let Some(key) = &self.key {
            request
                .headers_mut()
                .insert("x-api-key", key.parse().unwrap());
        }
        answer(self.router.clone().oneshot(request).await.unwrap()).await
    }

    async fn ask(&self, method: Method, path: &str) -> (StatusCode, Value) {
        self.send(
            Request::builder()
                .method(method)
                .uri(path)
                .body(Body::empty())
                .unwrap(),
        )
        .await
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// An error's status and message.
    async fn refusal(&self, request: Request<Body>) -> String {
        let (status, body) = self.send(request).await;
        format!(
            "{}: {}",
            status.as_u16(),
            body["error"]["message"].as_str().unwrap_or("no message")
        )
    }

    async fn upload(&self, contents: &str) -> String {
        let (status, file) = self.send(form(&[("purpose", "batch")], contents)).await;
        assert_eq!(status, StatusCode::OK, "{file}");
        file["id"].as_str().unwrap().to_owned()
    }

    async fn start(&self, file: &str) -> (StatusCode, Value) {
        let body = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
        self.send(post("/v1/batches", body.to_string())).await
    }

    /// Waits until a batch has ended.
    async fn ended(&self, id: &str) -> Value {
        loop {
            let batch = self.get(&format!("/v1/batches/{id}")).await;
            if ["completed", "failed", "expired", "cancelled"]
                .contains(&batch["status"].as_str().unwrap())
            {
                return batch;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn lines(&self, file: &Value) -> Vec<Value> {
        let path = format!("/v1/files/{}/content", file.as_str().unwrap());
        let request = Request::get(path).header("x-api-key", self.key.as_deref().unwrap_or("none"));
        let response = self
            .router
            .clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(
            response.headers()["content-type"],
            "application/octet-stream"
        );
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn runner(files: &Arc<Files>) -> BatchRunner {
    let app = App::new(vec![scripted_model()], Limits::default());
    BatchRunner::start(app, Arc::clone(files), Duration::from_secs(60)).unwrap()
}

/// Each response, also an error, is the one that its route returns.
#[tokio::test]
async fn a_batch_has_the_responses_of_its_route() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(&folder, &FilesConfig::default());
    let router = router(scripted(Limits::default()).with_files(Some(Arc::clone(&files))));
    let caller = Caller {
        router: &router,
        key: None,
    };
    let bodies = [
        json!({"input": "the cat", "model": "tiny"}),
        json!({"input": ["the cat", "a dog"], "model": "tiny:query", "encoding_format": "base64"}),
        json!({"input": "cat", "model": "tiny", "dimensions": 1}),
        json!({"input": "", "model": "tiny"}),
        json!({"input": "cat", "model": "bert"}),
        json!({"input": "cat", "model": "tiny", "dimensions": "many"}),
        json!({"input": [[3, 4], [5]], "token_encoding": "model"}),
        json!({}),
    ];
    let lines: String = bodies
        .iter()
        .enumerate()
        .map(|(id, body)| line(&format!("r{id}"), body))
        .collect();
    let (status, batch) = caller.start(&caller.upload(&lines).await).await;
    assert_eq!(
        (status, &batch["status"]),
        (StatusCode::OK, &json!("validating"))
    );
    let runner = runner(&files);
    let batch = caller.ended(batch["id"].as_str().unwrap()).await;
    runner.stop();
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(
        batch["request_counts"],
        json!({"total": 8, "completed": 4, "failed": 4})
    );
    let mut found = caller.lines(&batch["output_file_id"]).await;
    found.extend(caller.lines(&batch["error_file_id"]).await);
    found.sort_by_key(|line| line["custom_id"].to_string());
    assert_eq!(found.len(), bodies.len());
    let mut tokens = 0;
    for (line, body) in found.iter().zip(&bodies) {
        let (status, expected) = caller.send(post("/v1/embeddings", body.to_string())).await;
        let response = &line["response"];
        assert_eq!(
            (&response["status_code"], &response["body"]),
            (&json!(status.as_u16()), &expected),
            "{body}"
        );
        assert!(
            line["id"].is_string() && response["request_id"].is_string() && line["error"].is_null()
        );
        tokens += expected["usage"]["prompt_tokens"].as_u64().unwrap_or(0);
    }
    assert_eq!(batch["usage"]["total_tokens"], tokens);
}

fn guarded(files: &Arc<Files>, lines: Vec<String>) -> Router {
    let config = AuthConfig {
        keys: lines,
        ..AuthConfig::default()
    };
    let guard = Guard::new(&config, BindScope::ApiGateway).unwrap();
    router(
        scripted(Limits::default())
            .with_files(Some(Arc::clone(files)))
            .with_guard(guard),
    )
}

#[tokio::test]
async fn callers_see_only_their_own_files_and_batches() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(&folder, &FilesConfig::default());
    let [(alice, one), (bob, other)] =
        ["alice", "bob"].map(|name| make_limited_key(name, &KeyLimits::default()).unwrap());
    let router = guarded(&files, vec![one, other]);
    let [alice, bob] = [alice, bob].map(|key| Caller {
        router: &router,
        key: Some(key),
    });
    let file = alice.upload(&line("a", &json!({"input": "cat"}))).await;
    let (_, batch) = alice.start(&file).await;
    let batch = batch["id"].as_str().unwrap();
    assert_eq!(alice.get("/v1/files").await["data"][0]["id"], file);
    assert_eq!(alice.get("/v1/batches").await["data"][0]["id"], batch);
    for path in ["/v1/files", "/v1/batches"] {
        assert_eq!(
            bob.get(path).await,
            json!({"object": "list", "data": [], "has_more": false})
        );
    }
    // An id of another caller has the response of an unknown one.
    let [no_file, no_batch] = [&file, batch].map(|id| {
        let (start, end) = id.split_at(id.len() - 4);
        format!("{start}{}", if end == "0000" { "1111" } else { "0000" })
    });
    for (method, path) in [
        (Method::GET, "/v1/files/FILE"),
        (Method::GET, "/v1/files/FILE/content"),
        (Method::DELETE, "/v1/files/FILE"),
        (Method::GET, "/v1/batches/BATCH"),
        (Method::POST, "/v1/batches/BATCH/cancel"),
    ] {
        let path_of = |file: &str, batch: &str| path.replace("FILE", file).replace("BATCH", batch);
        let (status, foreign) = bob.ask(method.clone(), &path_of(&file, batch)).await;
        let (_, unknown) = bob.ask(method.clone(), &path_of(&no_file, &no_batch)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}");
        let unknown = unknown
            .to_string()
            .replace(&no_file, &file)
            .replace(&no_batch, batch);
        assert_eq!(foreign.to_string(), unknown, "{method} {path}");
        if method == Method::GET {
            assert_eq!(
                alice.ask(method, &path_of(&file, batch)).await.0,
                StatusCode::OK,
                "{path}"
            );
        }
    }
    assert_eq!(bob.start(&file).await.0, StatusCode::NOT_FOUND);
    assert_eq!(
        alice.get(&format!("/v1/batches/{batch}")).await["status"],
        "validating"
    );
    for id in ["file-", "..", "file-..%2f..%2fqueue", "%2e%2e%2fqueue"] {
        assert_eq!(
            alice.ask(Method::GET, &format!("/v1/files/{id}")).await.0,
            StatusCode::NOT_FOUND,
            "{id}"
        );
    }
}

#[tokio::test]
async fn the_models_of_a_key_apply_to_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(&folder, &FilesConfig::default());
    let limits = KeyLimits {
        models: vec!["other".into()],
        ..KeyLimits::default()
    };
    let (key, line_of_key) = make_limited_key("alice", &limits).unwrap();
    let router = guarded(&files, vec![line_of_key]);
    let caller = Caller {
        router: &router,
        key: Some(key),
    };
    let file = caller
        .upload(&line("a", &json!({"input": "cat", "model": "tiny"})))
        .await;
    let (_, batch) = caller.start(&file).await;
    let runner = runner(&files);
    let batch = caller.ended(batch["id"].as_str().unwrap()).await;
    runner.stop();
    let errors = caller.lines(&batch["error_file_id"]).await;
    let response = &errors[0]["response"];
    assert_eq!(
        (&response["status_code"], &response["body"]["error"]["code"]),
        (&json!(404), &json!("model_not_found"))
    );
    assert_eq!(batch["output_file_id"], Value::Null);
}

#[tokio::test]
async fn wrong_uploads_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(
        &folder,
        &FilesConfig {
            bytes: 100,
            count: 2,
            ..FilesConfig::default()
        },
    );
    let router = router(scripted(Limits::default()).with_files(Some(files)));
    let caller = Caller {
        router: &router,
        key: None,
    };
    let other_type = |kind: &str| {
        let mut request = form(&[("purpose", "batch")], "{}");
        request
            .headers_mut()
            .insert("content-type", kind.parse().unwrap());
        request
    };
    let expiry = |seconds| {
        form(
            &[
                ("purpose", "batch"),
                ("expires_after[anchor]", "created_at"),
                ("expires_after[seconds]", seconds),
            ],
            "{}",
        )
    };
    let mut cut = form(&[("purpose", "batch")], "{}");
    let bytes = std::mem::take(cut.body_mut())
        .collect()
        .await
        .unwrap()
        .to_bytes();
    *cut.body_mut() = bytes.slice(..bytes.len() - 6).into();
    let mut packed = form(&[("purpose", "batch")], "{}");
    packed
        .headers_mut()
        .insert("content-encoding", "gzip".parse().unwrap());
    let long = "x".repeat(2000);
    let requests = [
        form(&[], "{}"),
        form(&[("purpose", "fine-tune")], "{}"),
        form(&[("purpose", "batch_output")], "{}"),
        form(&[("purpose", "batch")], &long),
        form(&[("purpose", &long)], "{}"),
        expiry("60"),
        expiry("soon"),
        cut,
        packed,
        other_type("application/json"),
        other_type("multipart/form-data"),
        other_type("multipart/form-data; boundary=y"),
    ];
    let mut refusals = Vec::new();
    for request in requests {
        refusals.push(caller.refusal(request).await);
    }
    insta::assert_snapshot!(refusals.join("\n"), @r"
    422: expected the field `purpose`, but found none
    422: expected `purpose` to be `batch`, but found another value
    422: expected `purpose` to be `batch`, but found another value
    413: expected a file of at most 100 bytes, but found more
    413: expected fields of at most 1024 bytes, but found more
    422: expected `expires_after.seconds` from 3600 to 2592000, but found 60
    422: expected `expires_after.seconds` to be an integer from 0 on, but found a string
    400: expected a complete form as `multipart/form-data`, but found something else
    415: expected a form without `content-encoding`, but found one
    415: expected the content type `multipart/form-data` with a boundary, but found another
    415: expected the content type `multipart/form-data` with a boundary, but found another
    400: expected a complete form as `multipart/form-data`, but found something else
    ");
    assert_eq!(caller.get("/v1/files").await["data"], json!([]));
    let folders = std::fs::read_dir(folder.path().join("files"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("files"));
    for folder in folders.filter(|folder| folder.is_dir()) {
        assert_eq!(
            std::fs::read_dir(&folder).unwrap().count(),
            0,
            "{}",
            folder.display()
        );
    }
    for _ in 0..2 {
        caller.upload("{}").await;
    }
    insta::assert_snapshot!(caller.refusal(form(&[("purpose", "batch")], "{}")).await, @"422: expected fewer than 2 files before an upload, but found 2; delete some");
    let (_, file) = caller.send(expiry("3600")).await;
    assert!(file["error"].is_object());
    let listed = caller.get("/v1/files").await;
    let id = listed["data"][0]["id"].as_str().unwrap();
    let (_, deleted) = caller.ask(Method::DELETE, &format!("/v1/files/{id}")).await;
    assert_eq!(
        deleted,
        json!({"id": id, "object": "file", "deleted": true})
    );
    let (_, file) = caller.send(expiry("3600")).await;
    assert_eq!(
        file["expires_at"].as_u64().unwrap() - file["created_at"].as_u64().unwrap(),
        3600
    );
}

#[tokio::test]
async fn wrong_batches_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(
        &folder,
        &FilesConfig {
            batches: 1,
            ..FilesConfig::default()
        },
    );
    let router = router(scripted(Limits::default()).with_files(Some(files)));
    let caller = Caller {
        router: &router,
        key: None,
    };
    let file = caller.upload("{}").await;
    let right =
        json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let mut refusals = Vec::new();
    for (field, value) in [
        ("endpoint", json!("/v1/chat/completions")),
        ("completion_window", json!("1h")),
        ("input_file_id", json!("file-1")),
        ("metadata", json!({"a": "b".repeat(513)})),
        ("metadata", json!({"a": 1})),
        (
            "output_expires_after",
            json!({"anchor": "created_at", "seconds": 1}),
        ),
    ] {
        let mut body = right.clone();
        body[field] = value;
        refusals.push(caller.refusal(post("/v1/batches", body.to_string())).await);
    }
    for query in ["limit=0", "limit=101", "limit=x", "after=x", "order=up"] {
        let request = Request::get(format!("/v1/batches?{query}"))
            .body(Body::empty())
            .unwrap();
        refusals.push(caller.refusal(request).await);
    }
    let (_, batch) = caller.start(&file).await;
    refusals.push(caller.refusal(post("/v1/batches", right.to_string())).await);
    // Without a runner, a cancelled batch stays unfinished.
    let path = format!("/v1/batches/{}/cancel", batch["id"].as_str().unwrap());
    for _ in 0..2 {
        let (status, cancelled) = caller.ask(Method::POST, &path).await;
        assert_eq!(
            (status, &cancelled["status"]),
            (StatusCode::OK, &json!("cancelling"))
        );
    }
    insta::assert_snapshot!(refusals.join("\n"), @r"
    422: expected `endpoint` to be `/v1/embeddings`, but found another value
    422: expected `completion_window` to be `24h`, but found another value
    404: unknown file `file-1`
    422: expected at most 512 characters per value in `metadata`, but found 513
    422: expected `metadata.a` to be a string, but found `1`
    422: expected `output_expires_after.seconds` from 3600 to 2592000, but found 1
    422: expected `limit` from 1 to 100, but found 0
    422: expected `limit` from 1 to 100, but found 101
    422: expected the parameters `after`, `limit` (a number), `order` (`asc` or `desc`) and `purpose`, each at most once, but found others
    422: expected `after` to be an id that begins with `batch_`
    422: expected the parameters `after`, `limit` (a number), `order` (`asc` or `desc`) and `purpose`, each at most once, but found others
    422: expected fewer than 1 unfinished batches before a new one, but found 1; wait, or cancel some
    ");
    let (status, body) = Caller {
        router: &plain(),
        key: None,
    }
    .ask(Method::GET, "/v1/files")
    .await;
    insta::assert_snapshot!(format!("{status} {body}"), @r#"404 Not Found {"error":{"code":null,"message":"no route `/v1/files`: `files.folder` is not set","param":null,"type":"invalid_request_error"}}"#);
}

/// A router without files.
fn plain() -> Router {
    router(scripted(Limits::default()))
}

#[test]
fn published_clients_run_batches_unchanged() {
    let Some(python) = tool("TEST_PYTHON") else {
        return;
    };
    runtime().expect("`make test` installs ONNX Runtime");
    let folder = tempfile::tempdir().unwrap();
    let [(key, one), (other_key, other)] =
        ["alice", "bob"].map(|name| make_limited_key(name, &KeyLimits::default()).unwrap());
    let mut serve = kivu(&root().join(".kivu/bundles/minilm"));
    serve.env("KIVU_FILES__FOLDER", folder.path().join("files"));
    serve.env("KIVU_AUTH__KEYS", format!("{one},{other}"));
    let server = Server::wait(serve.stderr(Stdio::null()).spawn().unwrap());
    let mut tests = Command::new(python);
    tests.arg(root().join("tests/clients/test_batches.py"));
    tests
        .env("TEST_URL", format!("http://{}", server.address))
        .env("TEST_KEYS", format!("{key},{other_key}"));
    succeed(&mut tests);
}
