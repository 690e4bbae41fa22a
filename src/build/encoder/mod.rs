//! Encoders of the BERT family, with and without a head for labels: from `config.json` and weights to a graph.

mod config;
mod disentangled;
mod distances;
mod graph;
mod source;

pub(super) use self::{
    config::{Facts, MODEL_TYPES},
    source::open,
};
