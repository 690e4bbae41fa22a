//! Encoders, with and without a head for labels: from `config.json` and weights to a graph.

mod attention;
mod bottleneck;
mod config;
mod details;
mod families;
mod graph;
mod heads;
mod layer_signals;
mod listwise;
mod names;
mod source;
mod unnamed_heads;
mod vectors;
mod zero_shot;

pub use self::{
    attention::pair_templates::KnownTemplate,
    config::{EncoderLimits, Head, HeadKind},
    families::{
        EMBEDDING_GEMMA2, EMBEDDING_GEMMA2_TEXT, JINA_V3, JINA_V5, TEXT_CONFIG, alternative,
        asked_fields, jina_of,
    },
    graph::LOGITS,
    source::{open, source_of_layers, text_settings, token_settings},
    unnamed_heads::{kind_for_task, label_head as unnamed_label_head, reads_labels},
    vectors::HEADS,
    zero_shot::{
        gliclass::{GLICLASS, is_gliclass, open_gliclass},
        gliner::{is_gliner, missing_encoder, open_gliner},
        gliner_config::{DEFAULT_ENCODER, GLINER, LABELS_ENCODER_CONFIG},
        gliner2::{ENCODER_CONFIG, GLINER2, is_gliner2, open_gliner2},
        label_encoder::FOLDER as LABELS_TOKENIZER,
    },
};
