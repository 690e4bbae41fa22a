//! Qwen2 and Qwen3: gte-Qwen2, mxbai-rerank-v2, Qwen3-Embedding, Qwen3-Reranker.

use super::{
    decoders::{self, Defaults},
    fields,
};
use crate::{
    encoder::config::{Biases, Details, EncoderConfig, Names, Span},
    files::config::ConfigFile,
};
use kivu::error::{Error, Result};

/// Qwen3's weight names.
const QWEN3: Names = Names {
    query_key_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]),
    ..decoders::NAMES
};

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(32),
    ..Defaults::LLAMA
};

/// Layers before the first one with a window, if the files do not name the number.
const MAX_WINDOW_LAYERS: usize = 28;

pub fn read_qwen2(config: &ConfigFile) -> Result<EncoderConfig> {
    let shared = decoders::read(
        config,
        &decoders::NAMES,
        &DEFAULTS,
        spans(config, &DEFAULTS)?,
    )?;
    Ok(EncoderConfig {
        biases: Biases {
            projections: true,
            ..shared.biases
        },
        ..shared
    })
}

pub fn read_qwen3(config: &ConfigFile) -> Result<EncoderConfig> {
    let defaults = Defaults {
        head_width: Some(128),
        ..DEFAULTS
    };
    let shared = decoders::read(config, &QWEN3, &defaults, spans(config, &defaults)?)?;
    Ok(EncoderConfig {
        biases: decoders::attention_biases(config)?,
        details: Details {
            norms_each_head: true,
            ..shared.details
        },
        ..shared
    })
}

/// Full attention in all layers, or a window in the listed layers, or from a layer on.
fn spans(config: &ConfigFile, defaults: &Defaults) -> Result<Vec<Span>> {
    let is_used = config.is_set("use_sliding_window")?;
    let window = fields::optional_window(config, "sliding_window", 4096)?.filter(|_| is_used);
    let first = config
        .get::<usize>("max_window_layers")?
        .unwrap_or(MAX_WINDOW_LAYERS);
    let [full, sliding] = decoders::spans(config, defaults, window)?;
    let listed = fields::spans_by_type(config, [full.clone(), sliding.clone()])?;
    if window.is_some() {
        let span = |layer| {
            if layer < first {
                full.clone()
            } else {
                sliding.clone()
            }
        };
        let layers = 0..config.require_size("num_hidden_layers")?;
        return Ok(listed.unwrap_or_else(|| layers.map(span).collect()));
    }
    let types: Vec<String> = config.get("layer_types")?.unwrap_or_default();
    match types.iter().find(|kind| *kind != "full_attention") {
        None => Ok(vec![full]),
        Some(kind) => Err(Error::model(format!(
            "expected `use_sliding_window` true and a `sliding_window` for the `layer_types` `{kind}`, but found no window"
        ))),
    }
}
