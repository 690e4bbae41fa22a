//! GTE v1.5 (`new`): gte-base-en-v1.5, gte-multilingual-base, snowflake-arctic-embed-m-v2.0.

use super::{
    fields::{epsilon, expect},
    rope,
};
use crate::{
    encoder::config::{Biases, EncoderConfig, FeedForward, Gate, Heads, Span},
    files::config::ConfigFile,
    onnx::layers::AttentionWindow,
};
use kivu::Result;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "position_embedding_type", &"rope".to_owned())?;
    expect(config, "layer_norm_type", &"layer_norm".to_owned())?;
    expect(config, "pack_qkv", &true)?;
    expect(config, "logn_attention_scale", &false)?;
    let heads = Heads::read(config)?;
    expect(config, "head_dim", &heads.width)?;
    let rope = rope::Rope::read(config)?;
    let default_base = match config.model_type() {
        "gte" => 160_000.0,
        _ => 10_000.0,
    };
    let base = rope.rope_theta.unwrap_or(default_base);
    let rotary = rope::rotary(heads.width, 1.0, base, rope.scaling(&["ntk"], 0)?)?;
    let feed_forward = FeedForward::read(config, Gate::Second)?;
    Ok(EncoderConfig {
        epsilon: epsilon(config)?,
        types: config.get("type_vocab_size")?.unwrap_or(1),
        spans: vec![Span {
            window: AttentionWindow::ALL,
            rotary: Some(rotary),
        }],
        biases: Biases {
            up: false,
            ..Biases::ALL
        },
        ..EncoderConfig::new(config, config.model_type(), heads, feed_forward)?
    })
}
