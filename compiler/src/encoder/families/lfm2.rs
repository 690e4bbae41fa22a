//! LFM2: a decoder with gated short convolutions in most layers; also with code of its own that attends to all tokens.

use std::collections::BTreeSet;

use super::{
    decoders::{self, Defaults},
    fields, rope,
};
use crate::{
    encoder::config::{Convolutions, Details, EncoderConfig, FeedForward, Gate, Head},
    files::config::ConfigFile,
    onnx::{
        functions::ConvolutionForm,
        layers::{Activation, AttentionWindow},
    },
};
use kivu::{Error, Result};

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(8),
    ..Defaults::LLAMA
};

/// How classes in code of its own begin, whose convolutions read as many rows after a token's own as before it.
const BIDIRECTIONAL: &str = "Lfm2Bidirectional";

/// Maximum number of rows that a convolution reads for a token, far above published models'.
const MAX_ROWS: usize = 63;
/// Maximum number of values in a feed-forward part.
const MAX_WIDTH: usize = 1 << 21;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    if Head::kind(config).is_some() {
        return Err(Error::model(format!(
            "`{}` is not a class of `transformers`: `lfm2` has no label head",
            config.architecture()
        )));
    }
    let heads = decoders::heads(config, &DEFAULTS)?;
    let rotary = rope::of_lfm2(config, heads.width)?;
    let [mut span, _] = decoders::spans_of(config, &rotary, None)?;
    let is_bidirectional = fields::has_code(config, BIDIRECTIONAL);
    if is_bidirectional {
        span.window = AttentionWindow::ALL;
    }
    let shared = decoders::layers(config, "lfm2", heads, feed_forward(config)?, vec![span])?;
    let count = config.get_size("conv_L_cache")?.unwrap_or(3);
    if count > MAX_ROWS {
        return Err(Error::model(format!(
            "expected `conv_L_cache` from 1 to {MAX_ROWS}, but found {count}"
        )));
    }
    Ok(EncoderConfig {
        epsilon: config.epsilon(&["norm_eps"], 1e-5)?,
        convolutions: Some(Convolutions {
            layers: layers_with_convolution(config, shared.layers)?,
            form: ConvolutionForm {
                count,
                before: if is_bidirectional {
                    count / 2
                } else {
                    count - 1
                },
                has_bias: config.is_set("conv_bias")?,
            },
        }),
        details: Details {
            norms_each_head: true,
            ties_words: config.is_set_or("tie_embedding", shared.details.ties_words)?,
            ..shared.details
        },
        ..shared
    })
}

/// Feed-forward parts whose width is two thirds of the size in the file, times a factor and rounded up, unless it is final.
fn feed_forward(config: &ConfigFile) -> Result<FeedForward> {
    let size = config.require_any_size(&["block_ff_dim", "intermediate_size"])?;
    let factor = config.get("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = config.get_size("block_multiple_of")?.unwrap_or(256);
    let width = match config.is_set_or("block_auto_adjust_ff_dim", true)? {
        true => ((factor * (2 * size / 3) as f64) as usize).div_ceil(multiple) * multiple,
        false => size,
    };
    if !(1..=MAX_WIDTH).contains(&width) {
        return Err(Error::model(format!(
            "expected feed-forward parts with 1 to {MAX_WIDTH} values, but found {width}, from {size} with \
             `block_ffn_dim_multiplier` {factor} and `block_multiple_of` {multiple}"
        )));
    }
    Ok(FeedForward {
        width,
        activation: Activation::Swish,
        gate: Gate::First,
    })
}

/// The layers that `layer_types`, or else `full_attn_idxs`, does not list with attention; none without both lists.
fn layers_with_convolution(config: &ConfigFile, layers: usize) -> Result<BTreeSet<usize>> {
    let attending: Option<Vec<usize>> = config.get("full_attn_idxs")?;
    let Some(types) = config.get::<Vec<String>>("layer_types")? else {
        let attends = |layer: &usize| attending.as_ref().is_none_or(|it| it.contains(layer));
        return Ok((0..layers).filter(|layer| !attends(layer)).collect());
    };
    let is_known = |kind: &String| ["conv", "full_attention"].contains(&kind.as_str());
    if types.len() != layers || !types.iter().all(is_known) {
        return Err(Error::model(format!(
            "expected `layer_types` with `conv` or `full_attention` for each of {layers} layers, but found {types:?}"
        )));
    }
    Ok((0..layers)
        .filter(|layer| types[*layer] == "conv")
        .collect())
}
