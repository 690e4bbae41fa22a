//! Graph weights in memory: each tensor has its own allocation, which the sessions use in place.
//!
//! ONNX Runtime also accepts whole weight files in memory, but it copies every tensor out of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use bytemuck::Pod;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor};

use kivu_base::{
    Error, Result,
    onnx_proto::{EXTERNAL, ModelProto, TensorProto, data_type},
};
use kivu_core::backend::external_files::check_files;

/// External tensors for one or more graphs, to be filled from the files that hold their data.
#[derive(Debug)]
pub struct ExternalWeights {
    /// Sorted by file and offset. Graphs share equal tensors.
    tensors: BTreeMap<FileSlice, Box<dyn Data>>,
    /// Tensor names per graph.
    names: Vec<Vec<(String, FileSlice)>>,
}

/// A graph's filled tensors, by name.
pub type ExternalInitializers = Vec<(String, Arc<DynValue>)>;

/// The file slice that holds a tensor, with the tensor's type and shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileSlice {
    file: String,
    offset: u64,
    /// As in [`data_type`].
    element_type: i32,
    shape: Vec<i64>,
}

impl ExternalWeights {
    /// Allocates external tensors for `graphs`. `size` returns a file's size in bytes, if known.
    ///
    /// Refuses tensors outside their file, and tensors that need more than twice the size of all files together, so
    /// that a small bundle cannot exhaust memory.
    pub fn of(graphs: &[Vec<u8>], size: impl Fn(&str) -> Option<u64>) -> Result<Self> {
        let names: Vec<Vec<(String, FileSlice)>> = graphs
            .iter()
            .map(|graph| external_tensors(graph, &size))
            .collect::<Result<_>>()?;
        let slices = names.iter().flatten();
        let files: BTreeSet<&str> = slices
            .clone()
            .map(|(_, slice)| slice.file.as_str())
            .collect();
        let mut left = files
            .into_iter()
            .filter_map(&size)
            .fold(0, u64::saturating_add)
            .saturating_mul(2);
        let mut tensors = BTreeMap::new();
        for (name, slice) in slices {
            if !tensors.contains_key(slice) {
                let data = slice.allocate(name, size(&slice.file).unwrap_or(0), left)?;
                left = left.saturating_sub(data.bytes().len() as u64);
                tensors.insert(slice.clone(), data);
            }
        }
        Ok(Self { tensors, names })
    }

    /// The files that hold the tensors.
    pub fn files(&self) -> BTreeSet<String> {
        self.tensors
            .keys()
            .map(|slice| slice.file.clone())
            .collect()
    }

    /// Tensors in the file `name`.
    pub fn file(&mut self, name: &str) -> FileFiller<'_> {
        let tensors = self
            .tensors
            .iter_mut()
            .filter(|(slice, _)| slice.file == name);
        let tensors = tensors
            .map(|(slice, data)| (slice.offset, data.bytes_mut()))
            .collect();
        FileFiller {
            tensors,
            position: 0,
        }
    }

    /// Tensors per graph; an error unless all were filled.
    pub fn into_initializers(self) -> Result<Vec<ExternalInitializers>> {
        let values = self.tensors.into_iter().map(|(slice, data)| {
            let value = Arc::new(data.into_value(slice.shape.clone())?);
            Ok((slice, value))
        });
        let values: BTreeMap<FileSlice, Arc<DynValue>> = values.collect::<Result<_>>()?;
        let initializers = |names: Vec<(String, FileSlice)>| -> ExternalInitializers {
            let value = |(name, slice)| Some((name, Arc::clone(values.get(&slice)?)));
            names.into_iter().filter_map(value).collect()
        };
        Ok(self.names.into_iter().map(initializers).collect())
    }
}

/// Fills one file's tensors from its bytes, in order.
#[derive(Debug)]
pub struct FileFiller<'a> {
    /// Tensors that are not full yet, with their offsets, in ascending order.
    tensors: Vec<(u64, &'a mut [u8])>,
    position: u64,
}

