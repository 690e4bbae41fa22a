//! A builder for ONNX graphs, node by node.

use std::collections::BTreeSet;

use crate::onnx_proto::{
    AttributeProto, Dimension, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};

/// The domain of ONNX Runtime's own operators.
pub const MICROSOFT: &str = "com.microsoft";
const OPSET: i64 = 21;
/// The file format that belongs to [`OPSET`].
const IR_VERSION: i64 = 10;

type Attributes = Vec<AttributeProto>;

/// The name of a tensor in the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(String);

impl Value {
    /// An optional input or output that is left out.
    pub fn none() -> Self {
        Self(String::new())
    }
}

/// A graph under construction.
///
/// The output of a node is named after its operator. A constant is added once: a second one of the same name refers to
/// the first.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: GraphProto,
    constants: BTreeSet<String>,
    nodes: usize,
}

impl GraphBuilder {
    /// Adds an INT64 input. Each axis has a name and may have any length.
    pub fn input(&mut self, name: &str, axes: &[&str]) -> Value {
        self.graph.input.push(value_info(name, data_type::INT64, axes.iter().map(|axis| any(axis))));
        Value(name.to_owned())
    }

    /// Adds a float input.
    pub fn float_input(&mut self, name: &str, axes: impl IntoIterator<Item = Dimension>) -> Value {
        self.graph.input.push(value_info(name, data_type::FLOAT, axes));
        Value(name.to_owned())
    }

    /// Adds the float output `name` and an `Identity` that copies `value` to it.
    pub fn output(&mut self, value: &Value, name: &str, axes: impl IntoIterator<Item = Dimension>) {
        self.push(["", "Identity"], &[value], vec![name.to_owned()], Vec::new());
        self.graph.output.push(value_info(name, data_type::FLOAT, axes));
    }

    /// Renames `value`, the output of a node, to `name` and makes it a float output. Unlike [`GraphBuilder::output`],
    /// this copies nothing.
    pub fn expose(&mut self, value: &Value, name: &str, axes: impl IntoIterator<Item = Dimension>) {
        for node in &mut self.graph.node {
            let names = node.input.iter_mut().chain(&mut node.output);
            names.filter(|used| **used == value.0).for_each(|used| name.clone_into(used));
        }
        self.graph.output.push(value_info(name, data_type::FLOAT, axes));
    }

