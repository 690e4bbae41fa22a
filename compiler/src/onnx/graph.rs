//! A builder for ONNX graphs, node by node.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use half::{bf16, f16};
use kivu_engine::array::Array;

use kivu::onnx_proto::{
    AttributeProto, Dimension, DimensionProto, FUNCTIONS, FunctionProto, GraphProto, MICROSOFT,
    ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto, attribute_type, data_type,
};

const OPSET: i64 = 21;
/// File format version that matches [`OPSET`].
const IR_VERSION: i64 = 10;

type Attributes = Vec<AttributeProto>;

/// Nodes with a standard operator without attributes.
macro_rules! operators {
    ($($method:ident = $operator:literal ($($input:ident),*);)*) => {
        impl GraphBuilder {
            $(#[doc = concat!("Adds a node with `", $operator, "`.")]
            pub fn $method(&mut self, $($input: &Value),*) -> Value {
                self.node($operator, &[$($input),*], vec![])
            })*
        }
    };
}

operators! {
    abs = "Abs" (value);
    add = "Add" (left, right);
    choose = "Where" (condition, value, other);
    cumsum = "CumSum" (value, axis);
    div = "Div" (left, right);
    equal = "Equal" (left, right);
    expand = "Expand" (value, shape);
    gather = "Gather" (value, places);
    greater = "Greater" (left, right);
    matmul = "MatMul" (left, right);
    max = "Max" (left, right);
    min = "Min" (left, right);
    mul = "Mul" (left, right);
    not = "Not" (value);
    pad = "Pad" (value, pads);
    relu = "Relu" (value);
    reshape = "Reshape" (value, shape);
    round = "Round" (value);
    shape = "Shape" (value);
    sigmoid = "Sigmoid" (value);
    slice = "Slice" (value, start, end, axis);
    squeeze = "Squeeze" (value, axes);
    sub = "Sub" (left, right);
    tanh = "Tanh" (value);
    unsqueeze = "Unsqueeze" (value, axes);
}

/// A tensor name in the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(String);

impl Value {
    /// An omitted optional input or output.
    pub fn none() -> Self {
        Self(String::new())
    }
}

/// A graph under construction.
///
/// A node's output is named after its operator. A constant is added once: adding it again refers to the first, and
/// another with its name gets a number.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: GraphProto,
    constants: BTreeMap<String, TensorProto>,
    nodes: usize,
    /// Model-local functions, by name; `None` if their nodes are written into the graph.
    functions: Option<BTreeMap<String, FunctionProto>>,
    /// Whether this is a function body, in which constants are nodes.
    is_body: bool,
}

impl GraphBuilder {
    /// Creates a graph that calls model-local functions in the domain `kivu`, for engines that know them by name.
    pub fn with_functions() -> Self {
        Self {
            functions: Some(BTreeMap::new()),
            ..Self::default()
        }
    }

    /// Whether the graph calls model-local functions.
    pub fn has_functions(&self) -> bool {
        self.functions.is_some()
    }

    /// Adds `body`'s nodes: as a call to the function `name` if this graph has functions, or else one by one.
    pub fn function<const INPUTS: usize>(
        &mut self,
        name: &str,
        inputs: [&Value; INPUTS],
        body: impl FnOnce(&mut Self, [&Value; INPUTS]) -> Value,
    ) -> Value {
        self.function_of(name, &inputs, |graph, inputs| {
            body(graph, std::array::from_fn(|input| inputs[input]))
        })
    }

    /// Like [`function`](Self::function), with any number of inputs.
    pub fn function_of(
        &mut self,
        name: &str,
        inputs: &[&Value],
        body: impl FnOnce(&mut Self, &[&Value]) -> Value,
    ) -> Value {
        let Some(functions) = &mut self.functions else {
            return body(self, inputs);
        };
        if !functions.contains_key(name) {
            let names: Vec<Value> = (0..inputs.len())
                .map(|input| Value(format!("input_{input}")))
                .collect();
            let mut nodes = Self {
                is_body: true,
                ..Self::default()
            };
            let output = body(&mut nodes, &names.iter().collect::<Vec<_>>());
            let function = FunctionProto {
                name: name.to_owned(),
                domain: FUNCTIONS.to_owned(),
                input: names.into_iter().map(|name| name.0).collect(),
                output: vec![output.0],
                node: nodes.graph.node,
                opset_import: opsets([("", OPSET), (MICROSOFT, 1)]),
                ..FunctionProto::default()
            };
            functions.insert(name.to_owned(), function);
        }
        let output = self.fresh(name);
        self.push([FUNCTIONS, name], inputs, vec![output.clone()], Vec::new());
        Value(output)
    }

