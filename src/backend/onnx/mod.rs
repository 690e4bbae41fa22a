//! Runs ONNX graphs in this process, with ONNX Runtime.

mod bindings;
mod external_weights;
pub mod library;
mod row_permutation;
mod run;
mod seq2seq;
mod session;
mod single;
mod values;
mod workers;

pub use self::{
    external_weights::{ExternalInitializers, ExternalWeights, keeps_signed_weights, require_known_files},
    library::Runtime,
    seq2seq::{OnnxSeq2Seq, Parallelism},
    session::{Graph, Session},
    single::OnnxBackend,
};
