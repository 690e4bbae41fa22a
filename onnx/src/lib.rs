//! Runs ONNX graphs in this process, with ONNX Runtime.

mod bindings;
mod encoder_decoder;
mod external_weights;
pub mod library;
mod row_permutation;
mod run;
mod session;
mod single;
mod values;
mod workers;

pub use self::{
    encoder_decoder::{OnnxSeq2Seq, Parallelism},
    external_weights::{ExternalInitializers, ExternalWeights, keeps_signed_weights},
    library::Runtime,
    session::{Graph, Session},
    single::OnnxBackend,
};
