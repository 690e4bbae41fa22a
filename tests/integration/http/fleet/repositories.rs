//! Triton serves the repositories that `kivu triton` writes.

use std::{fs, time::Duration};

use kivu::{
    backend::{Deadline, RemoteSource},
    config::{FleetConfig, ModelConfig, Policy},
    fleet::Fleet,
    pipeline::Task,
    repository::{
        Bundle,
        triton::{Options, Runner, write},
    },
};
use serde_json::json;

use super::{
    agree, app_of, model, post,
    server::{Triton, bundle, packages},
};
use crate::{contract::keeps_its_contract, models::runtime};

fn options() -> Options {
    Options {
        backend: Some(Runner::Onnx),
        max_batch_size: 8,
        instances: 2,
        tensorrt: true,
        text: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn triton_serves_exported_bundles() {
    let (Some(packages), Some(runtime)) = (packages(), runtime()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let cases = [
        (
            Task::FeatureExtraction,
            "tiny-bert",
            "/embed",
            json!({ "inputs": ["a text", "another one, longer"] }),
        ),
        (
            Task::TextClassification,
            "tiny-roberta-nli",
            "/predict",
            json!({ "inputs": [["a text"], ["b"]] }),
        ),
        (
            Task::TextRanking,
            "tiny-modernbert-rank",
            "/rerank",
            json!({ "query": "a text", "texts": ["b", "another one, longer"] }),
        ),
        (
            Task::TokenClassification,
            "tiny-bert-ner",
            "/models/token-classification",
            json!({
                "inputs": ["a text", "another one, longer ".repeat(20)],
                "parameters": { "stride": 8, "redact": true },
            }),
        ),
    ];
    let mut bundles = Vec::new();
    for (task, fixture, ..) in &cases {
        let bundle = bundle(*task, fixture, folder.path(), runtime);
        let text = *task != Task::TokenClassification;
        let options = Options {
            backend: Some(Runner::Python),
            tensorrt: false,
            text,
            ..options()
        };
        let names = write(&Bundle::open(&bundle).unwrap(), &repository, &options).unwrap();
        let name = task.to_string();
        let all = [
            name.clone(),
            format!("{name}_tokenizer"),
            format!("{name}_text"),
        ];
        assert_eq!(names, all[..if text { 3 } else { 1 }]);
        bundles.push(bundle);
    }
    let triton = Triton::start(&packages, &repository);
    for url in triton.urls() {
        let config = FleetConfig {
            urls: vec![url],
            ..FleetConfig::default()
        };
        let fleet = Fleet::new(&config, "feature-extraction").unwrap();
        let backend = fleet
            .connect(Deadline::within(Duration::from_secs(20)))
            .await
            .unwrap();
        keeps_its_contract(&*backend).await;
    }
    for ((task, _, path, body), bundle) in cases.iter().zip(&bundles) {
        let here = post(&app_of(ModelConfig::from(bundle.clone())), path, body).await;
        for (url, suffix) in triton
            .urls()
            .iter()
            .flat_map(|url| [(url, ""), (url, "_text")])
        {
            // A model with text inputs takes no pairs, and has no token positions.
            if matches!(task, Task::TextRanking | Task::TokenClassification) && suffix == "_text" {
                continue;
            }
            let remote = format!("{task}{suffix}");
            let there = app_of(model(bundle, Policy::Fleet, &remote, &[url]));
            let there = post(&there, path, body).await;
            assert_eq!(
                (there.status, there.backend()),
                (200, "triton"),
                "{remote}: {}",
                there.body
            );
            assert!(
                agree(&there.body, &here.body),
                "{remote}: {}, expected {}",
                there.body,
                here.body
            );
        }
    }
}

#[test]
fn configurations_follow_the_options() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let bundle = bundle(
        Task::FeatureExtraction,
        "tiny-roberta",
        folder.path(),
        runtime,
    );
    let bundle = Bundle::open(&bundle).unwrap();
    let repository = folder.path().join("repository");
    write(&bundle, &repository, &options()).unwrap();
    let config = fs::read_to_string(repository.join("feature-extraction/config.pbtxt")).unwrap();
    insta::assert_snapshot!(config, @r#"
    name: "feature-extraction"
    backend: "onnxruntime"
    default_model_filename: "model.onnx"
    max_batch_size: 8
    input [ { name: "input_ids" data_type: TYPE_INT64 dims: [-1] } ]
    input [ { name: "attention_mask" data_type: TYPE_INT64 dims: [-1] } ]
    output [ { name: "last_hidden_state" data_type: TYPE_FP32 dims: [-1, 32] } ]
    dynamic_batching { max_queue_delay_microseconds: 500 }
    instance_group [ { count: 2 kind: KIND_AUTO } ]
    optimization { execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } } ] } }
    model_warmup [ { name: "16 tokens" batch_size: 1 inputs { key: "input_ids" value: { data_type: TYPE_INT64 dims: [16] zero_data: true } } inputs { key: "attention_mask" value: { data_type: TYPE_INT64 dims: [16] zero_data: true } } } ]
    model_warmup [ { name: "64 tokens" batch_size: 1 inputs { key: "input_ids" value: { data_type: TYPE_INT64 dims: [64] zero_data: true } } inputs { key: "attention_mask" value: { data_type: TYPE_INT64 dims: [64] zero_data: true } } } ]
    "#);
    assert!(repository.join("feature-extraction/1/model.onnx").is_file());
    let again = write(&bundle, &repository, &options())
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(again.replace(&folder.path().display().to_string(), "[folder]"), @"`[folder]/repository/feature-extraction` exists already; remove it, or choose another folder");
    let error = write(
        &bundle,
        &repository,
        &Options {
            backend: Some(Runner::Python),
            ..options()
        },
    )
    .unwrap_err();
    insta::assert_snapshot!(error, @"expected TensorRT with the backend `onnxruntime`, but found `python`");
}
