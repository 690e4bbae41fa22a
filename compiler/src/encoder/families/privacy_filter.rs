//! OpenAI's privacy filter: gpt-oss as an encoder, whose tokens attend to a window on both sides.

use serde_json::Value;

use super::{
    decoders::{self, Defaults},
    rope,
};
use crate::{
    encoder::config::{
        Biases, Details, EncoderConfig, ExpertLayers, FeedForward, Gate, Heads, Span,
    },
    files::{config::ConfigFile, weights::Weights},
    onnx::{
        functions::LimitedGate,
        layers::{Activation, AttentionWindow, ExpertKind, NormKind},
    },
};
use kivu::error::{Error, Result};

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(2),
    head_width: Some(64),
    epsilon: 1e-5,
    ..Defaults::LLAMA
};

/// Far above published models'.
const MAX_EXPERTS: usize = 1024;

/// The labels if the file has none: each with `B-`, `I-`, `E-` and `S-`, after `O`.
const CATEGORIES: [&str; 8] = [
    "account_number",
    "private_address",
    "private_date",
    "private_email",
    "private_person",
    "private_phone",
    "private_url",
    "secret",
];

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    // The class refuses `null`, in place of which other families have a default.
    for field in [
        "head_dim",
        "num_experts",
        "num_experts_per_tok",
        "num_key_value_heads",
        "num_local_experts",
        "rms_norm_eps",
        "sliding_window",
        "swiglu_alpha",
        "swiglu_limit",
    ] {
        if config.is_null(field) {
            return Err(Error::model(format!(
                "expected a number as `{field}`, but found null"
            )));
        }
    }
    let heads = decoders::heads(config, &DEFAULTS)?;
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: Activation::Swish,
        gate: Gate::First,
    };
    let mut shared = EncoderConfig::new(config, &decoders::NAMES, heads, feed_forward)?;
    if let Some(head) = &mut shared.head
        && ["id2label", "num_labels"]
            .iter()
            .all(|field| config.value(field).is_none_or(Value::is_null))
    {
        let tagged = |category| ["B", "I", "E", "S"].map(|tag| format!("{tag}-{category}"));
        let labels = CATEGORIES.into_iter().flat_map(tagged);
        head.labels = std::iter::once("O".to_owned()).chain(labels).collect();
    }
    let bias = config.is_set_or("attention_bias", true)?;
    let window = config.get_size("sliding_window")?.unwrap_or(128);
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.get("rms_norm_eps")?.unwrap_or(DEFAULTS.epsilon),
        spans: vec![Span {
            window: AttentionWindow::within(window),
            rotary: Some(rope::of_gpt_oss(config, heads.width)?),
        }],
        biases: Biases {
            projections: bias,
            attention_output: bias,
            up: true,
            down: true,
        },
        details: Details {
            sinks: Some("self_attn.sinks"),
            pairs_neighbours: true,
            experts: Some(experts(config)?),
            ..shared.details
        },
        ..shared
    })
}

fn experts(config: &ConfigFile) -> Result<ExpertLayers> {
    // The second name takes precedence.
    let count = config.get_size("num_local_experts")?;
    let count = config.get_size("num_experts")?.or(count).unwrap_or(128);
    let top = config.get_size("num_experts_per_tok")?.unwrap_or(4);
    let alpha: f32 = config.get("swiglu_alpha")?.unwrap_or(1.702);
    let limit: f32 = config.get("swiglu_limit")?.unwrap_or(7.0);
    if count > MAX_EXPERTS || !(1..=count).contains(&top) {
        return Err(Error::model(format!(
            "expected `num_local_experts` up to {MAX_EXPERTS} and `num_experts_per_tok` from 1 up to their number, but found \
             {count} and {top}"
        )));
    }
    if !(alpha.is_finite() && limit >= 0.0 && limit.is_finite()) {
        return Err(Error::model(format!(
            "expected a finite `swiglu_alpha`, and a `swiglu_limit` of at least 0, but found {alpha} and {limit}"
        )));
    }
    Ok(ExpertLayers {
        every: 1,
        count,
        top,
        name: "mlp",
        kind: ExpertKind::Gated(LimitedGate { alpha, limit }),
    })
}

/// Reorders the rows of queries and keys where rotations pair neighbouring values of a head: all first values, and then all
/// second ones, as rotations pair them in other families. Their products stay the same.
pub fn arrange(config: &mut EncoderConfig, weights: &mut Weights) {
    if !std::mem::take(&mut config.details.pairs_neighbours) {
        return;
    }
    let (names, Heads { width, .. }) = (config.names, config.heads);
    for layer in 0..config.layers {
        for name in &names.projections[..2] {
            let name = config.name_in_layer(layer, name);
            for part in ["weight", "bias"] {
                let Some(found) = weights.find_mut(&format!("{name}.{part}"), names.prefix) else {
                    continue;
                };
                let columns = found.shape.get(1).copied().unwrap_or(1).max(1);
                let halves = |head: &[f32]| -> Vec<f32> {
                    let rows = head.chunks(columns);
                    let seconds = rows.clone().skip(1).step_by(2);
                    rows.step_by(2).chain(seconds).flatten().copied().collect()
                };
                found.values = found
                    .values
                    .chunks(width * columns)
                    .flat_map(halves)
                    .collect();
            }
        }
    }
}
