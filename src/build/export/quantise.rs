//! Quantises and optimises the graphs of an export.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::{
    backend::onnx::{Runtime, Session},
    build::{
        onnx::{self, MICROSOFT, integer},
        quantise::{rows, transpose},
    },
    error::{Error, Result},
    onnx_proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, data_type},
    repository::manifest::Precision,
};

/// Operators that only quantised graphs have.
const QUANTISED: [&str; 6] = [
    "MatMulInteger",
    "DynamicQuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeMatMul",
    "QAttention",
    "MatMulNBits",
];

/// The smallest table that is quantised, in rows.
const MIN_TABLE_ROWS: i64 = 1024;

/// A graph with weights in `precision`, optimised by ONNX Runtime. The weights of a quantised graph are kept.
pub(super) fn prepare(
    mut model: ModelProto,
    precision: Precision,
    runtime: Runtime,
    scratch: &Path,
) -> Result<ModelProto> {
    if precision == Precision::Int8 && !is_quantised(&model) {
        quantise(&mut model);
    }
    let folder = tempfile::tempdir_in(scratch).map_err(Error::io("cannot create a folder for a graph"))?;
    let (plain, optimised) = (folder.path().join("plain.onnx"), folder.path().join("optimised.onnx"));
    onnx::write(model, folder.path(), "plain.onnx")?;
    Session::optimise(runtime, &plain, &optimised)?;
    onnx::read(&optimised)
}

/// Checks that a build of an export can have `precision`.
pub(super) fn check_precision(precision: Precision, is_quantised: bool, folder: &Path) -> Result<()> {
    match precision {
        Precision::Int8Blocks => Err(Error::model(
            "expected `int8` or `fp32` for an ONNX export, but found `int8-blocks`, which is for weights",
        )),
        Precision::Fp32 if is_quantised => Err(Error::model(format!(
            "expected fp32 weights in `{}`, but found quantised ones; leave out `--precision` to keep them",
            folder.display()
        ))),
        Precision::Fp32 | Precision::Int8 => Ok(()),
    }
}

/// Whether the graph's weights are quantised.
pub(in crate::build) fn is_quantised(model: &ModelProto) -> bool {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    nodes.into_iter().any(|node| QUANTISED.contains(&node.op_type.as_str()))
}

/// Quantises each multiplication by a constant matrix, with one scale per output channel, and each large embedding
/// table, with one scale per row.
pub(in crate::build) fn quantise(model: &mut ModelProto) {
    let Some(graph) = model.graph.as_mut() else { return };
    let mut constants: BTreeMap<String, TensorProto> =
        graph.initializer.drain(..).map(|tensor| (tensor.name.clone(), tensor)).collect();
    // Old files also list their constants as inputs that can be overridden.
    graph.input.retain(|input| !constants.contains_key(&input.name));
    let readers = readers(graph);
    let mut nodes = Vec::with_capacity(graph.node.len());
    let mut pending = std::mem::take(&mut graph.node).into_iter().map(Some).collect::<Vec<_>>();
    for place in 0..pending.len() {
        let Some(node) = pending[place].take() else { continue };
        let matrix = |name: usize| node.input.get(name).and_then(|name| constants.get(name)).and_then(floats);
        match node.op_type.as_str() {
            "MatMul" => match matrix(1) {
                Some((shape, values)) => {
                    let bias = take_bias(&node, &readers, &mut pending, &constants, shape[1]);
                    nodes.push(multiplication(&node, shape, &values, bias, &mut constants));
                }
                None => nodes.push(node),
            },
            "Gather" if node.input.len() == 2 && node.output.len() == 1 => {
                match matrix(0).filter(|(shape, _)| shape[0] >= MIN_TABLE_ROWS) {
                    Some((shape, values)) => {
                        nodes.extend(table_lookup(&node, shape, &values, &mut constants))
                    }
                    None => nodes.push(node),
                }
            }
            _ => nodes.push(node),
        }
    }
    let used: BTreeSet<&String> = nodes
        .iter()
        .flat_map(|node| &node.input)
        .chain(graph.output.iter().map(|output| &output.name))
        .collect();
    graph.initializer = constants.into_values().filter(|tensor| used.contains(&tensor.name)).collect();
    graph.node = nodes;
    // The declared shapes include values that were removed.
    graph.value_info.clear();
    if !model.opset_import.iter().any(|set| set.domain == MICROSOFT) {
        model.opset_import.push(OperatorSetIdProto { domain: MICROSOFT.into(), version: 1 });
    }
}

