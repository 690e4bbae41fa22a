//! RoBERTa with normalizations before its layers' parts, and a final one: XLM-RoBERTa-XL and RoBERTa-PreLayerNorm.

use super::{
    bert::ROBERTA,
    fields::{expect, expect_absolute_positions, positions},
};
use crate::{
    encoder::config::{EncoderConfig, FeedForward, Gate, Heads, Names, Norms},
    files::config::ConfigFile,
};
use kivu::error::Result;

pub const XLM_ROBERTA_XL: &str = "xlm-roberta-xl";
pub const ROBERTA_PRELAYERNORM: &str = "roberta-prelayernorm";

const XL: Names = Names {
    embedding_norm: None,
    norms: Norms::Before {
        attention: "attention.self_attn_layer_norm",
        feed_forward: "LayerNorm",
        after: None,
        last: "encoder.LayerNorm",
        is_first_normal: true,
    },
    ..ROBERTA
};
/// Embeddings have a normalization of their own, before the first layer's.
pub const PRELAYERNORM: Names = Names {
    prefix: "roberta_prelayernorm.",
    norms: Norms::Before {
        attention: "attention.LayerNorm",
        feed_forward: "intermediate.LayerNorm",
        after: None,
        last: "LayerNorm",
        is_first_normal: true,
    },
    ..ROBERTA
};

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let (names, default_epsilon, default_types) = match config.model_type() {
        XLM_ROBERTA_XL => (&XL, 1e-5, 1),
        _ => (&PRELAYERNORM, 1e-12, 2),
    };
    expect(config, "is_decoder", &false)?;
    expect_absolute_positions(config)?;
    let feed_forward = FeedForward::read(config, Gate::None)?;
    Ok(EncoderConfig {
        epsilon: config.epsilon(&["layer_norm_eps"], default_epsilon)?,
        positions: positions(config)?,
        types: config.get("type_vocab_size")?.unwrap_or(default_types),
        ..EncoderConfig::new(config, names, Heads::read(config)?, feed_forward)?
    })
}
