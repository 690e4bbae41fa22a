//! Reading and writing ONNX files without ONNX Runtime.

mod file;
pub mod functions;
mod graph;
pub(crate) mod layers;

pub use self::graph::{float_tensor, int8_tensor};
pub use self::{
    file::{WEIGHTS, read, sha256, write, write_all},
    graph::{GraphBuilder, Value, any, fixed, float, integer, integers, string},
};
pub use kivu::onnx_proto as proto;
pub use kivu::onnx_proto::{AttributeProto, Dimension, ModelProto, data_type};
