//! Reads signatures from ONNX graphs.

use super::{Signature, TensorSpec};
use kivu_base::{
    Error, Result,
    onnx_proto::{Dimension, DimensionProto, GraphProto, ValueInfoProto, data_type},
    tensor::ElementType,
};

impl Signature {
    /// The signature that a graph declares; equals ONNX Runtime's if the graph's outputs have shapes.
    pub fn declared(graph: &GraphProto) -> Result<Self> {
        // Old files also list their constants as inputs.
        let is_constant = |name: &str| graph.constant(name).is_some();
        let inputs = graph.input.iter().filter(|input| !is_constant(&input.name));
        Ok(Self {
            inputs: inputs.map(spec).collect::<Result<_>>()?,
            outputs: graph.output.iter().map(spec).collect::<Result<_>>()?,
        })
    }
}

fn spec(value: &ValueInfoProto) -> Result<TensorSpec> {
    let tensor = value
        .r#type
        .as_ref()
        .and_then(|value| value.tensor_type.as_ref());
    let element_type = match tensor.map(|tensor| tensor.elem_type) {
        Some(data_type::FLOAT) => ElementType::Fp32,
        Some(data_type::INT32) => ElementType::Int32,
        Some(data_type::INT64) => ElementType::Int64,
        found => {
            let found = found.map_or_else(
                || "no tensor".to_owned(),
                |found| format!("element type {found}"),
            );
            return Err(Error::model(format!(
                "expected `{}` to be a tensor of FP32, INT32 or INT64, but found {found}",
                value.name
            )));
        }
    };
    let axes = tensor
        .and_then(|tensor| tensor.shape.as_ref())
        .map_or(&[][..], |shape| &shape.dim);
    let side = |axis: &DimensionProto| match axis.value {
        Some(Dimension::DimValue(length)) => length,
        _ => -1,
    };
    Ok(TensorSpec::new(
        &*value.name,
        element_type,
        axes.iter().map(side).collect::<Vec<_>>(),
    ))
}