    /// Adds a FLOAT constant.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Value {
        self.constant(float_tensor(name, shape, values))
    }

    /// Adds an INT8 constant.
    pub fn bytes(&mut self, name: &str, shape: &[usize], values: &[i8]) -> Value {
        self.constant(int8_tensor(name, shape, values))
    }

    /// Adds a UINT8 constant that stores each value plus 128.
    pub fn shifted_bytes(&mut self, name: &str, shape: &[usize], values: &[i8]) -> Value {
        let bytes = values.iter().map(|value| value.cast_unsigned() ^ 0x80).collect();
        self.constant(tensor(name, data_type::UINT8, shape, bytes))
    }

    /// Adds a list of integers: axes, sizes, bounds.
    pub fn integers(&mut self, name: &str, values: &[i64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(tensor(name, data_type::INT64, &[values.len()], bytes))
    }

    fn constant(&mut self, tensor: TensorProto) -> Value {
        let name = tensor.name.clone();
        if self.constants.insert(name.clone()) {
            self.graph.initializer.push(tensor);
        }
        Value(name)
    }

    /// Adds a node of a standard operator with one output.
    pub fn node(&mut self, operator: &str, inputs: &[&Value], attributes: Attributes) -> Value {
        let output = self.fresh(operator);
        self.push(["", operator], inputs, vec![output.clone()], attributes);
        Value(output)
    }

    /// Adds a node of one of ONNX Runtime's own operators with one output.
    pub fn microsoft(&mut self, operator: &str, inputs: &[&Value], attributes: Attributes) -> Value {
        let output = self.fresh(operator);
        self.push([MICROSOFT, operator], inputs, vec![output.clone()], attributes);
        Value(output)
    }

    /// Adds a node of one of ONNX Runtime's own operators with several outputs; those that `keep` marks `false` are
    /// left out.
    pub fn several<const OUTPUTS: usize>(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: Attributes,
        keep: [bool; OUTPUTS],
    ) -> [Value; OUTPUTS] {
        let outputs = self.outputs(operator, keep);
        self.push([MICROSOFT, operator], inputs, outputs.to_vec(), attributes);
        outputs.map(Value)
    }

    /// Cuts `value` into equal parts along its last axis.
    pub fn split<const PARTS: usize>(&mut self, value: &Value) -> [Value; PARTS] {
        let parts = self.outputs("Split", [true; PARTS]);
        let attributes = vec![integer("axis", -1), integer("num_outputs", PARTS as i64)];
        self.push(["", "Split"], &[value], parts.to_vec(), attributes);
        parts.map(Value)
    }

    fn outputs<const COUNT: usize>(&mut self, operator: &str, keep: [bool; COUNT]) -> [String; COUNT] {
        let name = self.fresh(operator);
        std::array::from_fn(|output| if keep[output] { format!("{name}.{output}") } else { String::new() })
    }

    fn fresh(&mut self, operator: &str) -> String {
        self.nodes += 1;
        format!("{operator}_{}", self.nodes)
    }

    fn push(&mut self, operator: [&str; 2], inputs: &[&Value], output: Vec<String>, attribute: Attributes) {
        let [domain, op_type] = operator.map(str::to_owned);
        let input = inputs.iter().map(|input| input.0.clone()).collect();
        let name = output.first().cloned().unwrap_or_default();
        self.graph.node.push(NodeProto { name, op_type, domain, input, output, attribute });
    }

    /// The finished model.
    pub fn finish(mut self, name: &str) -> ModelProto {
        self.graph.name = name.to_owned();
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "kivu".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            opset_import: [("", OPSET), (MICROSOFT, 1)]
                .map(|(domain, version)| OperatorSetIdProto { domain: domain.into(), version })
                .into(),
            graph: Some(self.graph),
            functions: Vec::new(),
        }
    }
}

/// A FLOAT constant.
pub(in crate::build) fn float_tensor(name: &str, shape: &[usize], values: &[f32]) -> TensorProto {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, data_type::FLOAT, shape, bytes)
}

/// An INT8 constant.
pub(in crate::build) fn int8_tensor(name: &str, shape: &[usize], values: &[i8]) -> TensorProto {
    let bytes = values.iter().map(|value| value.cast_unsigned()).collect();
    tensor(name, data_type::INT8, shape, bytes)
}

fn tensor(name: &str, data_type: i32, shape: &[usize], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type,
        dims: shape.iter().map(|side| *side as i64).collect(),
        raw_data: bytes.into(),
        ..TensorProto::default()
    }
}

/// An integer attribute.
pub fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i: value, r#type: attribute_type::INT, ..AttributeProto::default() }
}

/// An attribute with a list of integers.
pub fn integers(name: &str, values: &[i64]) -> AttributeProto {
    let ints = values.to_vec();
    AttributeProto { name: name.into(), ints, r#type: attribute_type::INTS, ..AttributeProto::default() }
}

/// A float attribute.
pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { name: name.into(), f: value, r#type: attribute_type::FLOAT, ..AttributeProto::default() }
}

/// An axis of any length.
pub fn any(name: &str) -> Dimension {
    Dimension::DimParam(name.into())
}

/// An axis of a fixed length.
pub fn fixed(length: usize) -> Dimension {
    Dimension::DimValue(length as i64)
}

fn value_info(name: &str, elem_type: i32, axes: impl IntoIterator<Item = Dimension>) -> ValueInfoProto {
    let dim = axes.into_iter().map(|axis| DimensionProto { value: Some(axis) }).collect();
    let tensor_type = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}
