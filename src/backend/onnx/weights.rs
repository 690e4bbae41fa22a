//! Weights of a graph in memory: each tensor in memory of its own, which the session then uses where it is.
//!
//! ONNX Runtime can be given whole files of weights in memory as well, but it copies every tensor out of them.

use std::collections::BTreeSet;

use bytemuck::Pod;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor};
use prost::Message;

use crate::error::{Error, Result};

/// Tensors of a graph whose data lies in other files, to be filled with what those files hold.
#[derive(Debug)]
pub struct Weights {
    /// By file and offset.
    tensors: Vec<Placed>,
}

/// A tensor, and where its data comes from.
#[derive(Debug)]
struct Placed {
    name: String,
    shape: Vec<i64>,
    file: String,
    offset: u64,
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
    /// Makes room for the tensors of a graph that lie in other files, whose sizes `size` tells.
    ///
    /// - Each lies inside one of those files.
    /// - All together take no more than twice what the files have: a graph cannot ask for memory that nothing fills.
    pub fn of(graph: &[u8], size: impl Fn(&str) -> Option<u64>) -> Result<Self> {
        require_known_files(graph, |name| size(name).is_some())?;
        let initializers = decode(graph)?.graph.map(|graph| graph.initializers).unwrap_or_default();
        let outside: Vec<_> = initializers.into_iter().filter(|it| it.location == EXTERNAL).collect();
        let files: BTreeSet<&str> = outside.iter().filter_map(|tensor| tensor.file()).collect();
        let mut left = files.into_iter().filter_map(&size).fold(0, u64::saturating_add).saturating_mul(2);
        let mut tensors = Vec::with_capacity(outside.len());
        for tensor in outside {
            let end = size(tensor.file().unwrap_or_default()).unwrap_or(0);
            let placed = Placed::new(tensor, end.min(left), end)?;
            left = left.saturating_sub(placed.data.bytes());
            tensors.push(placed);
        }
        tensors.sort_by(|left, right| (&left.file, left.offset).cmp(&(&right.file, right.offset)));
        Ok(Self { tensors })
    }

    /// The files that the tensors come from.
    pub fn files(&self) -> BTreeSet<String> {
        self.tensors.iter().map(|tensor| tensor.file.clone()).collect()
    }

    /// The tensors of one file, which take its bytes in order.
    pub fn file(&mut self, name: &str) -> Filling<'_> {
        let tensors = self.tensors.iter_mut().filter(|tensor| tensor.file == name).collect();
        Filling { tensors, position: 0 }
    }

    /// The filled tensors by name.
    pub(super) fn into_values(self) -> Result<Vec<(String, DynValue)>> {
        self.tensors
            .into_iter()
            .map(|tensor| Ok((tensor.name, tensor.data.into_value(tensor.shape)?)))
            .collect()
    }
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
        for tensor in self.tensors.iter_mut().take_while(|tensor| tensor.offset < end) {
            let target = tensor.data.bytes_mut();
            let from = tensor.offset.max(start);
            let to = (tensor.offset + target.len() as u64).min(end);
            if from < to {
                let place = (from - tensor.offset) as usize;
                let part = &piece[(from - start) as usize..(to - start) as usize];
                target[place..place + part.len()].copy_from_slice(part);
            }
        }
        self.position = end;
        // Graphs have hundreds of tensors: those that are full need not be looked at for every piece.
        self.tensors.retain_mut(|tensor| tensor.offset + tensor.data.bytes_mut().len() as u64 > end);
    }
}

