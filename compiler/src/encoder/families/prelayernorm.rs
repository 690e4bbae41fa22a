//! RoBERTa with normalizations before its layers' parts, and a final one: XLM-RoBERTa-XL and RoBERTa-PreLayerNorm.

use super::fields::{expect, expect_absolute_positions, positions};
use crate::{
    encoder::config::{EncoderConfig, FeedForward, Gate, Heads},
    files::config::ConfigFile,
};
use kivu::Result;

pub const XLM_ROBERTA_XL: &str = "xlm-roberta-xl";
pub const ROBERTA_PRELAYERNORM: &str = "roberta-prelayernorm";

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let (default_epsilon, default_types) = match config.model_type() {
        XLM_ROBERTA_XL => (1e-5, 1),
        _ => (1e-12, 2),
    };
    expect(config, "is_decoder", &false)?;
    expect_absolute_positions(config)?;
    let feed_forward = FeedForward::read(config, Gate::None)?;
    Ok(EncoderConfig {
        epsilon: config.epsilon(&["layer_norm_eps"], default_epsilon)?,
        positions: positions(config)?,
        types: config.get_size("type_vocab_size")?.unwrap_or(default_types),
        ..EncoderConfig::new(
            config,
            config.model_type(),
            Heads::read(config)?,
            feed_forward,
        )?
    })
}
