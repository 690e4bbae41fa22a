//! ONNX exports in the layout of `optimum-cli export onnx`.

mod generator;
mod layers;
mod layout;
mod part;
pub(super) mod quantize;
pub(super) mod text_encoder;

pub use self::generator::{Seq2Seq, read};
pub(super) use self::{
    generator::{is_in as is_seq2seq_in, open as open_seq2seq},
    layout::{files, is_graph, is_in},
    text_encoder::open,
};
