//! Differences that `make exactness` found, between changed fixtures and the same models in `transformers` or
//! sentence-transformers.

use std::{fs, path::Path};

use kivu::{config::Limits, repository::manifest::Precision};
use kivu_http::{App, router};
use serde_json::{Value, json};

use crate::{
    copies::copy,
    messages::ask,
    models::{fixtures, open, runtime},
};

/// Sets a field in a model's file.
fn set(model: &Path, file: &str, field: &str, value: Value) {
    let path = model.join(file);
    let mut fields: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    fields[field] = value;
    fs::write(path, fields.to_string()).unwrap();
}

/// A fixture's response after a field was changed, in fp32; `None` without ONNX Runtime.
async fn answer(
    name: &str,
    change: Option<(&str, &str, Value)>,
    path: &str,
    body: Value,
) -> Option<Value> {
    let runtime = runtime()?;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    copy(&fixtures().join("models").join(name), &source);
    if let Some((file, field, value)) = change {
        set(&source, file, field, value);
    }
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let model = open(source, &out, Some(Precision::Fp32), runtime).unwrap();
    let app = router(App::new(vec![model], Limits::default()));
    let (status, answer) = ask(&app, path, body).await;
    assert_eq!(status, 200, "{answer}");
    Some(answer)
}

/// `eos_token_id` in the generation settings may differ.
#[tokio::test]
async fn sources_end_with_the_token_of_the_tokenizer() {
    let body = || json!({"inputs": "The cat sits on the mat.", "src_lang": "en", "tgt_lang": "fr"});
    let Some(expected) = answer("tiny-m2m100", None, "/translate", body()).await else {
        return;
    };
    // The padding token is never generated.
    let change = ("generation_config.json", "eos_token_id", json!([1, 2]));
    assert_eq!(
        answer("tiny-m2m100", Some(change), "/translate", body())
            .await
            .unwrap(),
        expected
    );
}

/// sentence-transformers truncates vectors after their modules, and does not scale them to length 1 again.
#[tokio::test]
async fn vectors_are_truncated_to_the_dimensions_of_the_files() {
    const SETTINGS: &str = "config_sentence_transformers.json";
    let tensor = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["hello"]});
    let body = || json!({"inputs": [tensor], "outputs": [{"name": "embedding"}]});
    let path = "/v2/models/model/infer";
    let Some(whole) = answer("tiny-bert", None, path, body()).await else {
        return;
    };
    let truncated = answer(
        "tiny-bert",
        Some((SETTINGS, "truncate_dim", json!(8))),
        path,
        body(),
    )
    .await
    .unwrap();
    assert_eq!(truncated["outputs"][0]["shape"], json!([1, 8]));
    let values = |answer: &Value| -> Vec<f64> {
        let data = answer["outputs"][0]["data"].as_array().unwrap();
        data.iter()
            .take(8)
            .map(|value| value.as_f64().unwrap())
            .collect()
    };
    for (found, expected) in values(&truncated).iter().zip(values(&whole)) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    let more = answer(
        "tiny-bert",
        Some((SETTINGS, "truncate_dim", json!(1000))),
        path,
        body(),
    )
    .await
    .unwrap();
    assert_eq!(more["outputs"][0], whole["outputs"][0]);
}

/// sentence-transformers 6 compares them with the installed packages.
#[tokio::test]
async fn required_packages_have_no_effect() {
    let change = (
        "config_sentence_transformers.json",
        "requirements",
        json!({"transformers": ">=5.15", "peft": {"specifier": ">=0.18", "reason": "adapters"}}),
    );
    let body = || json!({"inputs": "hello"});
    let Some(expected) = answer("tiny-bert", None, "/embed", body()).await else {
        return;
    };
    let found = answer("tiny-bert", Some(change), "/embed", body()).await;
    assert_eq!(found, Some(expected));
}

/// A `Router` encodes queries by its own modules, also in files without prompts.
#[tokio::test]
async fn queries_need_no_prompts() {
    let body = || json!({"inputs": "The cat sits on the mat.", "model": "model:query"});
    let Some(expected) = answer("tiny-splade-router", None, "/embed_sparse", body()).await else {
        return;
    };
    let change = ("config_sentence_transformers.json", "prompts", json!({}));
    assert_eq!(
        answer("tiny-splade-router", Some(change), "/embed_sparse", body())
            .await
            .unwrap(),
        expected
    );
}
