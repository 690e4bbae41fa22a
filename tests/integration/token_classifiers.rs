//! The same entities as the `token-classification` pipeline of `transformers`, on a tiny model of every family.

use std::fs;

use axum::{body::Body, http::Request};
use http_body_util::BodyExt;
use kivu::{
    api::{App, router},
    config::Limits,
    model::Model,
    pipeline::Task,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::models::{fixtures, open_for, runtime};

/// The tolerance of a score relative to `transformers` in fp32.
const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    entries: Vec<Entry>,
}

/// A call of the pipeline of `transformers`, and its result.
#[derive(Debug, Deserialize)]
struct Entry {
    inputs: Value,
    parameters: Value,
    output: Value,
}

async fn post(model: &Model, path: &str, body: &Value) -> (u16, Value) {
    let app = router(App::new(vec![model.clone()], Limits::default()));
    let request = Request::post(path).header("content-type", "application/json");
    let response = app.oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

/// Whether two outputs are equal but for the tolerance of scores.
fn are_equal(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| are_equal(found, expected))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && expected.iter().all(|(name, expected)| match (name.as_str(), &found[name]) {
                    ("score", found) => {
                        (found.as_f64().unwrap() - expected.as_f64().unwrap()).abs() <= TOLERANCE
                    }
                    (_, found) => found == expected,
                })
        }
        (found, expected) => found == expected,
    }
}

/// Compares the outputs for all texts and parameters; all failures are reported.
async fn compare(name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = open_for(Task::TokenClassification, name, folder.path(), runtime).unwrap();
    let path = format!("/models/{}", model.name);
    let golden = fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap();
    let Golden { entries } = serde_json::from_slice(&golden).unwrap();
    let mut failures = Vec::new();
    for Entry { inputs, parameters, output } in &entries {
        let mut sent = parameters.clone();
        // The defaults of the pipeline of `transformers`, which are not those of the model hub.
        sent["truncate"] = true.into();
        sent["aggregation_strategy"] =
            parameters.get("aggregation_strategy").cloned().unwrap_or_else(|| "none".into());
        let (status, answer) = post(&model, &path, &json!({ "inputs": inputs, "parameters": sent })).await;
        if status != 200 || !are_equal(&answer, output) {
            failures.push(format!("{inputs} {sent}:\n  found    {answer}\n  expected {output}"));
        }
    }
    assert!(entries.len() >= 70, "{name} has {} calls", entries.len());
    assert!(failures.is_empty(), "{name}, {} calls:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
async fn bert_with_bio_labels() {
    compare("tiny-bert-ner").await;
}

#[tokio::test]
async fn distilbert_with_labels_of_no_scheme() {
    compare("tiny-distilbert-ner").await;
}

#[tokio::test]
async fn roberta_with_bioes_labels() {
    compare("tiny-roberta-ner").await;
}

#[tokio::test]
async fn xlm_roberta() {
    compare("tiny-xlm-roberta-ner").await;
}

#[tokio::test]
async fn deberta() {
    compare("tiny-deberta-ner").await;
}

#[tokio::test]
async fn mpnet() {
    compare("tiny-mpnet-ner").await;
}

#[tokio::test]
async fn modernbert() {
    compare("tiny-modernbert-ner").await;
}

#[tokio::test]
async fn qwen3() {
    compare("tiny-qwen3-ner").await;
}
