//! ONNX exports in the layout of `optimum-cli export onnx`.

mod generator;
mod layers;
mod layout;
mod part;
pub mod quantize;
pub mod text_encoder;

pub use self::generator::{Seq2Seq, read};
pub use self::{
    generator::{is_in as is_seq2seq_in, open as open_seq2seq},
    layout::{files, is_graph, is_in},
    text_encoder::open,
};
