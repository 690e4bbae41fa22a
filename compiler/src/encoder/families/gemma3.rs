//! Gemma 3 for texts: EmbeddingGemma.

use std::collections::BTreeMap;

use super::{
    fields, qwen3,
    rope::{Rope, rotary},
};
use crate::{
    config::ConfigFile,
    encoder::config::{Biases, Details, EncoderConfig, FeedForward, Gate, Names, Norms, Span},
    layers::{Activation, AttentionWindow, NormKind},
};
use kivu::error::{Error, Result};

const NAMES: Names = Names {
    norms: Norms::Before {
        attention: "input_layernorm",
        feed_forward: "pre_feedforward_layernorm",
        after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
        last: "norm",
        is_first_normal: true,
    },
    ..qwen3::NAMES
};

/// Key heads and head width if the files do not name them.
const KEY_HEADS: usize = 4;
const HEAD_WIDTH: usize = 256;

pub(super) fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    if let Some(found) = config.get::<f64>("attn_logit_softcapping")? {
        return Err(Error::model(format!("expected no `attn_logit_softcapping`, but found {found}")));
    }
    let heads = qwen3::heads(config, KEY_HEADS, HEAD_WIDTH)?;
    let is_decoder = !config.is_set("use_bidirectional_attention")?;
    let bias = config.is_set("attention_bias")?;
    let scalar: f32 = config.get("query_pre_attn_scalar")?.unwrap_or(256.0);
    if !(scalar > 0.0 && scalar.is_finite()) {
        return Err(Error::model(format!("expected `query_pre_attn_scalar` above 0, but found {scalar}")));
    }
    let kind = config.get::<String>("hidden_activation")?;
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: Activation::named(kind.as_deref().unwrap_or("gelu_pytorch_tanh"))?,
        gate: Gate::First,
    };
    let shared = EncoderConfig::new(config, &NAMES, heads, feed_forward)?;
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: true },
        epsilon: config.get("rms_norm_eps")?.unwrap_or(1e-6),
        spans: spans(config, heads.width, is_decoder)?,
        biases: Biases { projections: bias, attention_output: bias, up: false, down: false },
        details: Details {
            norms_each_head: true,
            word_scale: Some((shared.facts.hidden as f32).sqrt()),
            attention_scale: Some(1.0 / scalar.sqrt()),
            ..shared.details
        },
        ..shared
    })
}

/// Full attention in some layers, and a window with another rotary base in the others.
fn spans(config: &ConfigFile, width: usize, is_decoder: bool) -> Result<Vec<Span>> {
    let window = fields::window(config, "sliding_window", 4096)?;
    let mut parameters: BTreeMap<String, Rope> = config.get("rope_parameters")?.unwrap_or_default();
    let scaling = Rope::without_theta(config)?;
    let mut span = |kind: &str, field: &str, default, window, scaling: Rope| {
        let rope = parameters.remove(kind).unwrap_or(scaling);
        let base = rope.rope_theta.or(config.get(field)?).unwrap_or(default);
        let rotary = rotary(width, 1.0, base, rope.scaling(&[], 0)?)?;
        Ok::<_, Error>(Span { window, rotary: Some(rotary) })
    };
    let [all, near] = match is_decoder {
        true => [AttentionWindow::BEFORE, AttentionWindow { before: Some(window - 1), after: Some(0) }],
        // Half the window on each side.
        false => [AttentionWindow::ALL, AttentionWindow::within(window / 2)],
    };
    let full = span("full_attention", "rope_theta", 1_000_000.0, all, scaling)?;
    let local = span("sliding_attention", "rope_local_base_freq", 10_000.0, near, Rope::default())?;
    if let Some(spans) = fields::spans_by_type(config, [full, local])? {
        return Ok(spans);
    }
    let every = fields::period(config, &["sliding_window_pattern"], 6)?;
    let mut spans = vec![local; every];
    spans[every - 1] = full;
    Ok(spans)
}
