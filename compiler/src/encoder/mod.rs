//! Encoders, with and without a head for labels: from `config.json` and weights to a graph.

mod config;
mod cross_attention;
mod decoder;
mod details;
mod disentangled;
mod distance_tables;
mod distances;
mod families;
mod gliner;
mod graph;
mod heads;
mod source;
mod spans;
mod vectors;
mod word_scores;

pub(super) use self::{
    config::{Facts, Head, HeadKind},
    families::MODEL_TYPES,
    gliner::{DEFAULT_ENCODER, GLINER, is_gliner, missing_encoder, open_gliner},
    graph::LOGITS,
    source::{open, text_settings, token_settings},
    vectors::HEADS,
};
