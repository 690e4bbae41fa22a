//! A server that refuses requests as invalid.
//!
//! With the policy `auto` such requests run in this process, like requests that fail on the fleet for another reason:
//! Kivu has validated them, so the local model may accept them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Json, Router,
    http::StatusCode,
    routing::{get, post as on_post},
};
use kivu::{
    config::{ModelConfig, Policy},
    pipeline::Task,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{agree, app_of, model, post, server::bundle};
use crate::models::runtime;

/// A KServe v2 server that describes its model and refuses to run it.
struct Refusing {
    url: String,
    refused: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Refusing {
    /// A server for the model `model` with encoder inputs and `output`.
    async fn start(output: Value) -> Self {
        let input = |name| json!({ "name": name, "datatype": "INT64", "shape": [-1, -1] });
        let inputs = [input("input_ids"), input("attention_mask")];
        let metadata =
            json!({ "name": "model", "platform": "test", "inputs": inputs, "outputs": [output] });
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        let refuse = || async move {
            count.fetch_add(1, Ordering::Relaxed);
            let error = "unexpected shape for input 'input_ids' for model 'model'. Expected [-1,4], got [1,5]";
            (StatusCode::BAD_REQUEST, Json(json!({ "error": error })))
        };
        let routes = Router::new()
            .route("/v2/models/model", get(|| async { Json(metadata) }))
            .route(
                "/v2/models/model/config",
                get(|| async { Json(json!({ "max_batch_size": 0 })) }),
            )
            .route("/v2/models/model/infer", on_post(refuse));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self {
            url,
            refused,
            serving,
        }
    }

    fn take_refused(&self) -> usize {
        self.refused.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Case {
    task: Task,
    fixture: &'static str,
    output: Value,
    path: &'static str,
    /// Has enough tokens that `auto` sends it to the fleet.
    request: Value,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_the_fleet_refuses_run_locally() {
    let Some(runtime) = runtime() else { return };
    let texts: Vec<String> = (0..40)
        .map(|number| format!("The cat {number} sits on the mat."))
        .collect();
    let cases = [
        Case {
            task: Task::FeatureExtraction,
            fixture: "tiny-bert",
            output: json!({ "name": "last_hidden_state", "datatype": "FP32", "shape": [-1, -1, 32] }),
            path: "/embed",
            request: json!({ "inputs": texts }),
        },
        Case {
            task: Task::Translation,
            fixture: "tiny-m2m100",
            output: json!({ "name": "generated_indices", "datatype": "INT64", "shape": [-1, -1] }),
            path: "/translate",
            request: json!({ "inputs": texts[..4], "src_lang": "en", "tgt_lang": "fr" }),
        },
    ];
    for Case {
        task,
        fixture,
        output,
        path,
        request,
    } in cases
    {
        let folder = tempfile::tempdir().unwrap();
        let bundle = bundle(task, fixture, folder.path(), runtime);
        let server = Refusing::start(output).await;
        let app = |policy| app_of(model(&bundle, policy, "model", &[&server.url]));

        let engine = if task == Task::Translation {
            "onnx"
        } else {
            "native"
        };
        let expected = post(&app_of(ModelConfig::from(bundle.clone())), path, &request).await;
        assert_eq!(
            (expected.status, expected.backend()),
            (200, engine),
            "{}",
            expected.body
        );
        let auto = app(Policy::Auto);
        // Refusals do not make a server unhealthy, so the next request is sent to it again.
        for _ in 0..2 {
            let answer = post(&auto, path, &request).await;
            assert!(
                server.take_refused() > 0,
                "{task}: the request was not sent to the fleet"
            );
            assert_eq!(
                (answer.status, answer.backend()),
                (200, engine),
                "{task}: {}",
                answer.body
            );
            assert!(
                agree(&answer.body, &expected.body),
                "{}, expected {}",
                answer.body,
                expected.body
            );
        }
        // Without a local model the refusal is the response.
        let answer = post(&app(Policy::Fleet), path, &request).await;
        assert_eq!(answer.status, 502, "{task}: {}", answer.body);
        let error = answer.body["error"].as_str().unwrap();
        assert!(
            error.starts_with("the fleet refused a request to `model`: unexpected shape"),
            "{error}"
        );
    }
}
