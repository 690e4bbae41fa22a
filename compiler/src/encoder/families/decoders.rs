//! Decoders used as encoders: layers that Llama and its successors share.

use super::rope;
use crate::{
    encoder::config::{Biases, Details, EncoderConfig, FeedForward, Gate, Heads, Span},
    files::config::{ConfigFile, head_width},
    onnx::layers::{Activation, AttentionWindow, NormKind, Rotary, Scaling},
};
use kivu::{Error, Result};

/// Maximum number of tokens for dynamic scaling, far above published models'.
const MAX_LENGTH: usize = 1 << 21;

/// Values in a config class for keys that a file leaves out.
pub struct Defaults {
    /// Key heads; `None` for as many as query heads.
    pub key_heads: Option<usize>,
    /// Head width; `None` for the hidden size divided by the number of heads.
    pub head_width: Option<usize>,
    pub epsilon: f32,
    /// The activation's key, and its value.
    pub activation: [&'static str; 2],
    /// Whether the output matrix is the word embedding table.
    pub ties_words: bool,
}

impl Defaults {
    /// Llama's.
    pub const LLAMA: Self = Self {
        key_heads: None,
        head_width: None,
        epsilon: 1e-6,
        activation: ["hidden_act", "silu"],
        ties_words: false,
    };
}

/// A decoder with gated feed-forward parts, root mean square norms and no biases. Layers cycle through `spans`.
pub fn read(
    config: &ConfigFile,
    names: &str,
    defaults: &Defaults,
    spans: Vec<Span>,
) -> Result<EncoderConfig> {
    let [key, default] = defaults.activation;
    let kind = config.get::<String>(key)?;
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: Activation::named(kind.as_deref().unwrap_or(default))?,
        gate: Gate::First,
    };
    let shared = layers(config, names, heads(config, defaults)?, feed_forward, spans)?;
    Ok(EncoderConfig {
        epsilon: config.epsilon(&["rms_norm_eps"], defaults.epsilon)?,
        details: Details {
            ties_words: config.is_set_or("tie_word_embeddings", defaults.ties_words)?,
            ..shared.details
        },
        ..shared
    })
}

/// The layers of [`read`], without the keys that some decoders name differently.
pub fn layers(
    config: &ConfigFile,
    names: &str,
    heads: Heads,
    feed_forward: FeedForward,
    spans: Vec<Span>,
) -> Result<EncoderConfig> {
    let mut shared = EncoderConfig::new(config, names, heads, feed_forward)?;
    let limits = spans
        .iter()
        .filter_map(|span| match span.rotary.as_ref()?.scaling {
            Scaling::DynamicNtk { factor, positions } => Some((positions as f64 * factor) as usize),
            _ => None,
        });
    if let Some(longest) = limits.min() {
        shared.encoder_limits.longest = longest.min(MAX_LENGTH);
    }
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: false },
        spans,
        biases: Biases::NONE,
        ..shared
    })
}

/// Layers with full attention, and layers whose attention reaches `window` tokens, the own one included, or all. Both
/// have the same rotary positions.
pub fn spans(config: &ConfigFile, defaults: &Defaults, window: Option<usize>) -> Result<[Span; 2]> {
    let rotary = rope::of_decoder(config, heads(config, defaults)?.width)?;
    spans_of(config, &rotary, window)
}

/// The same with these rotary positions.
pub fn spans_of(config: &ConfigFile, rotary: &Rotary, window: Option<usize>) -> Result<[Span; 2]> {
    // As in `transformers` 5; earlier versions ignore the key.
    let windows = match config.get("is_causal")?.unwrap_or(true) {
        true => [
            AttentionWindow::BEFORE,
            window.map_or(AttentionWindow::BEFORE, AttentionWindow::last),
        ],
        false => [
            AttentionWindow::ALL,
            window.map_or(AttentionWindow::ALL, AttentionWindow::within),
        ],
    };
    Ok(windows.map(|window| Span {
        window,
        rotary: Some(rotary.clone()),
    }))
}

/// Biases in all attention layers, or in none.
pub fn attention_biases(config: &ConfigFile) -> Result<Biases> {
    let bias = config.is_set("attention_bias")?;
    Ok(Biases {
        projections: bias,
        attention_output: bias,
        ..Biases::NONE
    })
}

/// Attention heads: any width, with grouped keys and values. Without a number of key heads (`null`), each query head
/// has its own.
pub fn heads(config: &ConfigFile, defaults: &Defaults) -> Result<Heads> {
    let queries = config.require_size("num_attention_heads")?;
    let is_null = config.value("num_key_value_heads").is_some();
    let default = defaults.key_heads.filter(|_| !is_null).unwrap_or(queries);
    let keys = config.get_size("num_key_value_heads")?.unwrap_or(default);
    let width = match config.get_size("head_dim")?.or(defaults.head_width) {
        Some(width) => width,
        None => head_width(config.require_size("hidden_size")?, queries)?,
    };
    if width == 0 || !queries.is_multiple_of(keys) {
        return Err(Error::model(format!(
            "expected `num_attention_heads` to be a multiple of `num_key_value_heads`, but found {queries} and {keys}, of \
             {width} values"
        )));
    }
    Ok(Heads {
        queries,
        keys,
        width,
    })
}
