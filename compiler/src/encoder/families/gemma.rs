//! Gemma, Gemma 2 and Gemma 3 for texts: bge-reranker-v2-gemma, bge-multilingual-gemma2, EmbeddingGemma.

use std::collections::BTreeMap;

use super::{
    decoders::{self, Defaults},
    fields,
    rope::{DEFAULT, Rope, rotary},
};
use crate::{
    encoder::config::{Details, EncoderConfig, Span},
    files::config::ConfigFile,
    onnx::layers::{Activation, AttentionWindow, NormKind},
};
use kivu::{Error, Result};

/// The limit for attention scores.
const CAP: &str = "attn_logit_softcapping";

/// Gemma 2's and 3's.
pub const DEFAULTS: Defaults = Defaults {
    key_heads: Some(4),
    head_width: Some(256),
    epsilon: 1e-6,
    activation: ["hidden_activation", "gelu_pytorch_tanh"],
    ties_words: true,
};

pub fn read_gemma(config: &ConfigFile) -> Result<EncoderConfig> {
    let activation = ["hidden_act", "gelu_pytorch_tanh"];
    let defaults = Defaults {
        key_heads: Some(16),
        activation,
        ..DEFAULTS
    };
    let [span, _] = decoders::spans(config, &defaults, None)?;
    let mut shared = read(config, "llama", &defaults, vec![span])?;
    // The first files name it `gelu`; `transformers` 4.57 takes that as the form with `erf`.
    if config.get::<String>("hidden_act")?.as_deref() == Some("gelu") {
        shared.feed_forward.activation = Activation::GeluTanh;
    }
    Ok(shared)
}

pub fn read_gemma2(config: &ConfigFile) -> Result<EncoderConfig> {
    let window = fields::window(config, "sliding_window", 4096)?;
    let spans = decoders::spans(config, &DEFAULTS, Some(window))?;
    let spans = match fields::spans_by_type(config, spans.clone())? {
        Some(spans) => spans,
        None => spans.into_iter().rev().collect(),
    };
    let shared = read(config, "gemma2", &DEFAULTS, spans)?;
    let is_null = config.value(CAP).is_some();
    let cap: Option<f32> = config.get(CAP)?.or((!is_null).then_some(50.0));
    if let Some(found) = cap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
        return Err(Error::model(format!(
            "expected `{CAP}` above 0, but found {found}"
        )));
    }
    let attention_scale = Some(attention_scale(config)?);
    Ok(EncoderConfig {
        details: Details {
            attention_scale,
            attention_cap: cap,
            ..shared.details
        },
        ..shared
    })
}

pub fn read_gemma3(config: &ConfigFile) -> Result<EncoderConfig> {
    if let Some(found) = config.get::<f64>(CAP)? {
        return Err(Error::model(format!(
            "expected no `{CAP}`, but found {found}"
        )));
    }
    let shared = read(config, "gemma3", &DEFAULTS, gemma3_spans(config)?)?;
    let attention_scale = Some(attention_scale(config)?);
    Ok(EncoderConfig {
        details: Details {
            norms_each_head: true,
            attention_scale,
            ..shared.details
        },
        ..shared
    })
}

/// Reads the settings that all versions share.
fn read(
    config: &ConfigFile,
    names: &str,
    defaults: &Defaults,
    spans: Vec<Span>,
) -> Result<EncoderConfig> {
    let shared = decoders::read(config, names, defaults, spans)?;
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: true },
        biases: decoders::attention_biases(config)?,
        details: Details {
            word_scale: Some((shared.encoder_limits.hidden as f32).sqrt()),
            ..shared.details
        },
        ..shared
    })
}

/// Factor for query-key products.
fn attention_scale(config: &ConfigFile) -> Result<f32> {
    let scalar: f32 = config.get("query_pre_attn_scalar")?.unwrap_or(256.0);
    match scalar > 0.0 && scalar.is_finite() {
        true => Ok(1.0 / scalar.sqrt()),
        false => Err(Error::model(format!(
            "expected `query_pre_attn_scalar` above 0, but found {scalar}"
        ))),
    }
}

/// Full attention in some layers, and a window with another rotary base in the others.
fn gemma3_spans(config: &ConfigFile) -> Result<Vec<Span>> {
    let width = decoders::heads(config, &DEFAULTS)?.width;
    let window = fields::window(config, "sliding_window", 4096)?;
    let mut parameters: BTreeMap<String, Rope> = config.get("rope_parameters")?.unwrap_or_default();
    let scaling = Rope::without_theta(config)?;
    if parameters.contains_key("full_attention") && scaling.kind() != DEFAULT {
        return Err(
            Error::model("expected `rope_parameters` or `rope_scaling`, but found both")
                .with_hint("remove one"),
        );
    }
    let mut span = |kind: &str, field: &str, default, window, scaling: Rope| {
        let rope = parameters.remove(kind).unwrap_or(scaling);
        let base = rope.rope_theta.or(config.get(field)?).unwrap_or(default);
        let rotary = rotary(width, 1.0, base, rope.scaling(&["linear"], 0)?)?;
        Ok::<_, Error>(Span {
            window,
            rotary: Some(rotary),
        })
    };
    let [all, near] = match config.is_set("use_bidirectional_attention")? {
        false => [AttentionWindow::BEFORE, AttentionWindow::last(window)],
        // Half the window on each side.
        true => [AttentionWindow::ALL, AttentionWindow::within(window / 2)],
    };
    let full = span("full_attention", "rope_theta", 1_000_000.0, all, scaling)?;
    let local = span(
        "sliding_attention",
        "rope_local_base_freq",
        10_000.0,
        near,
        Rope::default(),
    )?;
    if let Some(spans) = fields::spans_by_type(config, [full.clone(), local.clone()])? {
        return Ok(spans);
    }
    let every = fields::period(config, &["sliding_window_pattern"], 6)?;
    let mut spans = vec![local; every];
    spans[every - 1] = full;
    Ok(spans)
}
