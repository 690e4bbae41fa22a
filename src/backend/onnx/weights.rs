//! Weights of graphs in memory: each tensor in memory of its own, which the sessions then use where it is.
//!
//! ONNX Runtime can be given whole files of weights in memory as well, but it copies every tensor out of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytemuck::Pod;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor};
use prost::Message;

use crate::error::{Error, Result};

/// Tensors of graphs whose data lies in other files, to be filled with what those files hold. What is the same in
/// several graphs is there once.
#[derive(Debug)]
pub struct Weights {
    /// By file and offset.
    tensors: Vec<Placed>,
    /// What each graph calls its tensors.
    names: Vec<Vec<(String, Place)>>,
}

/// The filled tensors of a graph, by name.
pub type Constants = Vec<(String, Arc<DynValue>)>;

/// Where the data of a tensor comes from, and what it is. Tensors that agree in all of it are the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: String,
    offset: u64,
    element_type: i32,
    shape: Vec<i64>,
}

/// A tensor, and where its data comes from.
#[derive(Debug)]
struct Placed {
    place: Place,
    data: Data,
}

/// The elements of a tensor, of the types that weights have.
#[derive(Debug)]
enum Data {
    Fp32(Vec<f32>),
    Uint8(Vec<u8>),
    Int8(Vec<i8>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
}

impl Weights {
    /// Makes room for the tensors of graphs that lie in other files, whose sizes `size` tells.
    ///
    /// - Each lies inside one of those files.
    /// - All together take no more than twice what the files have: graphs cannot ask for memory that nothing fills.
    pub fn of(graphs: &[Vec<u8>], size: impl Fn(&str) -> Option<u64>) -> Result<Self> {
        let names: Vec<Vec<(String, Place)>> =
            graphs.iter().map(|graph| outside(graph, &size)).collect::<Result<_>>()?;
        // With one of its names each, for errors.
        let all: BTreeMap<&Place, &str> =
            names.iter().flatten().map(|(name, place)| (place, name.as_str())).collect();
        let files: BTreeSet<&str> = all.keys().map(|place| place.file.as_str()).collect();
        let mut left = files.into_iter().filter_map(&size).fold(0, u64::saturating_add).saturating_mul(2);
        let mut tensors = Vec::with_capacity(all.len());
        for (place, name) in all {
            let end = size(&place.file).unwrap_or(0);
            let placed = Placed::new(name, place.clone(), end.min(left), end)?;
            left = left.saturating_sub(placed.data.bytes());
            tensors.push(placed);
        }
        Ok(Self { tensors, names })
    }

    /// The files that the tensors come from.
    pub fn files(&self) -> BTreeSet<String> {
        self.tensors.iter().map(|tensor| tensor.place.file.clone()).collect()
    }

    /// The tensors of one file, which take its bytes in order.
    pub fn file(&mut self, name: &str) -> Filling<'_> {
        let tensors = self.tensors.iter_mut().filter(|tensor| tensor.place.file == name).collect();
        Filling { tensors, position: 0 }
    }

    /// The filled tensors of each graph.
    pub(super) fn into_constants(self) -> Result<Vec<Constants>> {
        let values = self.tensors.into_iter().map(|Placed { place, data }| {
            let value = Arc::new(data.into_value(place.shape.clone())?);
            Ok((place, value))
        });
        let values: BTreeMap<Place, Arc<DynValue>> = values.collect::<Result<_>>()?;
        let constants = |names: Vec<(String, Place)>| -> Constants {
            let value = |(name, place)| Some((name, Arc::clone(values.get(&place)?)));
            names.into_iter().filter_map(value).collect()
        };
        Ok(self.names.into_iter().map(constants).collect())
    }
}

/// The tensors of a graph that lie in other files, by their names.
fn outside(graph: &[u8], size: impl Fn(&str) -> Option<u64>) -> Result<Vec<(String, Place)>> {
    require_known_files(graph, |name| size(name).is_some())?;
    let initializers = decode(graph)?.graph.map(|graph| graph.initializers).unwrap_or_default();
    initializers.into_iter().filter(|tensor| tensor.location == EXTERNAL).map(Initializer::place).collect()
}

/// Tensors that take the bytes of their file as they come.
#[derive(Debug)]
pub struct Filling<'a> {
    /// Those that still lack something, by offset.
    tensors: Vec<&'a mut Placed>,
    position: u64,
}

