//! Encoders, with and without a head for labels: from `config.json` and weights to a graph.

mod config;
mod counted_spans;
mod cross_attention;
mod decoder;
mod details;
mod disentangled;
mod distance_tables;
mod distances;
mod families;
mod gliclass;
mod gliner;
mod gliner2;
mod gliner_config;
mod graph;
mod heads;
mod label_encoder;
mod source;
mod span_layers;
mod spans;
mod text_scores;
mod unnamed_heads;
mod vectors;
mod word_scores;

pub use self::{
    config::{Facts, Head, HeadKind},
    families::{JINA_V3, MODEL_TYPES, alternative, is_jinas},
    gliclass::{GLICLASS, is_gliclass, open_gliclass},
    gliner::{is_gliner, missing_encoder, open_gliner},
    gliner_config::{DEFAULT_ENCODER, GLINER, LABELS_ENCODER_CONFIG},
    gliner2::{ENCODER_CONFIG, GLINER2, is_gliner2, open_gliner2},
    graph::LOGITS,
    label_encoder::FOLDER as LABELS_TOKENIZER,
    source::{open, source_of_layers, text_settings, token_settings},
    unnamed_heads::{kind_for_task, label_head as unnamed_label_head, reads_labels},
    vectors::HEADS,
};
