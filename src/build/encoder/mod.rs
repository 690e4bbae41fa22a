//! Encoders of the BERT family, from `config.json` and weights to a graph.

mod config;
mod graph;

pub use self::{
    config::{EncoderConfig, Facts, Head, MODEL_TYPES},
    graph::{LOGITS, OUTPUT, graph},
};
pub(super) use self::{
    config::{RawConfig, WORDS, read_config, require_heads_fit, required},
    graph::finish,
};