impl Filling<'_> {
    /// Takes the next bytes of the file; those that belong to no tensor are dropped.
    pub fn take(&mut self, piece: &[u8]) {
        let (start, end) = (self.position, self.position + piece.len() as u64);
        for tensor in self.tensors.iter_mut().take_while(|tensor| tensor.place.offset < end) {
            let (offset, target) = (tensor.place.offset, tensor.data.bytes_mut());
            let from = offset.max(start);
            let to = (offset + target.len() as u64).min(end);
            if from < to {
                let place = (from - offset) as usize;
                let part = &piece[(from - start) as usize..(to - start) as usize];
                target[place..place + part.len()].copy_from_slice(part);
            }
        }
        self.position = end;
        // Graphs have hundreds of tensors: those that are full need not be looked at for every piece.
        self.tensors.retain(|tensor| tensor.place.offset + tensor.data.bytes() > end);
    }
}

impl Placed {
    /// A tensor of at most `most` bytes, in a file that ends at `end`.
    fn new(name: &str, place: Place, most: u64, end: u64) -> Result<Self> {
        let Place { file, offset, element_type, shape } = &place;
        let wrong = |found: &str| {
            Error::model(format!(
                "expected weights that can be loaded, but found `{name}` of shape {shape:?}{found}"
            ))
        };
        let count = shape
            .iter()
            .try_fold(1_usize, |product, side| product.checked_mul(usize::try_from(*side).ok()?))
            .ok_or_else(|| wrong(""))?;
        let width = match element_type {
            2 | 3 => 1,
            1 | 6 => 4,
            _ => 8,
        };
        let bytes = (count as u64).checked_mul(width).filter(|bytes| *bytes <= most);
        if bytes.and_then(|bytes| bytes.checked_add(*offset)).is_none_or(|found| found > end) {
            return Err(wrong(&format!(", which `{file}` has no room for")));
        }
        let data = match element_type {
            1 => Data::Fp32(vec![0.0; count]),
            2 => Data::Uint8(vec![0; count]),
            3 => Data::Int8(vec![0; count]),
            6 => Data::Int32(vec![0; count]),
            7 => Data::Int64(vec![0; count]),
            other => return Err(wrong(&format!(" and element type {other}"))),
        };
        Ok(Self { place, data })
    }
}

impl Initializer {
    fn entry(&self, key: &str) -> Option<&str> {
        self.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }

    fn file(&self) -> Option<&str> {
        self.entry("location")
    }

    /// The name, and where the data is.
    fn place(self) -> Result<(String, Place)> {
        let wrong = |found: &str| {
            Error::model(format!("expected weights that can be loaded, but found `{}` {found}", self.name))
        };
        let file = self.file().ok_or_else(|| wrong("without a file"))?.to_owned();
        let offset = self.entry("offset").map_or(Ok(0), str::parse);
        let offset = offset.map_err(|_| wrong("without an offset"))?;
        Ok((self.name, Place { file, offset, element_type: self.element_type, shape: self.shape }))
    }
}

/// Refuses a graph with weights in files that are not known: those of a bundle are its own, and verified.
pub fn require_known_files(graph: &[u8], is_known: impl Fn(&str) -> bool) -> Result<()> {
    let mut unknown = None;
    let model = decode(graph)?;
    model.graph.iter().for_each(|graph| {
        graph.visit(&mut |tensor| {
            let file = tensor.file().unwrap_or_default();
            if tensor.location == EXTERNAL && !is_known(file) {
                unknown.get_or_insert_with(|| (tensor.name.clone(), file.to_owned()));
            }
        });
    });
    match unknown {
        None => Ok(()),
        Some((name, file)) => Err(Error::model(format!(
            "expected the weights of `{name}` in a file of the bundle, but found `{file}`"
        ))),
    }
}

/// Whether the graph has signed 8-bit weights that the runtime cannot make unsigned: those without a zero point, as in
/// bundles of earlier versions, and those that several products share.
pub fn keeps_signed_weights(graph: &[u8]) -> Result<bool> {
    let graph = decode(graph)?.graph.unwrap_or_default();
    let mut products = graph.nodes.iter().filter(|node| node.op_type == "DynamicQuantizeMatMul");
    let mut known = BTreeSet::new();
    Ok(products.any(|product| {
        let mut constants = [1, 3].into_iter().filter_map(|input| product.inputs.get(input));
        constants.any(|name| name.is_empty() || !known.insert(name))
    }))
}

