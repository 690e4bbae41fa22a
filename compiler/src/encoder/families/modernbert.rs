//! ModernBERT: gte-modernbert, granite-embedding r2, mmBERT.

use super::{fields, rope};
use crate::{
    encoder::config::{Biases, Details, EncoderConfig, FeedForward, Gate, HeadInput, Heads, Span},
    files::config::ConfigFile,
    onnx::layers::{Activation, AttentionWindow, NormKind, Scaling},
};
use kivu::{Error, Result};

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let heads = Heads::read(config)?;
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: activation(config, "hidden_activation")?,
        gate: Gate::First,
    };
    let attention_bias = config.is_set("attention_bias")?;
    let mlp_bias = config.is_set("mlp_bias")?;
    let shared = EncoderConfig::new(config, "modernbert", heads, feed_forward)?;
    Ok(EncoderConfig {
        norm: NormKind::Layer {
            has_bias: config.is_set("norm_bias")?,
        },
        epsilon: config.epsilon(&["norm_eps"], 1e-5)?,
        spans: spans(config, heads.width)?,
        biases: Biases {
            projections: attention_bias,
            attention_output: attention_bias,
            up: mlp_bias,
            down: mlp_bias,
        },
        head_input: HeadInput {
            activation: activation(config, "classifier_activation")?,
            has_bias: config.is_set("classifier_bias")?,
            read: fields::head_read(config)?,
        },
        details: Details {
            predicts_without_bias: !config.is_set_or("decoder_bias", true)?,
            ..shared.details
        },
        ..shared
    })
}

fn activation(config: &ConfigFile, field: &str) -> Result<Activation> {
    fields::activation(config, &[field])
}

/// Full attention in every n-th layer, with a separate base, and a window in the others. `transformers` 5 files list
/// the layers instead, and name the bases differently.
fn spans(config: &ConfigFile, width: usize) -> Result<Vec<Span>> {
    rope::Rope::without_theta(config)?.scaling(&[], 0)?;
    let window = fields::window(config, "local_attention", 128)?;
    let mut parameters: std::collections::BTreeMap<String, rope::Rope> =
        config.get("rope_parameters")?.unwrap_or_default();
    let mut base = |name: &str, field: &str| {
        let rope = parameters.remove(name).unwrap_or_default();
        rope.scaling(&[], 0)?;
        Ok::<Option<f64>, Error>(rope.rope_theta.or(config.get(field)?))
    };
    let global_base = base("full_attention", "global_rope_theta")?.unwrap_or(160_000.0);
    let is_null = config.is_null("local_rope_theta");
    let local_base = base("sliding_attention", "local_rope_theta")?;
    let local_base = local_base.unwrap_or(if is_null { global_base } else { 10_000.0 });
    let span = |window, base| {
        Ok::<_, Error>(Span {
            window,
            rotary: Some(rope::rotary(width, 1.0, base, Scaling::None)?),
        })
    };
    let global = span(AttentionWindow::ALL, global_base)?;
    let local = span(AttentionWindow::within(window / 2), local_base)?;
    if let Some(spans) = fields::spans_by_type(config, [global.clone(), local.clone()])? {
        return Ok(spans);
    }
    let every = fields::period(config, &["global_attn_every_n_layers"], 3)?;
    let mut spans = vec![global];
    spans.resize(every, local);
    Ok(spans)
}