impl FileFiller<'_> {
    /// Copies the file's next bytes; bytes between tensors are skipped.
    pub fn fill(&mut self, bytes: &[u8]) {
        let (start, end) = (self.position, self.position + bytes.len() as u64);
        for (offset, target) in self
            .tensors
            .iter_mut()
            .take_while(|(offset, _)| *offset < end)
        {
            let from = start.max(*offset);
            let to = end.min(*offset + target.len() as u64);
            if from < to {
                let part = &bytes[(from - start) as usize..(to - start) as usize];
                target[(from - *offset) as usize..][..part.len()].copy_from_slice(part);
            }
        }
        self.position = end;
        // Graphs have hundreds of tensors; full ones need not be visited for every file piece.
        self.tensors
            .retain(|(offset, target)| *offset + target.len() as u64 > end);
    }
}

impl FileSlice {
    fn of(name: &str, tensor: &TensorProto) -> Result<Self> {
        let wrong = |found: &str| {
            Error::model(format!(
                "expected weights that can be loaded, but found `{name}` {found}"
            ))
        };
        let file = tensor
            .external("location")
            .ok_or_else(|| wrong("without a file"))?
            .to_owned();
        let offset = tensor.external("offset").map_or(Ok(0), str::parse);
        let offset = offset.map_err(|_| wrong("without an offset"))?;
        Ok(Self {
            file,
            offset,
            element_type: tensor.data_type,
            shape: tensor.dims.clone(),
        })
    }

    /// Allocates at most `max_bytes` for a tensor in a file with `file_size` bytes.
    fn allocate(&self, name: &str, file_size: u64, max_bytes: u64) -> Result<Box<dyn Data>> {
        let Self {
            file,
            offset,
            element_type,
            shape,
        } = self;
        let wrong = |found: String| {
            Error::model(format!(
                "expected weights that can be loaded, but found `{name}` of shape {shape:?}{found}"
            ))
        };
        type Zeros = fn(usize) -> Box<dyn Data>;
        let (width, zeros): (u64, Zeros) = match *element_type {
            data_type::FLOAT => (4, zeros::<f32>),
            data_type::UINT8 => (1, zeros::<u8>),
            data_type::INT8 => (1, zeros::<i8>),
            data_type::INT32 => (4, zeros::<i32>),
            data_type::INT64 => (8, zeros::<i64>),
            other => return Err(wrong(format!(" and element type {other}"))),
        };
        let count = shape
            .iter()
            .try_fold(1_usize, |product, side| {
                product.checked_mul(usize::try_from(*side).ok()?)
            })
            .ok_or_else(|| wrong(String::new()))?;
        let bytes = (count as u64)
            .checked_mul(width)
            .filter(|bytes| *bytes <= max_bytes);
        if bytes
            .and_then(|bytes| bytes.checked_add(*offset))
            .is_none_or(|end| end > file_size)
        {
            return Err(wrong(format!(", which `{file}` has no room for")));
        }
        Ok(zeros(count))
    }
}

/// External tensors in a graph, by name.
fn external_tensors(
    graph: &[u8],
    size: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<(String, FileSlice)>> {
    let model = ModelProto::from_bytes(graph)?;
    check_files(&model, |name| size(name).is_some())?;
    let initializers = model.graph.iter().flat_map(|graph| &graph.initializer);
    let external = initializers.filter(|tensor| tensor.data_location == EXTERNAL);
    external
        .map(|tensor| Ok((tensor.name.clone(), FileSlice::of(&tensor.name, tensor)?)))
        .collect()
}

/// Whether ONNX Runtime cannot convert all signed 8-bit weights in the graph to unsigned ones: weights without a zero
/// point, as in earlier versions' bundles, and weights shared by several products.
pub fn keeps_signed_weights(graph: &[u8]) -> Result<bool> {
    let graph = ModelProto::from_bytes(graph)?.graph.unwrap_or_default();
    let mut products = graph
        .node
        .iter()
        .filter(|node| node.op_type == "DynamicQuantizeMatMul");
    let mut known = BTreeSet::new();
    Ok(products.any(|product| {
        let mut constants = [1, 3]
            .into_iter()
            .filter_map(|input| product.input.get(input));
        constants.any(|name| name.is_empty() || !known.insert(name))
    }))
}

/// Tensor elements, whatever their type.
trait Data: Debug + Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    fn into_value(self: Box<Self>, shape: Vec<i64>) -> Result<DynValue>;
}

