//! Mistral and Ministral 3: e5-mistral, Linq-Embed-Mistral, Nemotron-3-Embed.

use super::{
    decoders::{self, Defaults},
    fields, rope,
};
use crate::{encoder::config::EncoderConfig, files::config::ConfigFile};
use kivu::Result;

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(8),
    ..Defaults::LLAMA
};

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let window = fields::optional_window(config, "sliding_window", 4096)?;
    let [_, span] = decoders::spans(config, &DEFAULTS, window)?;
    decoders::read(config, "llama", &DEFAULTS, vec![span])
}

/// Ministral 3: queries grow with their position, and there is no window unless the files have one.
pub fn read_ministral3(config: &ConfigFile) -> Result<EncoderConfig> {
    let defaults = Defaults {
        head_width: Some(128),
        epsilon: 1e-5,
        ..DEFAULTS
    };
    let window = match config.get::<usize>("sliding_window")? {
        None => None,
        Some(_) => fields::optional_window(config, "sliding_window", 0)?,
    };
    let rotary = rope::of_ministral3(config, decoders::heads(config, &defaults)?.width)?;
    let [_, span] = decoders::spans_of(config, &rotary, window)?;
    decoders::read(config, "llama", &defaults, vec![span])
}
