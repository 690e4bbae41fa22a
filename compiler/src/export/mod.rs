//! ONNX exports in the layout of `optimum-cli export onnx`.

pub(super) mod encoder;
mod layout;
mod part;
pub(super) mod quantize;
mod seq2seq;

pub use self::seq2seq::{Seq2Seq, read};
pub(super) use self::{
    encoder::open,
    layout::{files, is_graph, is_in},
    seq2seq::{is_in as is_seq2seq_in, open as open_seq2seq},
};
