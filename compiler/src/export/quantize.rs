//! Quantizes and optimizes an export's graphs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::{
    onnx::{self, float_tensor, int8_tensor, integer},
    plan::Build,
    quantize::{rows, transpose},
};
use kivu::{
    Error, Result,
    onnx::Session,
    onnx_proto::{
        GraphProto, MICROSOFT, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, data_type,
    },
    repository::manifest::Precision,
    tensor::read_numbers,
};

/// Graph constants by name.
type Constants = BTreeMap<String, TensorProto>;

/// Minimum row count for quantizing a table.
const MIN_TABLE_ROWS: usize = 1024;

/// A graph with weights in `precision`, optimized by ONNX Runtime. Keeps a quantized graph's weights.
pub fn prepare(model: &ModelProto, precision: Precision, build: Build<'_>) -> Result<ModelProto> {
    let mut model = model.clone();
    if precision == Precision::Int8 && !is_quantized(&model) {
        quantize(&mut model);
    }
    let folder = tempfile::tempdir_in(build.scratch)
        .map_err(Error::io("cannot create a folder for a graph"))?;
    let (plain, optimized) = (
        folder.path().join("plain.onnx"),
        folder.path().join("optimized.onnx"),
    );
    onnx::write(model, folder.path(), "plain.onnx")?;
    Session::optimize((build.runtime)()?, &plain, &optimized)?;
    onnx::read(&optimized)
}

/// Checks that an export build supports `precision`. Only layers that were read back are written in blocks.
pub fn check_precision(
    precision: Precision,
    [is_quantized, has_layers]: [bool; 2],
    folder: &Path,
) -> Result<()> {
    match precision {
        Precision::Int8Blocks if !has_layers => Err(Error::model(
            "expected `int8` or `fp32` for an ONNX export, but found `int8-blocks`, which is for weights and for exports of \
             encoders that the native engine runs",
        )),
        Precision::Fp32 if is_quantized => Err(Error::model(format!(
            "expected fp32 weights in `{}`, but found quantized ones",
            folder.display()
        ))
        .with_hint("leave out `--precision` to keep them")),
        Precision::Fp32 | Precision::Int8 | Precision::Int8Blocks => Ok(()),
    }
}

/// Whether the graph's weights are quantized.
pub fn is_quantized(model: &ModelProto) -> bool {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    // Operators found only in quantized graphs.
    nodes.into_iter().any(|node| {
        matches!(
            node.op_type.as_str(),
            "MatMulInteger"
                | "DynamicQuantizeLinear"
                | "DequantizeLinear"
                | "DynamicQuantizeMatMul"
                | "QAttention"
                | "MatMulNBits"
        )
    })
}

/// Quantizes each multiplication by a constant matrix, with one scale per output channel, and each large embedding
/// table, with one scale per row.
pub fn quantize(model: &mut ModelProto) {
    let Some(graph) = model.graph.as_mut() else {
        return;
    };
    let mut constants: Constants = graph
        .initializer
        .drain(..)
        .map(|tensor| (tensor.name.clone(), tensor))
        .collect();
    // Old files list constants as inputs too, which can be overridden.
    graph
        .input
        .retain(|input| !constants.contains_key(&input.name));
    let readers = readers(graph);
    let mut nodes = Vec::with_capacity(graph.node.len());
    let mut pending = std::mem::take(&mut graph.node)
        .into_iter()
        .map(Some)
        .collect::<Vec<_>>();
    for place in 0..pending.len() {
        let Some(node) = pending[place].take() else {
            continue;
        };
        let constant = |input: usize| {
            node.input
                .get(input)
                .and_then(|name| constants.get(name))
                .and_then(matrix)
        };
        if node.op_type == "MatMul"
            && let Some((shape, values)) = constant(1)
        {
            let bias = take_bias(&node, &readers, &mut pending, &constants, shape[1]);
            nodes.push(multiplication(
                node,
                Matrix {
                    shape,
                    values: &values,
                },
                bias,
                &mut constants,
            ));
        } else if node.op_type == "Gather"
            && (node.input.len(), node.output.len()) == (2, 1)
            && let Some((shape, values)) =
                constant(0).filter(|(shape, _)| shape[0] >= MIN_TABLE_ROWS)
        {
            nodes.extend(table_lookup(
                &node,
                Matrix {
                    shape,
                    values: &values,
                },
                &mut constants,
            ));
        } else {
            nodes.push(node);
        }
    }
    let used: BTreeSet<&String> = nodes
        .iter()
        .flat_map(|node| &node.input)
        .chain(graph.output.iter().map(|output| &output.name))
        .collect();
    graph.initializer = constants
        .into_values()
        .filter(|tensor| used.contains(&tensor.name))
        .collect();
    graph.node = nodes;
    // Declared shapes include removed values.
    graph.value_info.clear();
    if !model.opset_import.iter().any(|set| set.domain == MICROSOFT) {
        model.opset_import.push(OperatorSetIdProto {
            domain: MICROSOFT.into(),
            version: 1,
        });
    }
}

