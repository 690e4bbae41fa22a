//! Tests the `Backend` contract.

use std::time::Duration;

use kivu::{
    Error,
    backend::{Backend, Deadline},
    tensor::{Elements, Tensor},
};

pub(crate) fn deadline() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

/// Inputs with `rows` × `columns` for a backend that takes integers.
pub(crate) fn inputs(backend: &dyn Backend, rows: usize, columns: usize) -> Vec<Tensor> {
    let inputs = backend.signature().inputs.iter();
    inputs
        .map(|spec| {
            let value = i64::from(spec.name != "token_type_ids");
            Tensor::integers(
                spec.element_type,
                [rows, columns],
                vec![value; rows * columns],
            )
            .unwrap()
        })
        .collect()
}

/// Tests the [`Backend`] contract.
pub(crate) async fn keeps_its_contract(backend: &dyn Backend) {
    // Outputs are in signature order and have the inputs' rows.
    let outputs = backend
        .infer(inputs(backend, 2, 3), deadline())
        .await
        .unwrap();
    assert_eq!(outputs.len(), backend.signature().outputs.len());
    for (output, spec) in outputs.iter().zip(&backend.signature().outputs) {
        assert_eq!(output.shape()[0], 2);
        assert_eq!(output.element_type(), spec.element_type);
        assert_eq!(output.shape().len(), spec.shape.len());
    }

    // Wrong inputs are refused, with the expected ones in the message.
    let error = backend.infer(Vec::new(), deadline()).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    let floats = Tensor::new(vec![1, 1], Elements::Fp32(vec![0.0])).unwrap();
    let wrong = vec![floats; backend.signature().inputs.len()];
    let error = backend.infer(wrong, deadline()).await.unwrap_err();
    assert!(error.to_string().contains("but found FP32"), "{error}");

    // A deadline that has passed is exceeded.
    let late = backend
        .infer(inputs(backend, 1, 1), Deadline::within(Duration::ZERO))
        .await
        .unwrap_err();
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late:?}");

    // Failures do not affect later batches, and concurrent batches get their own outputs.
    let many = (1..20).map(|columns| async move {
        let outputs = backend
            .infer(inputs(backend, 1, columns), deadline())
            .await
            .unwrap();
        let shape = outputs[0].shape();
        assert!(shape.len() == 2 || shape[1] == columns, "{shape:?}");
    });
    futures::future::join_all(many).await;
}
