//! Taking graphs apart: the part that some outputs need, under other names.

use std::collections::BTreeSet;

use crate::build::onnx::proto::{GraphProto, NodeProto, TensorProto, data_type};

/// A part of a graph: what its outputs need, and no more.
#[derive(Debug)]
pub(super) struct Part(GraphProto);

/// A branch of `whole` as a graph of its own, with the constants and inputs that it can see.
pub(super) fn within(whole: &GraphProto, mut branch: GraphProto) -> GraphProto {
    branch.initializer.extend(whole.initializer.iter().cloned());
    branch.input.extend(whole.input.iter().cloned());
    branch
}

impl Part {
    pub(super) fn new(graph: GraphProto) -> Self {
        Self(graph)
    }

    /// The part that the outputs of these names need.
    pub(super) fn keep(self, wanted: impl Fn(&str) -> bool) -> Self {
        let Self(mut graph) = self;
        graph.output.retain(|output| wanted(&output.name));
        let mut needed: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
        // Nodes come after those that they read.
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
        graph.initializer.retain(|tensor| needed.contains(&tensor.name));
        // Old files list their constants among the inputs.
        let is_constant = |name: &str| graph.initializer.iter().any(|tensor| tensor.name == name);
        graph.input.retain(|input| needed.contains(&input.name) && !is_constant(&input.name));
        graph.value_info.clear();
        Self(graph)
    }

    /// Reads the number of rows, which every tensor has on its first axis, off the tensor called `source`.
    ///
    /// Exports read it off whatever is at hand, so that even what hangs on the encoder alone would need the
    /// decoder's tokens.
    pub(super) fn with_rows_of(self, source: &str) -> Self {
        let Self(mut graph) = self;
        let shapes: BTreeSet<&str> = outputs_of(&graph, |node| node.op_type == "Shape");
        let zeros: BTreeSet<&str> = outputs_of(&graph, is_zero)
            .into_iter()
            .chain(
                graph
                    .initializer
                    .iter()
                    .filter(|tensor| holds_zero(tensor))
                    .map(|tensor| tensor.name.as_str()),
            )
            .collect();
        let reads_rows = |node: &NodeProto| {
            node.op_type == "Gather"
                && matches!(&node.input[..], [data, index]
                    if shapes.contains(data.as_str()) && zeros.contains(index.as_str()))
        };
        let readers: Vec<usize> =
            (0..graph.node.len()).filter(|place| reads_rows(&graph.node[*place])).collect();
        let shape = format!("{source}/shape");
        for place in readers {
            graph.node[place].input[0].clone_from(&shape);
        }
        let op_type = "Shape".to_owned();
        let (input, output) = (vec![source.to_owned()], vec![shape.clone()]);
        graph.node.insert(0, NodeProto { name: shape, op_type, input, output, ..NodeProto::default() });
        Self(graph)
    }

    /// The names of the inputs.
    pub(super) fn inputs(&self) -> Vec<String> {
        self.0.input.iter().map(|input| input.name.clone()).collect()
    }

    /// The same with other names.
    pub(super) fn rename(mut self, new: impl Fn(&str) -> String) -> Self {
        rename(&mut self.0, &new);
        self
    }

    pub(super) fn into_graph(self) -> GraphProto {
        self.0
    }
}

/// The first outputs of the nodes that `is_meant` picks.
fn outputs_of(graph: &GraphProto, is_meant: impl Fn(&NodeProto) -> bool) -> BTreeSet<&str> {
    let nodes = graph.node.iter().filter(|node| is_meant(node));
    nodes.filter_map(|node| node.output.first()).map(String::as_str).collect()
}

/// Whether a node gives the number 0.
fn is_zero(node: &NodeProto) -> bool {
    let value = node.attribute.iter().find(|attribute| attribute.name == "value");
    node.op_type == "Constant" && value.and_then(|value| value.t.as_ref()).is_some_and(holds_zero)
}

fn holds_zero(tensor: &TensorProto) -> bool {
    tensor.data_type == data_type::INT64
        && tensor.dims.is_empty()
        && (*tensor.raw_data == [0; 8] || tensor.int64_data == [0])
}

/// Calls `seen` with every name that a node reads, those that graphs in it read included.
fn read(node: &NodeProto, seen: &mut dyn FnMut(&str)) {
    node.input.iter().for_each(|input| seen(input));
    let graphs = node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
    for graph in graphs {
        // Names of its own among them do no harm.
        graph.node.iter().for_each(|node| read(node, seen));
        graph.output.iter().for_each(|output| seen(&output.name));
    }
}

fn rename(graph: &mut GraphProto, new: &impl Fn(&str) -> String) {
    let change = |name: &mut String| {
        // An empty name stands for nothing.
        if !name.is_empty() {
            *name = new(name);
        }
    };
    graph.input.iter_mut().for_each(|input| change(&mut input.name));
    graph.output.iter_mut().for_each(|output| change(&mut output.name));
    graph.initializer.iter_mut().for_each(|tensor| change(&mut tensor.name));
    graph.value_info.clear();
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).for_each(change);
        change(&mut node.name);
        let attributes = node.attribute.iter_mut();
        for graph in attributes.flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs)) {
            rename(graph, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::onnx::proto::ValueInfoProto;

    fn node(output: &str, inputs: &[&str]) -> NodeProto {
        let input = inputs.iter().map(|input| (*input).to_owned()).collect();
        NodeProto { output: vec![output.into()], input, ..NodeProto::default() }
    }

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.into(), ..ValueInfoProto::default() }
    }

    #[test]
    fn only_what_an_output_needs_stays() {
        let graph = GraphProto {
            node: vec![node("a", &["x", "w"]), node("b", &["y"]), node("c", &["a", ""])],
            initializer: ["w", "v"]
                .map(|name| TensorProto { name: name.into(), ..TensorProto::default() })
                .into(),
            input: ["x", "y"].map(value).into(),
            output: ["b", "c"].map(value).into(),
            ..GraphProto::default()
        };
        let part = Part::new(graph).keep(|name| name == "c");
        assert_eq!(part.inputs(), ["x"]);
        let graph = part.rename(|name| format!("new/{name}")).into_graph();
        let nodes: Vec<_> = graph.node.iter().map(|node| (node.output.clone(), node.input.clone())).collect();
        assert_eq!(nodes[0], (vec!["new/a".into()], vec!["new/x".into(), "new/w".into()]));
        assert_eq!(nodes[1], (vec!["new/c".into()], vec!["new/a".into(), String::new()]));
        assert_eq!(graph.initializer.len(), 1);
    }

    #[test]
    fn the_number_of_rows_needs_no_tokens() {
        let operator = |op_type: &str, node| NodeProto { op_type: op_type.into(), ..node };
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
        let part = Part::new(graph).with_rows_of("hidden").keep(|name| name == "keys");
        assert_eq!(part.inputs(), ["hidden"]);
    }
}