    /// Adds an INT64 input. Each axis has a name and may have any length.
    pub fn input(&mut self, name: &str, axes: &[&str]) -> Value {
        self.graph.input.push(value_info(
            name,
            data_type::INT64,
            axes.iter().map(|axis| any(axis)),
        ));
        Value(name.to_owned())
    }

    /// Adds a float input.
    pub fn float_input(&mut self, name: &str, axes: impl IntoIterator<Item = Dimension>) -> Value {
        self.graph
            .input
            .push(value_info(name, data_type::FLOAT, axes));
        Value(name.to_owned())
    }

    /// Adds the float output `name` and an `Identity` that copies `value` to it.
    pub fn output(&mut self, value: &Value, name: &str, axes: impl IntoIterator<Item = Dimension>) {
        self.push(
            ["", "Identity"],
            &[value],
            vec![name.to_owned()],
            Vec::new(),
        );
        self.graph
            .output
            .push(value_info(name, data_type::FLOAT, axes));
    }

    /// Renames the node output `value` to `name` and makes it a float output. Unlike [`GraphBuilder::output`], this
    /// copies nothing.
    pub fn expose(&mut self, value: &Value, name: &str, axes: impl IntoIterator<Item = Dimension>) {
        for node in &mut self.graph.node {
            let names = node.input.iter_mut().chain(&mut node.output);
            names
                .filter(|used| **used == value.0)
                .for_each(|used| name.clone_into(used));
        }
        self.graph
            .output
            .push(value_info(name, data_type::FLOAT, axes));
    }

