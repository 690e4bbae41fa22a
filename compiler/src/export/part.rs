//! Subgraphs: the nodes that some outputs depend on, renamed.

use std::collections::BTreeSet;

use kivu::onnx_proto::{GraphProto, NodeProto, TensorProto, data_type};

/// Extracts a branch from `whole` as a separate graph, with the constants and inputs in its scope.
pub fn within(whole: &GraphProto, mut branch: GraphProto) -> GraphProto {
    branch.initializer.extend(whole.initializer.iter().cloned());
    branch.input.extend(whole.input.iter().cloned());
    branch
}

/// Keeps the outputs whose names `is_kept`, and the nodes they depend on.
pub fn keep(mut graph: GraphProto, is_kept: impl Fn(&str) -> bool) -> GraphProto {
    graph.output.retain(|output| is_kept(&output.name));
    let mut needed: BTreeSet<String> = graph
        .output
        .iter()
        .map(|output| output.name.clone())
        .collect();
    // Nodes follow their inputs.
    let mut nodes: Vec<NodeProto> = Vec::new();
    for node in std::mem::take(&mut graph.node).into_iter().rev() {
        if node.output.iter().any(|output| needed.contains(output)) {
            read(&node, &mut |name| {
                needed.insert(name.to_owned());
            });
            nodes.push(node);
        }
    }
    nodes.reverse();
    graph.node = nodes;
    graph
        .initializer
        .retain(|tensor| needed.contains(&tensor.name));
    // Old files list constants as inputs too.
    let is_constant = |name: &str| graph.initializer.iter().any(|tensor| tensor.name == name);
    graph
        .input
        .retain(|input| needed.contains(&input.name) && !is_constant(&input.name));
    graph.value_info.clear();
    graph
}

/// Takes the row count (the length of the first axis) from the tensor called `source`.
///
/// Exports take the row count from any tensor, so even nodes that depend on the encoder alone would need the
/// decoder's tokens.
pub fn with_rows_of(mut graph: GraphProto, source: &str) -> GraphProto {
    let shapes: BTreeSet<&str> = outputs_of(&graph, |node| node.op_type == "Shape");
    let mut zeros: BTreeSet<&str> = outputs_of(&graph, is_zero);
    let constants = graph.initializer.iter().filter(|tensor| holds_zero(tensor));
    zeros.extend(constants.map(|tensor| tensor.name.as_str()));
    let reads_rows = |node: &NodeProto| {
        node.op_type == "Gather"
            && matches!(&node.input[..], [data, index]
                if shapes.contains(data.as_str()) && zeros.contains(index.as_str()))
    };
    let readers: Vec<bool> = graph.node.iter().map(reads_rows).collect();
    let shape = format!("{source}/shape");
    for (node, _) in graph
        .node
        .iter_mut()
        .zip(readers)
        .filter(|(_, reads_rows)| *reads_rows)
    {
        node.input[0].clone_from(&shape);
    }
    let op_type = "Shape".to_owned();
    let (input, output) = (vec![source.to_owned()], vec![shape.clone()]);
    graph.node.insert(
        0,
        NodeProto {
            name: shape,
            op_type,
            input,
            output,
            ..NodeProto::default()
        },
    );
    graph
}

/// First outputs of nodes that satisfy `is_selected`.
fn outputs_of(graph: &GraphProto, is_selected: impl Fn(&NodeProto) -> bool) -> BTreeSet<&str> {
    let nodes = graph.node.iter().filter(|node| is_selected(node));
    nodes
        .filter_map(|node| node.output.first())
        .map(String::as_str)
        .collect()
}

/// Whether a node is the constant 0.
fn is_zero(node: &NodeProto) -> bool {
    let value = node
        .attribute
        .iter()
        .find(|attribute| attribute.name == "value");
    node.op_type == "Constant"
        && value
            .and_then(|value| value.t.as_ref())
            .is_some_and(holds_zero)
}

