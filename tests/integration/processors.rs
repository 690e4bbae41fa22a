//! Products of 8-bit integers are the same on every processor. `make processors` runs these tests on emulated ones
//! as well.

use std::num::NonZeroUsize;

use kivu::{
    backend::{onnx::Session, processor::Int8Instructions},
    build::onnx::{GraphBuilder, Value, proto::Dimension, write},
    tensor::{Elements, Tensor},
};

use crate::models::runtime;

const INPUTS: usize = 64;
const OUTPUTS: usize = 32;

/// The largest weights times the largest inputs: their sums exceed 16 bits from the second on.
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
    graph.output(&product, "output", [Dimension::DimParam("rows".into()), axis(OUTPUTS)]);
    let folder = tempfile::tempdir().unwrap();
    write(graph.finish("product"), folder.path(), "product.onnx").unwrap();

    let session = Session::open(runtime, &folder.path().join("product.onnx"), NonZeroUsize::MIN).unwrap();
    let input = Tensor::new(vec![1, INPUTS], Elements::Fp32(vec![255.0; INPUTS])).unwrap();
    let output = session.run(&[input]).unwrap();
    let expected = (INPUTS * 255 * 127) as f32;
    let instructions = Int8Instructions::detected();
    assert_eq!(output[0].as_fp32().unwrap(), [expected; OUTPUTS], "{instructions}");
}

fn axis(length: usize) -> Dimension {
    Dimension::DimValue(length as i64)
}