/// For each value, the indices of the nodes that read it; `usize::MAX` for graph outputs.
fn readers(graph: &GraphProto) -> BTreeMap<String, Vec<usize>> {
    let mut readers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, node) in graph.node.iter().enumerate() {
        for input in &node.input {
            readers.entry(input.clone()).or_default().push(place);
        }
    }
    for output in &graph.output {
        readers
            .entry(output.name.clone())
            .or_default()
            .push(usize::MAX);
    }
    readers
}

/// Removes the node that adds a constant bias to a product, if no other node reads the product. Returns the names of
/// its sum and the bias.
fn take_bias(
    product: &NodeProto,
    readers: &BTreeMap<String, Vec<usize>>,
    pending: &mut [Option<NodeProto>],
    constants: &Constants,
    channels: usize,
) -> Option<(String, String)> {
    let name = product.output.first()?;
    let [reader] = readers.get(name)?[..] else {
        return None;
    };
    let sum = pending
        .get(reader)?
        .as_ref()
        .filter(|node| node.op_type == "Add")?;
    let bias = sum.input.iter().find(|input| *input != name)?.clone();
    if constants.get(&bias)?.dims != [channels as i64] {
        return None;
    }
    let sum = pending.get_mut(reader)?.take()?;
    Some((sum.output.into_iter().next()?, bias))
}

/// A constant matrix, row by row.
struct Matrix<'a> {
    shape: [usize; 2],
    values: &'a [f32],
}

/// A quantized multiplication in place of `node`, with the bias and the following sum's name, if any.
fn multiplication(
    node: NodeProto,
    Matrix { shape, values }: Matrix<'_>,
    bias: Option<(String, String)>,
    constants: &mut Constants,
) -> NodeProto {
    let [inputs, outputs] = shape;
    let columns = rows(&transpose(values, outputs), inputs);
    let integers = transpose(&columns.values, inputs);
    let name = format!("{}.columns", node.input[1]);
    let scales = add(
        constants,
        float_tensor(&format!("{name}.scales"), &[outputs], &columns.scales),
    );
    // The runtime needs a zero point to make the weights unsigned where signed ones would saturate.
    let zero = add(
        constants,
        int8_tensor(&format!("{name}.int8.zero_point"), &[], &[0]),
    );
    let integers = add(
        constants,
        int8_tensor(&format!("{name}.int8"), &shape, &integers),
    );
    let (sum, bias) = bias.unzip();
    NodeProto {
        op_type: "DynamicQuantizeMatMul".into(),
        domain: MICROSOFT.into(),
        input: [node.input[0].clone(), integers, scales, zero]
            .into_iter()
            .chain(bias)
            .collect(),
        output: sum.map_or(node.output, |sum| vec![sum]),
        attribute: Vec::new(),
        ..node
    }
}

/// Nodes that look up rows in a quantized table, in place of `node`.
fn table_lookup(
    node: &NodeProto,
    Matrix { shape, values }: Matrix<'_>,
    constants: &mut Constants,
) -> [NodeProto; 4] {
    let table = rows(values, shape[1]);
    let name = format!("{}.rows", node.input[0]);
    let integers = add(
        constants,
        int8_tensor(&format!("{name}.int8"), &shape, &table.values),
    );
    let scales = float_tensor(&format!("{name}.scales"), &[shape[0], 1], &table.scales);
    let scales = add(constants, scales);
    let ids = &node.input[1];
    let part = |part: &str| format!("{}.{part}", node.output[0]);
    let simple = |operator: &str, input: &[&String], output: String| NodeProto {
        op_type: operator.into(),
        name: output.clone(),
        input: input.iter().map(|name| (*name).clone()).collect(),
        output: vec![output],
        ..NodeProto::default()
    };
    let mut cast = simple("Cast", &[&part("integers")], part("floats"));
    cast.attribute
        .push(integer("to", i64::from(data_type::FLOAT)));
    [
        simple("Gather", &[&integers, ids], part("integers")),
        cast,
        simple("Gather", &[&scales, ids], part("scales")),
        simple(
            "Mul",
            &[&part("floats"), &part("scales")],
            node.output[0].clone(),
        ),
    ]
}

/// Adds a constant unless its name exists; returns the name.
fn add(constants: &mut Constants, tensor: TensorProto) -> String {
    let name = tensor.name.clone();
    constants.entry(name.clone()).or_insert(tensor);
    name
}

/// A float matrix's shape and values.
fn matrix(tensor: &TensorProto) -> Option<([usize; 2], Vec<f32>)> {
    let (shape, values) = floats(tensor)?;
    Some((shape.try_into().ok()?, values))
}

/// A float tensor's shape and values.
pub fn floats(tensor: &TensorProto) -> Option<(Vec<usize>, Vec<f32>)> {
    let shape: Vec<usize> = tensor
        .dims
        .iter()
        .map(|length| usize::try_from(*length).ok())
        .collect::<Option<_>>()?;
    if tensor.data_type != data_type::FLOAT || shape.contains(&0) {
        return None;
    }
    let values = if tensor.raw_data.is_empty() {
        tensor.float_data.clone()
    } else {
        read_numbers(&tensor.raw_data, f32::from_le_bytes)?
    };
    let count = shape
        .iter()
        .try_fold(1usize, |count, length| count.checked_mul(*length));
    (count == Some(values.len())).then_some((shape, values))
}