fn holds_zero(tensor: &TensorProto) -> bool {
    tensor.data_type == data_type::INT64
        && tensor.dims.is_empty()
        && (*tensor.raw_data == [0; 8] || tensor.int64_data == [0])
}

/// Calls `seen` with each name read by a node or a graph inside it.
fn read(node: &NodeProto, seen: &mut dyn FnMut(&str)) {
    node.input.iter().for_each(|input| seen(input));
    let graphs = node
        .attribute
        .iter()
        .flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
    for graph in graphs {
        // Names defined inside the graph do no harm.
        graph.node.iter().for_each(|node| read(node, seen));
        graph.output.iter().for_each(|output| seen(&output.name));
    }
}

/// Renames all values and nodes.
pub fn rename(graph: &mut GraphProto, new: &impl Fn(&str) -> String) {
    let change = |name: &mut String| {
        // An empty name marks an omitted input or output.
        if !name.is_empty() {
            *name = new(name);
        }
    };
    graph
        .input
        .iter_mut()
        .for_each(|input| change(&mut input.name));
    graph
        .output
        .iter_mut()
        .for_each(|output| change(&mut output.name));
    graph
        .initializer
        .iter_mut()
        .for_each(|tensor| change(&mut tensor.name));
    graph.value_info.clear();
    for node in &mut graph.node {
        node.input
            .iter_mut()
            .chain(&mut node.output)
            .for_each(change);
        change(&mut node.name);
        let attributes = node.attribute.iter_mut();
        for graph in
            attributes.flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
        {
            rename(graph, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kivu::onnx_proto::ValueInfoProto;

    fn node(output: &str, inputs: &[&str]) -> NodeProto {
        let input = inputs.iter().map(|input| (*input).to_owned()).collect();
        NodeProto {
            output: vec![output.into()],
            input,
            ..NodeProto::default()
        }
    }

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto {
            name: name.into(),
            ..ValueInfoProto::default()
        }
    }

    #[test]
    fn nodes_that_no_output_depends_on_are_removed() {
        let graph = GraphProto {
            node: vec![
                node("a", &["x", "w"]),
                node("b", &["y"]),
                node("c", &["a", ""]),
            ],
            initializer: ["w", "v"]
                .map(|name| TensorProto {
                    name: name.into(),
                    ..TensorProto::default()
                })
                .into(),
            input: ["x", "y"].map(value).into(),
            output: ["b", "c"].map(value).into(),
            ..GraphProto::default()
        };
        let mut graph = keep(graph, |name| name == "c");
        assert_eq!(graph.input, ["x"].map(value));
        rename(&mut graph, &|name| format!("new/{name}"));
        let nodes: Vec<_> = graph
            .node
            .iter()
            .map(|node| (node.output.clone(), node.input.clone()))
            .collect();
        assert_eq!(
            nodes[0],
            (vec!["new/a".into()], vec!["new/x".into(), "new/w".into()])
        );
        assert_eq!(
            nodes[1],
            (vec!["new/c".into()], vec!["new/a".into(), String::new()])
        );
        assert_eq!(graph.initializer.len(), 1);
    }

    #[test]
    fn the_number_of_rows_does_not_depend_on_tokens() {
        let operator = |op_type: &str, node| NodeProto {
            op_type: op_type.into(),
            ..node
        };
        let zero = TensorProto {
            name: "zero".into(),
            data_type: data_type::INT64,
            raw_data: vec![0; 8].into(),
            ..TensorProto::default()
        };
        let graph = GraphProto {
            node: vec![
                operator("Shape", node("shape", &["tokens"])),
                operator("Gather", node("rows", &["shape", "zero"])),
                operator("Reshape", node("keys", &["hidden", "rows"])),
            ],
            initializer: vec![zero],
            input: ["tokens", "hidden"].map(value).into(),
            output: vec![value("keys")],
            ..GraphProto::default()
        };
        let graph = keep(with_rows_of(graph, "hidden"), |name| name == "keys");
        assert_eq!(graph.input, ["hidden"].map(value));
    }
}