impl Placed {
    /// A tensor of at most `most` bytes, in a file that ends at `end`.
    fn new(tensor: Initializer, most: u64, end: u64) -> Result<Self> {
        let wrong = |found: &str| {
            Error::model(format!("expected weights that can be loaded, but found `{}` {found}", tensor.name))
        };
        let file = tensor.file().ok_or_else(|| wrong("without a file"))?.to_owned();
        let offset = tensor.entry("offset").map_or(Ok(0), str::parse);
        let offset: u64 = offset.map_err(|_| wrong("without an offset"))?;
        let count = tensor
            .shape
            .iter()
            .try_fold(1_usize, |product, side| product.checked_mul(usize::try_from(*side).ok()?));
        let count = count.ok_or_else(|| wrong(&format!("of shape {:?}", tensor.shape)))?;
        let width = match tensor.element_type {
            2 | 3 => 1,
            1 | 6 => 4,
            _ => 8,
        };
        let bytes = (count as u64).checked_mul(width).filter(|bytes| *bytes <= most);
        if bytes.and_then(|bytes| bytes.checked_add(offset)).is_none_or(|found| found > end) {
            return Err(wrong(&format!("of shape {:?}, which `{file}` has no room for", tensor.shape)));
        }
        let data = match tensor.element_type {
            1 => Data::Fp32(vec![0.0; count]),
            2 => Data::Uint8(vec![0; count]),
            3 => Data::Int8(vec![0; count]),
            6 => Data::Int32(vec![0; count]),
            7 => Data::Int64(vec![0; count]),
            other => return Err(wrong(&format!("of element type {other}"))),
        };
        Ok(Self { name: tensor.name, shape: tensor.shape, file, offset, data })
    }
}

impl Initializer {
    fn entry(&self, key: &str) -> Option<&str> {
        self.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }

    fn file(&self) -> Option<&str> {
        self.entry("location")
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
            let mut weights = Weights::of(&graph, |_| Some(20)).unwrap();
            let mut file = weights.file("w.bin");
            bytes.chunks(size).for_each(|piece| file.take(piece));
            let data: Vec<String> =
                weights.tensors.iter().map(|tensor| format!("{:?}", tensor.data)).collect();
            assert_eq!(data, ["Fp32([1.0, 2.0])", "Int8([1, 2, 3, -1])", "Uint8([1, 2, 3, 255])"], "{size}");
        }
    }

    #[test]
    fn weights_that_cannot_be_are_refused() {
        let refused = |graph: Vec<u8>| Weights::of(&graph, |_| Some(20)).unwrap_err().to_string();
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[-1], 0)])), @"expected weights that can be loaded, but found `a` of shape [-1]");
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[1 << 40, 1 << 40], 0)])), @"expected weights that can be loaded, but found `a` of shape [1099511627776, 1099511627776]");
        insta::assert_snapshot!(refused(graph(&[("a", 8, &[1], 0)])), @"expected weights that can be loaded, but found `a` of element type 8");
    }

    #[test]
    fn weights_that_no_file_has_take_no_memory() {
        let refused = |tensors: &[(&str, i32, &[i64], u64)], size| {
            Weights::of(&graph(tensors), |name| (name == "w.bin").then_some(size)).unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(&[("a", 1, &[1 << 30, 4], 0)], 20), @"expected weights that can be loaded, but found `a` of shape [1073741824, 4], which `w.bin` has no room for");
        insta::assert_snapshot!(refused(&[("a", 1, &[4], u64::MAX)], 20), @"expected weights that can be loaded, but found `a` of shape [4], which `w.bin` has no room for");
        // The same bytes again and again are a way to much memory, too.
        let many = vec![("a", 3, &[20_i64][..], 0); 3];
        insta::assert_snapshot!(refused(&many, 20), @"expected weights that can be loaded, but found `a` of shape [20], which `w.bin` has no room for");
    }

    #[test]
    fn weights_outside_of_the_bundle_are_not_read() {
        let known = |name: &str| name == "weights.bin";
        let refused = |graph: &[u8]| require_known_files(graph, known).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&graph(&[("a", 1, &[1], 0)])), @"expected the weights of `a` in a file of the bundle, but found `w.bin`");
        // In a branch of a node, as an attribute.
        let inner = Model::decode(graph(&[("b", 1, &[1], 0)]).as_slice()).unwrap().graph;
        let attribute = Attribute { graph: inner, ..Attribute::default() };
        let nodes = vec![Node { attributes: vec![attribute] }];
        let outer = Model { graph: Some(Graph { nodes, initializers: Vec::new() }) };
        insta::assert_snapshot!(refused(&outer.encode_to_vec()), @"expected the weights of `b` in a file of the bundle, but found `w.bin`");
    }
}
