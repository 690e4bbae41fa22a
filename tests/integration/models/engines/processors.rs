//! Int8 products are the same on all processors. `make arm64` and `make avx2` run these tests on emulated processors.

use std::{fs, num::NonZeroUsize};

use kivu::{
    backend::processor::Int8Instructions,
    onnx::{ExternalWeights, Graph, Session, keeps_signed_weights},
    pipeline::Task,
    repository::manifest::Precision,
    tensor::{Elements, Tensor},
};
use kivu_compiler::onnx::{GraphBuilder, Value, WEIGHTS, proto::Dimension, write};

use crate::models::{build_request, fixtures, request_without_floor, runtime};

const INPUTS: usize = 64;
const OUTPUTS: usize = 32;

/// The largest weights times the largest inputs: the sum of two products exceeds 16 bits.
#[test]
fn products_of_large_integers_do_not_saturate() {
    let Some(runtime) = runtime() else { return };
    let mut graph = GraphBuilder::default();
    let input = graph.float_input("input", [Dimension::DimParam("rows".into()), axis(INPUTS)]);
    let weights = graph.bytes("weights", &[INPUTS, OUTPUTS], &[127; INPUTS * OUTPUTS]);
    let scales = graph.floats("scales", &[OUTPUTS], &[1.0; OUTPUTS]);
    let zero = graph.bytes("zero_point", &[], &[0]);
    let inputs = [&input, &weights, &scales, &zero, &Value::none()];
    let product = graph.microsoft("DynamicQuantizeMatMul", &inputs, vec![]);
    graph.output(
        &product,
        "output",
        [Dimension::DimParam("rows".into()), axis(OUTPUTS)],
    );
    let folder = tempfile::tempdir().unwrap();
    write(graph.finish("product"), folder.path(), "product.onnx").unwrap();

    let path = folder.path().join("product.onnx");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let mut weights =
        ExternalWeights::of(
            &[read("product.onnx")],
            |name| Some(read(name).len() as u64),
        )
        .unwrap();
    weights.file(WEIGHTS).fill(&read(WEIGHTS));
    let in_memory = Graph::in_memory(vec![read("product.onnx")], weights)
        .unwrap()
        .remove(0);
    let expected = (INPUTS * 255 * 127) as f32;
    for graph in [Graph::from(&path), in_memory] {
        let session = Session::open(runtime, graph, NonZeroUsize::MIN).unwrap();
        // ONNX Runtime has a separate kernel for a single row.
        for rows in [1, 8] {
            let input = Tensor::new(
                vec![rows, INPUTS],
                Elements::Fp32(vec![255.0; rows * INPUTS]),
            )
            .unwrap();
            let output = session.run(&[input]).unwrap();
            let instructions = Int8Instructions::detected();
            let expected = vec![expected; rows * OUTPUTS];
            assert_eq!(
                output[0].as_fp32().unwrap(),
                expected,
                "{rows} rows, {instructions}"
            );
        }
    }
}

/// ONNX Runtime converts weights to unsigned ones only if the graph has their zero points.
#[test]
fn weights_of_built_bundles_can_become_unsigned() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for source in ["models/tiny-bert", "exports/tiny-bert"] {
        let source = fixtures().join(source);
        let (task, out) = (Task::FeatureExtraction, folder.path().join("out"));
        let request = request_without_floor(task, &source, out, Some(Precision::Int8));
        let bundle = build_request(&request, runtime).unwrap();
        let graph = bundle.read(&bundle.manifest().graph).unwrap();
        assert!(
            !keeps_signed_weights(&graph).unwrap(),
            "{}",
            source.display()
        );
    }
}

fn axis(length: usize) -> Dimension {
    Dimension::DimValue(length as i64)
}