fn decode(graph: &[u8]) -> Result<Model> {
    Model::decode(graph).map_err(|error| Error::model_because("the graph is no ONNX file", error))
}

impl Graph {
    /// Shows every tensor, also of graphs inside of nodes.
    fn visit(&self, see: &mut dyn FnMut(&Initializer)) {
        self.initializers.iter().for_each(&mut *see);
        for attribute in self.nodes.iter().flat_map(|node| &node.attributes) {
            attribute.tensor.iter().chain(&attribute.tensors).for_each(&mut *see);
            attribute.graph.iter().chain(&attribute.graphs).for_each(|graph| graph.visit(see));
        }
    }
}

impl Data {
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Fp32(values) => size_of_val(values.as_slice()),
            Self::Uint8(values) => size_of_val(values.as_slice()),
            Self::Int8(values) => size_of_val(values.as_slice()),
            Self::Int32(values) => size_of_val(values.as_slice()),
            Self::Int64(values) => size_of_val(values.as_slice()),
        };
        bytes as u64
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        fn bytes<T: Pod>(values: &mut [T]) -> &mut [u8] {
            bytemuck::cast_slice_mut(values)
        }
        match self {
            Self::Fp32(values) => bytes(values),
            Self::Uint8(values) => bytes(values),
            Self::Int8(values) => bytes(values),
            Self::Int32(values) => bytes(values),
            Self::Int64(values) => bytes(values),
        }
    }

    fn into_value(self, shape: Vec<i64>) -> Result<DynValue> {
        fn value<T>(shape: Vec<i64>, values: Vec<T>) -> Result<DynValue>
        where
            T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static,
        {
            let value = Tensor::from_array((shape, values));
            Ok(value.map_err(|error| Error::model_because("the weights cannot be used", error))?.into_dyn())
        }
        match self {
            Self::Fp32(values) => value(shape, values),
            Self::Uint8(values) => value(shape, values),
            Self::Int8(values) => value(shape, values),
            Self::Int32(values) => value(shape, values),
            Self::Int64(values) => value(shape, values),
        }
    }
}

/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: i32 = 1;

