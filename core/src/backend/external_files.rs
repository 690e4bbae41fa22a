//! Weight files that a graph refers to.

use kivu_base::{
    Error, Result,
    onnx_proto::{EXTERNAL, GraphProto, ModelProto, NodeProto, TensorProto},
};

/// Refuses a graph with weights in unknown files: a bundle's manifest must list all weight files, with their hashes.
pub fn require_known_files(graph: &[u8], is_known: impl Fn(&str) -> bool) -> Result<()> {
    check_files(&ModelProto::from_bytes(graph)?, is_known)
}

/// Like [`require_known_files`], for a graph that was read.
pub fn check_files(model: &ModelProto, is_known: impl Fn(&str) -> bool) -> Result<()> {
    let mut unknown = None;
    let mut check = |tensor: &TensorProto| {
        let file = tensor.external("location").unwrap_or_default();
        if tensor.data_location == EXTERNAL && !is_known(file) {
            unknown.get_or_insert_with(|| (tensor.name.clone(), file.to_owned()));
        }
    };
    model
        .graph
        .iter()
        .for_each(|graph| visit_tensors(graph, &mut check));
    model
        .functions
        .iter()
        .for_each(|function| visit_attributes(&function.node, &mut check));
    match unknown {
        None => Ok(()),
        Some((name, file)) => Err(Error::model(format!(
            "expected the weights of `{name}` in a file of the bundle, but found `{file}`"
        ))),
    }
}

/// Visits all tensors in a graph and its nested graphs.
fn visit_tensors(graph: &GraphProto, visit: &mut dyn FnMut(&TensorProto)) {
    graph.initializer.iter().for_each(&mut *visit);
    visit_attributes(&graph.node, visit);
}

fn visit_attributes(nodes: &[NodeProto], visit: &mut dyn FnMut(&TensorProto)) {
    for attribute in nodes.iter().flat_map(|node| &node.attribute) {
        attribute
            .t
            .iter()
            .chain(&attribute.tensors)
            .for_each(&mut *visit);
        attribute
            .g
            .iter()
            .chain(&attribute.graphs)
            .for_each(|graph| visit_tensors(graph, visit));
    }
}
