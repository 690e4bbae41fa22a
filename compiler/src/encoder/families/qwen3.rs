//! Qwen3: Qwen3-Embedding and Qwen3-Reranker.

use super::{fields::expect, rope};
use crate::{
    config::ConfigFile,
    encoder::config::{Biases, Details, EncoderConfig, FeedForward, Gate, Heads, Names, Norms, Span},
    layers::{Activation, AttentionWindow, NormKind},
};
use kivu::error::{Error, Result};

/// Weight names for Qwen3, and Gemma 3 except for normalizations.
pub(super) const NAMES: Names = Names {
    prefix: "model.",
    words: "embed_tokens.weight",
    embedding_norm: None,
    layer: "layers.",
    projections: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    query_key_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]),
    attention_output: "self_attn.o_proj",
    norms: Norms::Before {
        attention: "input_layernorm",
        feed_forward: "post_attention_layernorm",
        after: None,
        last: "norm",
        is_first_normal: true,
    },
    up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    dense: ("", false),
    dense_norm: None,
    labels: "",
};

/// Key heads and head width if the files do not name them.
const KEY_HEADS: usize = 32;
const HEAD_WIDTH: usize = 128;

pub(super) fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "use_sliding_window", &false)?;
    let heads = heads(config, KEY_HEADS, HEAD_WIDTH)?;
    let rope = rope::Rope::read(config)?;
    let base = rope.rope_theta.unwrap_or(10_000.0);
    let rotary = rope::rotary(heads.width, 1.0, base, rope.scaling(&[], 0)?)?;
    // As in `transformers` 5; earlier versions ignore the field.
    let is_causal = config.get("is_causal")?.unwrap_or(true);
    let window = if is_causal { AttentionWindow::BEFORE } else { AttentionWindow::ALL };
    let bias = config.is_set("attention_bias")?;
    let kind = config.get::<String>("hidden_act")?;
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: Activation::named(kind.as_deref().unwrap_or("silu"))?,
        gate: Gate::First,
    };
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.get("rms_norm_eps")?.unwrap_or(1e-6),
        spans: vec![Span { window, rotary: Some(rotary) }],
        biases: Biases { projections: bias, attention_output: bias, up: false, down: false },
        details: Details {
            norms_each_head: true,
            ties_words: config.is_set("tie_word_embeddings")?,
            ..Details::default()
        },
        ..EncoderConfig::new(config, &NAMES, heads, feed_forward)?
    })
}

/// Heads with any width, several of which may share keys and values: `keys` heads with `width` values by default. If
/// the number is `null`, each query head has its own key head.
pub(super) fn heads(config: &ConfigFile, keys: usize, width: usize) -> Result<Heads> {
    let queries = config.require_size("num_attention_heads")?;
    let is_null = config.fields().contains_key("num_key_value_heads");
    let keys = config.get_size("num_key_value_heads")?.unwrap_or(if is_null { queries } else { keys });
    let heads = Heads { queries, keys, width: config.get_size("head_dim")?.unwrap_or(width) };
    if heads.width == 0 || !queries.is_multiple_of(heads.keys) {
        return Err(Error::model(format!(
            "expected `num_attention_heads` to be a multiple of `num_key_value_heads`, but found {queries} and {}, of \
             {} values",
            heads.keys, heads.width
        )));
    }
    Ok(heads)
}
