//! Builds the models that lines of standard input name and answers requests to them, for `make exactness`. Each line of
//! standard output is the outcome of one model.
//!
//! Models pass through [`build`] and the server's router, as with `kivu build` and `kivu serve`, in one process.

use std::{
    any::Any,
    env, fs,
    io::{BufRead, Error as IoError, Write, stdin, stdout},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use axum::{Router, body::Body, http::Request as HttpRequest};
use http_body_util::BodyExt;
use kivu::{
    cloud::Cloud,
    config::{Config, EngineChoice, Limits},
    error::Result,
    model::Model,
    onnx::{Runtime, library},
    pipeline::Task,
    repository::manifest::Precision,
};
use kivu_compiler::{Request, build, quality::Samples};
use kivu_http::{App, router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A model and requests to it.
#[derive(Deserialize)]
struct Case {
    folder: PathBuf,
    /// Where its bundle is written.
    out: PathBuf,
    task: Option<Task>,
    engine: EngineChoice,
    requests: Vec<Call>,
}

/// A `POST` request's path and body.
#[derive(Deserialize)]
struct Call {
    path: String,
    body: Value,
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // `cargo bench` adds `--bench`.
    let home = env::args().skip(1).find(|argument| argument != "--bench");
    let home = home.ok_or("usage: exactness HOME < CASES, with a line of JSON for each model")?;
    let config = Config {
        home: home.into(),
        ..Config::default()
    };
    let loaded = Runtime::load(&library::locate(None, &config.home)?)?;
    let executor = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    for line in stdin().lock().lines() {
        let case: Case = serde_json::from_str(&line?)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(answer(&case, &config, loaded))
        }));
        let outcome = match outcome {
            Ok(Ok(answers)) => json!({ "answers": answers }),
            Ok(Err(error)) => json!({ "refused": error.chain() }),
            Err(panic) => json!({ "panicked": message(&*panic) }),
        };
        fs::remove_dir_all(&case.out).or_else(ignore_missing)?;
        let mut output = stdout().lock();
        writeln!(output, "{outcome}")?;
        output.flush()?;
    }
    Ok(())
}

fn ignore_missing(error: IoError) -> std::result::Result<(), IoError> {
    if error.kind() == std::io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

/// Builds the model and returns the responses to all requests.
async fn answer(case: &Case, config: &Config, runtime: Runtime) -> Result<Vec<Value>> {
    let request = Request {
        source: case.folder.clone(),
        out: case.out.clone(),
        name: Some("model".to_owned()),
        task: case.task,
        is_sparse: false,
        precision: Some(Precision::Fp32),
        engine: case.engine,
        allow: Vec::new(),
        samples: Samples::default(),
        is_for_comparison: false,
        cache: config.home.clone(),
    };
    tokio::task::block_in_place(|| build(&request, &|| Ok(runtime), &()))?;
    let models = tokio::task::block_in_place(|| open(&case.out, config))?;
    let router = router(App::new(models, Limits::default()));
    let mut answers = Vec::new();
    for call in &case.requests {
        answers.push(respond(router.clone(), call).await);
    }
    Ok(answers)
}

fn open(bundle: &Path, config: &Config) -> Result<Vec<Model>> {
    let config = Config {
        home: config.home.clone(),
        ..Config::default()
    };
    Model::open(bundle, &config, &Cloud::default()).map(|model| vec![model])
}

/// A response's status and body.
async fn respond(router: Router, call: &Call) -> Value {
    let request = HttpRequest::post(&call.path).header("content-type", "application/json");
    let request = request
        .body(Body::from(call.body.to_string()))
        .unwrap_or_default();
    let response = router
        .oneshot(request)
        .await
        .unwrap_or_else(|never| match never {});
    let status = response.status().as_u16();
    let body = response
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    json!({ "status": status, "body": serde_json::from_slice::<Value>(&body).unwrap_or_default() })
}
