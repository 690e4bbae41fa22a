//! Reading and writing ONNX files without ONNX Runtime.

mod file;
mod graph;

pub use self::{
    file::{WEIGHTS, read, write, write_all},
    graph::{GraphBuilder, MICROSOFT, Value, any, fixed, float, integer, integers},
};
pub use crate::onnx_proto as proto;
