//! Reading and writing ONNX files without ONNX Runtime.

mod file;
mod graph;
pub mod proto;

pub use self::{
    file::{WEIGHTS, read, write, write_all},
    graph::{GraphBuilder, Value, float, integer, integers},
};
