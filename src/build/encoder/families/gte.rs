//! GTE v1.5 (`new`): gte-base-en-v1.5, gte-multilingual-base, snowflake-arctic-embed-m-v2.0.

use super::{
    fields::{activation, expect},
    rope,
};
use crate::{
    build::{
        config::ConfigFile,
        encoder::config::{
            Bias, Biases, Details, EncoderConfig, Facts, FeedForward, Gate, Head, HeadInput, Heads, Names,
            Norms, Positions, Span, WORDS,
        },
        layers::{Activation, NormKind, Reach},
    },
    error::Result,
};

const NAMES: Names = Names {
    prefix: "new.",
    words: WORDS,
    embedding_norm: Some("embeddings.LayerNorm"),
    layer: "encoder.layer.",
    projections: &["attention.qkv_proj"],
    query_key_norms: None,
    attention_output: "attention.o_proj",
    norms: Norms::After { attention: &["attn_ln"], output: "mlp_ln" },
    up: &["mlp.up_gate_proj"],
    down: "mlp.down_proj",
    dense: ("pooler.dense", true),
    dense_norm: None,
    labels: "classifier",
};

pub(super) fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "position_embedding_type", &"rope".to_owned())?;
    expect(config, "layer_norm_type", &"layer_norm".to_owned())?;
    expect(config, "pack_qkv", &true)?;
    expect(config, "logn_attention_scale", &false)?;
    let facts = Facts::read(config)?;
    let heads = Heads::read(config, &facts)?;
    expect(config, "head_dim", &heads.width)?;
    let rope = rope::Rope::read(config)?;
    let default_base = if config.model_type() == "gte" { 160_000.0 } else { 10_000.0 };
    let base = rope.rope_theta.unwrap_or(default_base);
    let rotary = rope::rotary(heads.width, 1.0, base, rope.scaling(&["ntk"], facts.max_positions)?)?;
    Ok(EncoderConfig {
        vocabulary: config.require_size("vocab_size")?,
        layers: config.require_size("num_hidden_layers")?,
        heads,
        feed_forward: FeedForward {
            width: config.require_size("intermediate_size")?,
            activation: activation(config, &["hidden_act"])?,
            gate: Gate::Second,
        },
        norm: NormKind::Layer { has_bias: true },
        epsilon: config.get("layer_norm_eps")?.unwrap_or(1e-12),
        positions: Positions::None,
        types: config.get("type_vocab_size")?.unwrap_or(1),
        spans: vec![Span { reach: Reach::ALL, rotary: Some(rotary) }],
        bias: Bias::None,
        biases: Biases { up: false, ..Biases::ALL },
        names: &NAMES,
        head: Head::read(config)?,
        head_input: HeadInput::first(Activation::Tanh),
        details: Details::default(),
        facts,
    })
}