/// `ModelProto` of `onnx.proto`, of which only the constants are of interest here.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializers: Vec<Initializer>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    inputs: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(message, optional, tag = "5")]
    tensor: Option<Initializer>,
    #[prost(message, optional, tag = "6")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<Initializer>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Initializer {
    #[prost(int64, repeated, tag = "1")]
    shape: Vec<i64>,
    #[prost(int32, tag = "2")]
    element_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    location: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(tensors: &[(&str, i32, &[i64], u64)]) -> Vec<u8> {
        let initializers = tensors.iter().map(|(name, element_type, shape, offset)| Initializer {
            shape: shape.to_vec(),
            element_type: *element_type,
            name: (*name).into(),
            external_data: [("location", "w.bin".into()), ("offset", offset.to_string())]
                .map(|(key, value)| Entry { key: key.into(), value })
                .into(),
            location: EXTERNAL,
        });
        let graph = Graph { initializers: initializers.collect(), nodes: Vec::new() };
        Model { graph: Some(graph) }.encode_to_vec()
    }

    #[test]
    fn tensors_are_filled_from_pieces_of_any_size() {
        let graph = graph(&[("b", 3, &[2, 2], 12), ("a", 1, &[2], 0), ("shared", 2, &[4], 12)]);
        let bytes: Vec<u8> =
            [1.0_f32.to_le_bytes(), 2.0_f32.to_le_bytes(), [9; 4], [1, 2, 3, 255], [7; 4]].concat();
        for size in 1..=bytes.len() {
            let mut weights = Weights::of(std::slice::from_ref(&graph), |_| Some(20)).unwrap();
            let mut file = weights.file("w.bin");
            bytes.chunks(size).for_each(|piece| file.take(piece));
            let data: Vec<String> =
                weights.tensors.iter().map(|tensor| format!("{:?}", tensor.data)).collect();
            assert_eq!(data, ["Fp32([1.0, 2.0])", "Uint8([1, 2, 3, 255])", "Int8([1, 2, 3, -1])"], "{size}");
        }
    }

    #[test]
    fn what_graphs_have_in_common_is_there_once() {
        let graphs = [
            graph(&[("table", 3, &[2, 2], 12), ("own", 1, &[2], 0)]),
            graph(&[("words", 3, &[2, 2], 12), ("flat", 3, &[4], 12)]),
        ];
        let weights = Weights::of(&graphs, |_| Some(20)).unwrap();
        let places = |weights: &Weights| -> Vec<(u64, Vec<i64>)> {
            weights.tensors.iter().map(|tensor| (tensor.place.offset, tensor.place.shape.clone())).collect()
        };
        assert_eq!(places(&weights), [(0, vec![2]), (12, vec![2, 2]), (12, vec![4])]);
        let names =
            |names: &[(String, Place)]| names.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&weights.names[0]), ["table", "own"]);
        assert_eq!(names(&weights.names[1]), ["words", "flat"]);
    }

    #[test]
    fn weights_that_cannot_be_are_refused() {
        let refused = |graph: Vec<u8>| Weights::of(&[graph], |_| Some(20)).unwrap_err().to_string();
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[-1], 0)])), @"expected weights that can be loaded, but found `a` of shape [-1]");
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[1 << 40, 1 << 40], 0)])), @"expected weights that can be loaded, but found `a` of shape [1099511627776, 1099511627776]");
        insta::assert_snapshot!(refused(graph(&[("a", 8, &[1], 0)])), @"expected weights that can be loaded, but found `a` of shape [1] and element type 8");
    }

    #[test]
    fn weights_that_no_file_has_take_no_memory() {
        let refused = |tensors: &[(&str, i32, &[i64], u64)], size| {
            Weights::of(&[graph(tensors)], |name| (name == "w.bin").then_some(size)).unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(&[("a", 1, &[1 << 30, 4], 0)], 20), @"expected weights that can be loaded, but found `a` of shape [1073741824, 4], which `w.bin` has no room for");
        insta::assert_snapshot!(refused(&[("a", 1, &[4], u64::MAX)], 20), @"expected weights that can be loaded, but found `a` of shape [4], which `w.bin` has no room for");
        // The same bytes again and again are a way to much memory, too.
        let many: [&[i64]; 3] = [&[20], &[20, 1], &[1, 20]];
        let many = many.map(|shape| ("a", 3, shape, 0));
        insta::assert_snapshot!(refused(&many, 20), @"expected weights that can be loaded, but found `a` of shape [20, 1], which `w.bin` has no room for");
    }

    #[test]
    fn products_without_a_zero_point_keep_their_signed_weights() {
        let keeps = |products: &[&[&str]]| {
            let product = |inputs: &&[&str]| Node {
                inputs: inputs.iter().map(|input| (*input).to_owned()).collect(),
                op_type: "DynamicQuantizeMatMul".into(),
                attributes: Vec::new(),
            };
            let graph = Graph { nodes: products.iter().map(product).collect(), initializers: Vec::new() };
            keeps_signed_weights(&Model { graph: Some(graph) }.encode_to_vec()).unwrap()
        };
        assert!(keeps(&[&["x", "weights", "scales", "", "bias"]]));
        assert!(!keeps(&[&["x", "weights", "scales", "zero_point", "bias"]]));
        assert!(!keeps(&[&["x", "weights", "scales"]]), "the runtime adds one where none is named");
        let another = ["y", "weights 2", "scales", "zero_point", "bias"];
        assert!(keeps(&[&["x", "weights", "scales", "zero_point", "bias"], &another]), "one that is shared");
    }

    #[test]
    fn weights_outside_of_the_bundle_are_not_read() {
        let known = |name: &str| name == "weights.bin";
        let refused = |graph: &[u8]| require_known_files(graph, known).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&graph(&[("a", 1, &[1], 0)])), @"expected the weights of `a` in a file of the bundle, but found `w.bin`");
        // In a branch of a node, as an attribute.
        let inner = Model::decode(graph(&[("b", 1, &[1], 0)]).as_slice()).unwrap().graph;
        let attribute = Attribute { graph: inner, ..Attribute::default() };
        let nodes = vec![Node { attributes: vec![attribute], ..Node::default() }];
        let outer = Model { graph: Some(Graph { nodes, initializers: Vec::new() }) };
        insta::assert_snapshot!(refused(&outer.encode_to_vec()), @"expected the weights of `b` in a file of the bundle, but found `w.bin`");
    }
}