    /// Adds a FLOAT constant.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Value {
        self.constant(float_tensor(name, shape, values))
    }

    /// Adds a FLOAT constant without axes.
    pub fn scalar(&mut self, name: &str, value: f32) -> Value {
        self.floats(name, &[], &[value])
    }

    /// Adds a constant in BFLOAT16 or FLOAT16 if that changes no number, or else in FLOAT.
    pub fn short_floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Value {
        let in_16_bits = |shorten: fn(f32) -> u16, restore: fn(u16) -> f32| {
            let bits = values.iter().map(|value| {
                let bits = shorten(*value);
                let is_same = restore(bits).to_bits() == value.to_bits() && value.is_finite();
                is_same.then_some(bits)
            });
            bits.collect::<Option<Vec<u16>>>()
        };
        let brain = in_16_bits(
            |value| bf16::from_f32(value).to_bits(),
            |bits| bf16::from_bits(bits).to_f32(),
        );
        let found = brain.map(|bits| (data_type::BFLOAT16, bits)).or_else(|| {
            let half = in_16_bits(
                |value| f16::from_f32(value).to_bits(),
                |bits| f16::from_bits(bits).to_f32(),
            );
            half.map(|bits| (data_type::FLOAT16, bits))
        });
        match found {
            Some((kind, bits)) => {
                self.constant(tensor(name, kind, shape, Array::from(bits).into_bytes()))
            }
            None => self.floats(name, shape, values),
        }
    }

    /// Adds an INT8 constant.
    pub fn bytes(&mut self, name: &str, shape: &[usize], values: &[i8]) -> Value {
        self.constant(int8_tensor(name, shape, values))
    }

    /// Adds a UINT8 constant that stores each value plus 128.
    pub fn shifted_bytes(&mut self, name: &str, shape: &[usize], values: &[i8]) -> Value {
        let bytes: Vec<u8> = values
            .iter()
            .map(|value| value.cast_unsigned() ^ 0x80)
            .collect();
        self.unsigned_bytes(name, shape, &bytes)
    }

    /// Adds an INT32 constant.
    pub fn sums(&mut self, name: &str, shape: &[usize], values: &[i32]) -> Value {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.constant(tensor(name, data_type::INT32, shape, bytes))
    }

    /// Adds a UINT8 constant.
    pub fn unsigned_bytes(&mut self, name: &str, shape: &[usize], values: &[u8]) -> Value {
        self.constant(tensor(name, data_type::UINT8, shape, values.to_vec()))
    }

    /// Adds an INT64 list: axes, sizes, bounds.
    pub fn integers(&mut self, name: &str, values: &[i64]) -> Value {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.constant(tensor(name, data_type::INT64, &[values.len()], bytes))
    }

    fn constant(&mut self, mut tensor: TensorProto) -> Value {
        let plain = tensor.name.clone();
        for copy in 2.. {
            match self.constants.get(&tensor.name) {
                None => break,
                Some(found) if *found == tensor => return Value(tensor.name),
                Some(_) => tensor.name = format!("{plain}.{copy}"),
            }
        }
        let name = tensor.name.clone();
        // The bytes are shared.
        self.constants.insert(name.clone(), tensor.clone());
        match self.is_body {
            false => self.graph.initializer.push(tensor),
            true => self.push(
                ["", "Constant"],
                &[],
                vec![name.clone()],
                vec![constant("value", tensor)],
            ),
        }
        Value(name)
    }

    /// Adds a node with a standard operator and one output.
    pub fn node(&mut self, operator: &str, inputs: &[&Value], attributes: Attributes) -> Value {
        let output = self.fresh(operator);
        self.push(["", operator], inputs, vec![output.clone()], attributes);
        Value(output)
    }

    /// The list `[0]`.
    pub fn zero(&mut self) -> Value {
        self.integers("zero", &[0])
    }

    /// The list `[1]`.
    pub fn one(&mut self) -> Value {
        self.integers("one", &[1])
    }

    /// The list `[2]`.
    pub fn two(&mut self) -> Value {
        self.integers("two", &[2])
    }

    /// The list `[-1]`.
    pub fn last_axis(&mut self) -> Value {
        self.integers("last_axis", &[-1])
    }

    /// Reduces axes, which the result lacks.
    pub fn reduce(&mut self, operator: &str, inputs: &[&Value]) -> Value {
        self.node(operator, inputs, vec![integer("keepdims", 0)])
    }

    /// Reduces axes to a length of 1.
    pub fn reduce_keeping(&mut self, operator: &str, inputs: &[&Value]) -> Value {
        self.node(operator, inputs, vec![integer("keepdims", 1)])
    }

    /// Values at places along an axis.
    pub fn gather_along(&mut self, value: &Value, places: &Value, axis: i64) -> Value {
        self.node("Gather", &[value, places], vec![integer("axis", axis)])
    }

    /// The numbers in fp32.
    pub fn float(&mut self, value: &Value) -> Value {
        self.cast(value, data_type::FLOAT)
    }

    /// Joins values along an axis.
    pub fn concat(&mut self, values: &[&Value], axis: i64) -> Value {
        self.node("Concat", values, vec![integer("axis", axis)])
    }

    /// Orders the axes of `value`.
    pub fn transpose(&mut self, value: &Value, order: &[i64]) -> Value {
        self.node("Transpose", &[value], vec![integers("perm", order)])
    }

    /// Products of each vector and each matrix row, to which a bias is added, if there is one.
    pub fn row_products(&mut self, inputs: &[&Value]) -> Value {
        self.node("Gemm", inputs, vec![integer("transB", 1)])
    }

    /// Probabilities along the last axis.
    pub fn softmax(&mut self, value: &Value) -> Value {
        self.node("Softmax", &[value], vec![integer("axis", -1)])
    }

    /// Casts `value` to another element type, see [`data_type`].
    pub fn cast(&mut self, value: &Value, to: i32) -> Value {
        self.node("Cast", &[value], vec![integer("to", i64::from(to))])
    }

    /// Adds a node with an ONNX Runtime operator and one output.
    pub fn microsoft(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: Attributes,
    ) -> Value {
        let output = self.fresh(operator);
        self.push(
            [MICROSOFT, operator],
            inputs,
            vec![output.clone()],
            attributes,
        );
        Value(output)
    }

    /// Adds a node with an ONNX Runtime operator and several outputs; omits outputs with `false` in `keep`.
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

    /// The largest values along the last axis of `value`, in descending order; as many as `count` says.
    pub fn largest(&mut self, value: &Value, count: &Value) -> Value {
        let [values, places] = self.outputs("TopK", [true; 2]);
        let outputs = vec![values.clone(), places];
        self.push(
            ["", "TopK"],
            &[value, count],
            outputs,
            vec![integer("axis", -1)],
        );
        Value(values)
    }

    /// Cuts `value` into equal parts along its last axis.
    pub fn split<const PARTS: usize>(&mut self, value: &Value) -> [Value; PARTS] {
        let parts = self.outputs("Split", [true; PARTS]);
        let attributes = vec![integer("axis", -1), integer("num_outputs", PARTS as i64)];
        self.push(["", "Split"], &[value], parts.to_vec(), attributes);
        parts.map(Value)
    }

    /// Cuts `value` into parts with the given lengths along its last axis.
    pub fn split_into<const PARTS: usize>(
        &mut self,
        value: &Value,
        lengths: [usize; PARTS],
    ) -> [Value; PARTS] {
        let parts = self.outputs("Split", [true; PARTS]);
        let lengths = lengths.map(|length| length as i64);
        let name = format!(
            "lengths_{}",
            lengths.map(|length| length.to_string()).join("_")
        );
        let lengths = self.integers(&name, &lengths);
        self.push(
            ["", "Split"],
            &[value, &lengths],
            parts.to_vec(),
            vec![integer("axis", -1)],
        );
        parts.map(Value)
    }

    fn outputs<const COUNT: usize>(
        &mut self,
        operator: &str,
        keep: [bool; COUNT],
    ) -> [String; COUNT] {
        let name = self.fresh(operator);
        std::array::from_fn(|output| {
            if keep[output] {
                format!("{name}.{output}")
            } else {
                String::new()
            }
        })
    }

    fn fresh(&mut self, operator: &str) -> String {
        self.nodes += 1;
        format!("{operator}_{}", self.nodes)
    }

    fn push(
        &mut self,
        operator: [&str; 2],
        inputs: &[&Value],
        output: Vec<String>,
        attribute: Attributes,
    ) {
        let [domain, op_type] = operator.map(str::to_owned);
        let input = inputs.iter().map(|input| input.0.clone()).collect();
        let name = output.first().cloned().unwrap_or_default();
        self.graph.node.push(NodeProto {
            name,
            op_type,
            domain,
            input,
            output,
            attribute,
        });
    }

    /// The finished model.
    pub fn finish(mut self, name: &str) -> ModelProto {
        self.graph.name = name.to_owned();
        if self.functions.is_none() {
            // Only the native engine reads what bodies do not need.
            let nodes = &self.graph.node;
            let used: BTreeSet<&String> = nodes.iter().flat_map(|node| &node.input).collect();
            let is_used = |tensor: &TensorProto| used.contains(&tensor.name);
            self.graph.initializer.retain(is_used);
        }
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "kivu".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            opset_import: match &self.functions {
                None => opsets([("", OPSET), (MICROSOFT, 1)]),
                Some(_) => opsets([("", OPSET), (MICROSOFT, 1), (FUNCTIONS, 1)]),
            },
            graph: Some(self.graph),
            functions: self.functions.unwrap_or_default().into_values().collect(),
        }
    }
}

