//! MegatronBERT: BERT with normalizations before its layers' parts, and a final one.

use super::fields::{epsilon, expect, expect_absolute_positions};
use crate::{
    encoder::config::{EncoderConfig, FeedForward, Gate, Heads, Positions},
    files::config::ConfigFile,
};
use kivu::Result;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "is_decoder", &false)?;
    expect_absolute_positions(config)?;
    let feed_forward = FeedForward::read(config, Gate::None)?;
    Ok(EncoderConfig {
        positions: Positions::Table,
        epsilon: epsilon(config)?,
        types: config.get_size("type_vocab_size")?.unwrap_or(2),
        ..EncoderConfig::new(config, "megatron-bert", Heads::read(config)?, feed_forward)?
    })
}
