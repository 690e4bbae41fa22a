//! ONNX exports, in the layout of `optimum-cli export onnx`, quantised on the way if they are not yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, data_type},
    quantise,
};
use crate::error::{Error, Result, quoted};

/// Where exports have their graph, best first.
const GRAPHS: [&str; 4] =
    ["model.onnx", "model_quantized.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx"];

/// Outputs that are of use, best first: one vector a token, or one a text that is pooled already.
const OUTPUTS: [&str; 3] = ["last_hidden_state", "token_embeddings", "sentence_embedding"];

/// Operators that occur in quantised graphs only.
const QUANTISED: [&str; 6] = [
    "MatMulInteger",
    "DynamicQuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeMatMul",
    "QAttention",
    "MatMulNBits",
];

/// Tables of fewer rows than this are not worth quantising.
const SMALLEST_TABLE: i64 = 1024;

const MICROSOFT: &str = "com.microsoft";

/// The graph in `folder`, if it holds an export.
pub(super) fn find(folder: &Path) -> Option<PathBuf> {
    GRAPHS.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Whether the graph's weights are quantised already.
pub(super) fn is_quantised(model: &ModelProto) -> bool {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    nodes.into_iter().any(|node| QUANTISED.contains(&node.op_type.as_str()))
}

/// The output to be used. A graph that pools by itself is taken at its word unless the folder says how to pool.
pub(super) fn output(model: &ModelProto, folder_says_how_to_pool: bool) -> Result<&'static str> {
    let found: Vec<&str> =
        model.graph.iter().flat_map(|graph| &graph.output).map(|output| output.name.as_str()).collect();
    let mut wanted = OUTPUTS.to_vec();
    if !folder_says_how_to_pool {
        // Stable, so that the others keep their order.
        wanted.sort_by_key(|name| *name != "sentence_embedding");
    }
    wanted.into_iter().find(|name| found.contains(name)).ok_or_else(|| {
        Error::model(format!("expected an output among {}, but found {}", quoted(&OUTPUTS), quoted(&found)))
    })
}

/// Quantises every multiplication with a constant matrix, one scale an output channel, and every large
/// embedding table, one scale a row.
pub(super) fn quantise(model: &mut ModelProto) {
    let Some(graph) = model.graph.as_mut() else { return };
    let mut constants: BTreeMap<String, TensorProto> =
        graph.initializer.drain(..).map(|tensor| (tensor.name.clone(), tensor)).collect();
    // Old files list their constants among the inputs, to be overridden, which nobody does.
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
                match matrix(0).filter(|(shape, _)| shape[0] >= SMALLEST_TABLE) {
                    Some((shape, values)) => nodes.extend(table(&node, shape, &values, &mut constants)),
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
    // The shapes of values that are no longer there would contradict the graph.
    graph.value_info.clear();
    if !model.opset_import.iter().any(|set| set.domain == MICROSOFT) {
        model.opset_import.push(OperatorSetIdProto { domain: MICROSOFT.into(), version: 1 });
    }
}

/// For every value, the places of the nodes that read it.
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

/// The `Add` of a constant bias that alone reads the product, taken out of the graph: what its sum is called,
/// and what the bias is.
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
    let columns = quantise::transpose(values, outputs as usize);
    let rows = quantise::rows(&columns, inputs as usize);
    let integers = quantise::transpose(&rows.values, inputs as usize);
    let name = format!("{}.columns.int8", node.input[1]);
    let scales = format!("{}.columns.scales", node.input[1]);
    constants.entry(name.clone()).or_insert_with(|| integer_constant(&name, &shape, &integers));
    constants.entry(scales.clone()).or_insert_with(|| float_constant(&scales, &[outputs], &rows.scales));
    // Without one of its own the runtime could not make the weights unsigned where signed ones would saturate.
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

fn table(
    node: &NodeProto,
    shape: [i64; 2],
    values: &[f32],
    constants: &mut BTreeMap<String, TensorProto>,
) -> [NodeProto; 4] {
    let rows = quantise::rows(values, shape[1] as usize);
    let (name, scales) = (format!("{}.rows.int8", node.input[0]), format!("{}.rows.scales", node.input[0]));
    constants.entry(name.clone()).or_insert_with(|| integer_constant(&name, &shape, &rows.values));
    constants.entry(scales.clone()).or_insert_with(|| float_constant(&scales, &[shape[0], 1], &rows.scales));
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
    cast.attribute.push(super::onnx::integer("to", i64::from(data_type::FLOAT)));
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
    // Two negative sides have a positive product, and an empty one any other side.
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
        raw_data: Bytes::from(bytes),
        ..TensorProto::default()
    }
}