fn opsets<const COUNT: usize>(domains: [(&str, i64); COUNT]) -> Vec<OperatorSetIdProto> {
    domains
        .map(|(domain, version)| OperatorSetIdProto {
            domain: domain.into(),
            version,
        })
        .into()
}

/// A FLOAT constant.
pub fn float_tensor(name: &str, shape: &[usize], values: &[f32]) -> TensorProto {
    // Little-endian, as all platforms are.
    let bytes = Array::from(values.to_vec()).into_bytes();
    tensor(name, data_type::FLOAT, shape, bytes)
}

/// An INT8 constant.
pub fn int8_tensor(name: &str, shape: &[usize], values: &[i8]) -> TensorProto {
    tensor(
        name,
        data_type::INT8,
        shape,
        Array::from(values.to_vec()).into_bytes(),
    )
}

fn tensor(name: &str, data_type: i32, shape: &[usize], bytes: impl Into<Bytes>) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type,
        dims: shape.iter().map(|side| *side as i64).collect(),
        raw_data: bytes.into(),
        ..TensorProto::default()
    }
}

fn constant(name: &str, tensor: TensorProto) -> AttributeProto {
    AttributeProto {
        t: Some(tensor),
        ..attribute(name, attribute_type::TENSOR)
    }
}

/// An integer attribute.
pub fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        i: value,
        ..attribute(name, attribute_type::INT)
    }
}

/// An integer list attribute.
pub fn integers(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        ints: values.to_vec(),
        ..attribute(name, attribute_type::INTS)
    }
}

/// A float attribute.
pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        f: value,
        ..attribute(name, attribute_type::FLOAT)
    }
}

/// A string attribute.
pub fn string(name: &str, value: &'static str) -> AttributeProto {
    AttributeProto {
        s: value.as_bytes().into(),
        ..attribute(name, attribute_type::STRING)
    }
}

fn attribute(name: &str, kind: i32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: kind,
        ..AttributeProto::default()
    }
}

/// An axis with any length.
pub fn any(name: &str) -> Dimension {
    Dimension::DimParam(name.into())
}

/// An axis with a fixed length.
pub fn fixed(length: usize) -> Dimension {
    Dimension::DimValue(length as i64)
}

fn value_info(
    name: &str,
    elem_type: i32,
    axes: impl IntoIterator<Item = Dimension>,
) -> ValueInfoProto {
    let dim = axes
        .into_iter()
        .map(|axis| DimensionProto { value: Some(axis) })
        .collect();
    typed(
        name,
        TensorTypeProto {
            elem_type,
            shape: Some(TensorShapeProto { dim }),
        },
    )
}

fn typed(name: &str, tensor_type: TensorTypeProto) -> ValueInfoProto {
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor_type),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_with_one_name_are_added_once_each() {
        let mut graph = GraphBuilder::default();
        let names = [&[1.0][..], &[2.0], &[1.0], &[1.0, 2.0], &[2.0]]
            .map(|values| graph.floats("factors", &[values.len()], values).0);
        assert_eq!(
            names,
            ["factors", "factors.2", "factors", "factors.3", "factors.2"]
        );
        assert_eq!(graph.graph.initializer.len(), 3);
    }
}
