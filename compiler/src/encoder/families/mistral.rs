//! Mistral: e5-mistral, Linq-Embed-Mistral.

use super::{
    decoders::{self, Defaults},
    fields,
};
use crate::{encoder::config::EncoderConfig, files::config::ConfigFile};
use kivu::error::Result;

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(8),
    ..Defaults::LLAMA
};

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let window = fields::optional_window(config, "sliding_window", 4096)?;
    let [_, span] = decoders::spans(config, &DEFAULTS, window)?;
    decoders::read(config, &decoders::NAMES, &DEFAULTS, vec![span])
}
