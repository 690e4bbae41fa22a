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
    /// Makes room for the tensors of a graph that lie in other files.
    pub fn of(graph: &[u8]) -> Result<Self> {
        let model =
            Model::decode(graph).map_err(|error| Error::model_because("the graph is no ONNX file", error))?;
        let initializers = model.graph.map(|graph| graph.initializers).unwrap_or_default();
        let outside = initializers.into_iter().filter(|tensor| tensor.location == EXTERNAL);
        let mut tensors = outside.map(Placed::new).collect::<Result<Vec<_>>>()?;
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
    fn new(tensor: Initializer) -> Result<Self> {
        let entry = |key: &str| {
            tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
        };
        let wrong = |found: &str| {
            Error::model(format!("expected weights that can be loaded, but found `{}` {found}", tensor.name))
        };
        let file = entry("location").ok_or_else(|| wrong("without a file"))?.to_owned();
        let offset = entry("offset").map_or(Ok(0), str::parse).map_err(|_| wrong("without an offset"))?;
        let count = tensor.shape.iter().try_fold(1_usize, |product, side| {
            product.checked_mul(usize::try_from(*side).ok()?).filter(|count| *count < MOST_ELEMENTS)
        });
        let count = count.ok_or_else(|| wrong(&format!("of shape {:?}", tensor.shape)))?;
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

impl Data {
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

/// A graph that asks for more is a mistake or an attack; the largest weights are a hundredth of it.
const MOST_ELEMENTS: usize = 1 << 36;

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
    #[prost(message, repeated, tag = "5")]
    initializers: Vec<Initializer>,
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
        Model { graph: Some(Graph { initializers: initializers.collect() }) }.encode_to_vec()
    }

    #[test]
    fn tensors_are_filled_from_pieces_of_any_size() {
        let graph = graph(&[("b", 3, &[2, 2], 12), ("a", 1, &[2], 0), ("shared", 2, &[4], 12)]);
        let bytes: Vec<u8> =
            [1.0_f32.to_le_bytes(), 2.0_f32.to_le_bytes(), [9; 4], [1, 2, 3, 255], [7; 4]].concat();
        for size in 1..=bytes.len() {
            let mut weights = Weights::of(&graph).unwrap();
            let mut file = weights.file("w.bin");
            bytes.chunks(size).for_each(|piece| file.take(piece));
            let data: Vec<String> =
                weights.tensors.iter().map(|tensor| format!("{:?}", tensor.data)).collect();
            assert_eq!(data, ["Fp32([1.0, 2.0])", "Int8([1, 2, 3, -1])", "Uint8([1, 2, 3, 255])"], "{size}");
        }
    }

    #[test]
    fn weights_that_cannot_be_are_refused() {
        let refused = |graph: Vec<u8>| Weights::of(&graph).unwrap_err().to_string();
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[-1], 0)])), @"expected weights that can be loaded, but found `a` of shape [-1]");
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[1 << 40, 1 << 40], 0)])), @"expected weights that can be loaded, but found `a` of shape [1099511627776, 1099511627776]");
        insta::assert_snapshot!(refused(graph(&[("a", 8, &[1], 0)])), @"expected weights that can be loaded, but found `a` of element type 8");
    }
}