/// The indices of the nodes that read each value; `usize::MAX` for an output of the graph.
fn readers(graph: &GraphProto) -> BTreeMap<String, Vec<usize>> {
    let mut readers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, node) in graph.node.iter().enumerate() {
        for input in &node.input {
            readers.entry(input.clone()).or_default().push(place);
        }
    }
    for output in &graph.output {
        readers.entry(output.name.clone()).or_default().push(usize::MAX);
    }
    readers
}

/// Removes the node that adds a constant bias to a product, if it is the only node that reads the product. Returns the
/// names of its sum and of the bias.
fn take_bias(
    product: &NodeProto,
    readers: &BTreeMap<String, Vec<usize>>,
    pending: &mut [Option<NodeProto>],
    constants: &BTreeMap<String, TensorProto>,
    channels: i64,
) -> Option<(String, String)> {
    let name = product.output.first()?;
    let [reader] = readers.get(name)?[..] else { return None };
    let sum = pending.get(reader)?.as_ref().filter(|node| node.op_type == "Add")?;
    let bias = sum.input.iter().find(|input| *input != name)?.clone();
    if constants.get(&bias)?.dims != [channels] {
        return None;
    }
    let sum = pending.get_mut(reader)?.take()?;
    Some((sum.output.into_iter().next()?, bias))
}

fn multiplication(
    node: &NodeProto,
    shape: [i64; 2],
    values: &[f32],
    bias: Option<(String, String)>,
    constants: &mut BTreeMap<String, TensorProto>,
) -> NodeProto {
    let [inputs, outputs] = shape;
    let columns = rows(&transpose(values, outputs as usize), inputs as usize);
    let integers = transpose(&columns.values, inputs as usize);
    let name = format!("{}.columns.int8", node.input[1]);
    let scales = format!("{}.columns.scales", node.input[1]);
    constants.entry(name.clone()).or_insert_with(|| integer_constant(&name, &shape, &integers));
    constants.entry(scales.clone()).or_insert_with(|| float_constant(&scales, &[outputs], &columns.scales));
    // The runtime needs a zero point to make the weights unsigned where signed ones would saturate.
    let zero = format!("{name}.zero_point");
    constants.entry(zero.clone()).or_insert_with(|| integer_constant(&zero, &[], &[0]));
    let mut input = vec![node.input[0].clone(), name, scales, zero];
    let output = match bias {
        Some((sum, bias)) => {
            input.push(bias);
            vec![sum]
        }
        None => node.output.clone(),
    };
    NodeProto {
        op_type: "DynamicQuantizeMatMul".into(),
        domain: MICROSOFT.into(),
        name: node.name.clone(),
        input,
        output,
        attribute: Vec::new(),
    }
}

fn table_lookup(
    node: &NodeProto,
    shape: [i64; 2],
    values: &[f32],
    constants: &mut BTreeMap<String, TensorProto>,
) -> [NodeProto; 4] {
    let table = rows(values, shape[1] as usize);
    let (name, scales) = (format!("{}.rows.int8", node.input[0]), format!("{}.rows.scales", node.input[0]));
    constants.entry(name.clone()).or_insert_with(|| integer_constant(&name, &shape, &table.values));
    constants.entry(scales.clone()).or_insert_with(|| float_constant(&scales, &[shape[0], 1], &table.scales));
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
    cast.attribute.push(integer("to", i64::from(data_type::FLOAT)));
    [
        simple("Gather", &[&name, ids], part("integers")),
        cast,
        simple("Gather", &[&scales, ids], part("scales")),
        simple("Mul", &[&part("floats"), &part("scales")], node.output[0].clone()),
    ]
}

/// The values of a float matrix.
fn floats(tensor: &TensorProto) -> Option<([i64; 2], Vec<f32>)> {
    let shape: [i64; 2] = tensor.dims.as_slice().try_into().ok()?;
    // The product of two negative sides is positive, and that of an empty one does not depend on the other.
    if tensor.data_type != data_type::FLOAT || shape.iter().any(|side| *side < 1) {
        return None;
    }
    let values = if tensor.raw_data.is_empty() {
        tensor.float_data.clone()
    } else {
        tensor.raw_data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let size = shape[0].checked_mul(shape[1]).and_then(|size| usize::try_from(size).ok());
    (size == Some(values.len())).then_some((shape, values))
}

fn integer_constant(name: &str, shape: &[i64], values: &[i8]) -> TensorProto {
    let bytes: Vec<u8> = values.iter().map(|value| value.cast_unsigned()).collect();
    constant(name, data_type::INT8, shape, bytes)
}

fn float_constant(name: &str, shape: &[i64], values: &[f32]) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    constant(name, data_type::FLOAT, shape, bytes)
}

fn constant(name: &str, data_type: i32, shape: &[i64], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type,
        dims: shape.to_vec(),
        raw_data: bytes.into(),
        ..TensorProto::default()
    }
}
