//! Encoders of the BERT family, from `config.json` and weights to a graph.

mod config;
mod graph;

pub use self::{
    config::{EncoderConfig, Facts, Head, MODEL_TYPES},
    graph::{LOGITS, OUTPUT, graph},
};
