//! Encoders, with and without a head for labels: from `config.json` and weights to a graph.

mod config;
mod decoder;
mod disentangled;
mod distances;
mod families;
mod graph;
mod heads;
mod source;
mod vectors;

pub(super) use self::{
    config::{Facts, Head, HeadKind},
    families::MODEL_TYPES,
    source::{open, token_settings},
    vectors::HEADS,
};
