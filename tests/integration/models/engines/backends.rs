//! The `Backend` contract, kept by the implementations in this process.

use kivu::{
    backend::{Backend, Schedule, scripted::ScriptedBackend, tensors::TensorEncoder},
    onnx::OnnxBackend,
    repository::manifest::Precision,
    tensor::{ElementType, Elements, Tensor},
};

use crate::{
    contract::{deadline, inputs, keeps_its_contract},
    engines::encoders::encoder_keeps_its_contract,
    models::{backend, build_request, fixtures, request, runtime},
};

#[tokio::test]
async fn the_scripted_backend() {
    let signature = kivu::backend::Signature {
        inputs: ["input_ids", "attention_mask"]
            .map(|name| kivu::backend::TensorSpec::new(name, ElementType::Int64, [-1, -1]))
            .into(),
        outputs: vec![kivu::backend::TensorSpec::new(
            "last_hidden_state",
            ElementType::Fp32,
            [-1, -1, 4],
        )],
    };
    let backend = ScriptedBackend::new(signature, |inputs| {
        let [rows, columns] = inputs[0].shape() else {
            unreachable!("checked by the signature")
        };
        Ok(vec![Tensor::new(
            vec![*rows, *columns, 4],
            Elements::Fp32(vec![0.5; rows * columns * 4]),
        )?])
    });
    keeps_its_contract(&backend).await;
    assert_eq!(backend.shapes()[0], [2, 3]);
}

#[tokio::test]
async fn the_onnx_backend() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-bert", "tiny-roberta"] {
        let request = request(
            fixtures().join("models").join(name),
            folder.path().join(name),
            Some(Precision::Fp32),
        );
        let bundle = build_request(&request, runtime).unwrap();
        let backend = backend(&bundle, runtime);
        assert_eq!(
            backend.schedule(),
            Schedule {
                max_batch_size: 1.try_into().unwrap(),
                concurrency: 2.try_into().unwrap(),
                min_call_tokens: 32
            }
        );
        keeps_its_contract(&backend).await;
        let encoder = TensorEncoder::shared(backend).unwrap();
        encoder_keeps_its_contract(&*encoder).await;
    }
}

/// Concurrent runs on one session give the same bits as a single run.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_runs_give_the_same_bits() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert");
    let bundle = build_request(
        &request(source, folder.path().join("b"), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    let backend =
        OnnxBackend::open(runtime, &bundle.path("model.onnx"), 8.try_into().unwrap()).unwrap();
    let mut alone = Vec::new();
    for columns in 1..48 {
        alone.push(
            backend
                .infer(inputs(&backend, 1, columns), deadline())
                .await
                .unwrap(),
        );
    }
    let (backend, alone) = (&backend, &alone);
    let rounds = (0..40).flat_map(|_| 1..48).map(|columns| async move {
        let outputs = backend
            .infer(inputs(backend, 1, columns), deadline())
            .await
            .unwrap();
        assert!(outputs == alone[columns - 1], "{columns} tokens");
    });
    futures::future::join_all(rounds).await;
}