impl<T: Pod + PrimitiveTensorElementType + Debug + Send> Data for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }

    fn into_value(self: Box<Self>, shape: Vec<i64>) -> Result<DynValue> {
        let value = Tensor::from_array((shape, *self));
        Ok(value
            .map_err(|error| Error::model_because("the weights cannot be used", error))?
            .into_dyn())
    }
}

fn zeros<T: Pod + PrimitiveTensorElementType + Debug + Send>(count: usize) -> Box<dyn Data> {
    Box::new(vec![T::zeroed(); count])
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use kivu_base::onnx_proto::{AttributeProto, GraphProto, NodeProto, StringStringEntryProto};
    use kivu_core::backend::external_files::require_known_files;

    fn graph(tensors: &[(&str, i32, &[i64], u64)]) -> Vec<u8> {
        let initializer = tensors
            .iter()
            .map(|(name, element_type, shape, offset)| TensorProto {
                dims: shape.to_vec(),
                data_type: *element_type,
                name: (*name).into(),
                external_data: [("location", "w.bin".into()), ("offset", offset.to_string())]
                    .map(|(key, value)| StringStringEntryProto {
                        key: key.into(),
                        value,
                    })
                    .into(),
                data_location: EXTERNAL,
                ..TensorProto::default()
            });
        encoded(GraphProto {
            initializer: initializer.collect(),
            ..GraphProto::default()
        })
    }

    fn encoded(graph: GraphProto) -> Vec<u8> {
        ModelProto {
            graph: Some(graph),
            ..ModelProto::default()
        }
        .encode_to_vec()
    }

    #[test]
    fn tensors_are_filled_from_pieces_of_any_size() {
        let graph = graph(&[
            ("b", 3, &[2, 2], 12),
            ("a", 1, &[2], 0),
            ("shared", 2, &[4], 12),
        ]);
        let bytes: Vec<u8> = [
            1.0_f32.to_le_bytes(),
            2.0_f32.to_le_bytes(),
            [9; 4],
            [1, 2, 3, 255],
            [7; 4],
        ]
        .concat();
        for size in 1..=bytes.len() {
            let mut weights =
                ExternalWeights::of(std::slice::from_ref(&graph), |_| Some(20)).unwrap();
            let mut file = weights.file("w.bin");
            bytes.chunks(size).for_each(|piece| file.fill(piece));
            let data: Vec<String> = weights
                .tensors
                .values()
                .map(|data| format!("{data:?}"))
                .collect();
            assert_eq!(
                data,
                ["[1.0, 2.0]", "[1, 2, 3, 255]", "[1, 2, 3, -1]"],
                "{size}"
            );
        }
    }

    #[test]
    fn graphs_share_equal_tensors() {
        let graphs = [
            graph(&[("table", 3, &[2, 2], 12), ("own", 1, &[2], 0)]),
            graph(&[("words", 3, &[2, 2], 12), ("flat", 3, &[4], 12)]),
        ];
        let weights = ExternalWeights::of(&graphs, |_| Some(20)).unwrap();
        let slices: Vec<_> = weights
            .tensors
            .keys()
            .map(|slice| (slice.offset, slice.shape.clone()))
            .collect();
        assert_eq!(slices, [(0, vec![2]), (12, vec![2, 2]), (12, vec![4])]);
        let names: Vec<Vec<&str>> = weights
            .names
            .iter()
            .map(|names| names.iter().map(|(name, _)| name.as_str()).collect())
            .collect();
        assert_eq!(names, [["table", "own"], ["words", "flat"]]);
    }

    #[test]
    fn invalid_weights_are_refused() {
        let refused = |graph: Vec<u8>| {
            ExternalWeights::of(&[graph], |_| Some(20))
                .unwrap_err()
                .to_string()
        };
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[-1], 0)])), @"expected weights that can be loaded, but found `a` of shape [-1]");
        insta::assert_snapshot!(refused(graph(&[("a", 1, &[1 << 40, 1 << 40], 0)])), @"expected weights that can be loaded, but found `a` of shape [1099511627776, 1099511627776]");
        insta::assert_snapshot!(refused(graph(&[("a", 8, &[1], 0)])), @"expected weights that can be loaded, but found `a` of shape [1] and element type 8");
    }

    #[test]
    fn weights_beyond_their_file_are_refused_without_allocating() {
        let refused = |tensors: &[(&str, i32, &[i64], u64)], size| {
            ExternalWeights::of(&[graph(tensors)], |name| (name == "w.bin").then_some(size))
                .unwrap_err()
                .to_string()
        };
        insta::assert_snapshot!(refused(&[("a", 1, &[1 << 30, 4], 0)], 20), @"expected weights that can be loaded, but found `a` of shape [1073741824, 4], which `w.bin` has no room for");
        insta::assert_snapshot!(refused(&[("a", 1, &[4], u64::MAX)], 20), @"expected weights that can be loaded, but found `a` of shape [4], which `w.bin` has no room for");
        // Many tensors that refer to the same bytes would need much memory, too.
        let many: [&[i64]; 3] = [&[20], &[1, 20], &[20, 1]];
        let many = many.map(|shape| ("a", 3, shape, 0));
        insta::assert_snapshot!(refused(&many, 20), @"expected weights that can be loaded, but found `a` of shape [20, 1], which `w.bin` has no room for");
    }

    #[test]
    fn products_without_a_zero_point_keep_their_signed_weights() {
        let keeps = |products: &[&[&str]]| {
            let product = |inputs: &&[&str]| NodeProto {
                input: inputs.iter().map(|input| (*input).to_owned()).collect(),
                op_type: "DynamicQuantizeMatMul".into(),
                ..NodeProto::default()
            };
            let node = products.iter().map(product).collect();
            keeps_signed_weights(&encoded(GraphProto {
                node,
                ..GraphProto::default()
            }))
            .unwrap()
        };
        assert!(keeps(&[&["x", "weights", "scales", "", "bias"]]));
        assert!(!keeps(&[&["x", "weights", "scales", "zero_point", "bias"]]));
        assert!(
            !keeps(&[&["x", "weights", "scales"]]),
            "ONNX Runtime adds a missing one"
        );
        let another = ["y", "weights 2", "scales", "zero_point", "bias"];
        assert!(
            keeps(&[&["x", "weights", "scales", "zero_point", "bias"], &another]),
            "shared zero point"
        );
    }

    #[test]
    fn weights_outside_the_bundle_are_refused() {
        let known = |name: &str| name == "weights.bin";
        let refused = |graph: &[u8]| require_known_files(graph, known).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&graph(&[("a", 1, &[1], 0)])), @"expected the weights of `a` in a file of the bundle, but found `w.bin`");
        // In a node attribute's graph.
        let inner = ModelProto::decode(graph(&[("b", 1, &[1], 0)]).as_slice())
            .unwrap()
            .graph;
        let attribute = vec![AttributeProto {
            g: inner,
            ..AttributeProto::default()
        }];
        let node = vec![NodeProto {
            attribute,
            ..NodeProto::default()
        }];
        let outer = encoded(GraphProto {
            node,
            ..GraphProto::default()
        });
        insta::assert_snapshot!(refused(&outer), @"expected the weights of `b` in a file of the bundle, but found `w.bin`");
    }
}
