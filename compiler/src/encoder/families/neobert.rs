//! NeoBERT, whose class is code in its repository.

use super::{fields, rope};
use crate::{
    encoder::config::{Biases, EncoderConfig, FeedForward, Gate, Heads, Span},
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::{Activation, AttentionWindow, NormKind, Scaling},
};
use kivu::Result;

/// The rotations' base, which the code does not let files choose.
const BASE: f64 = 10_000.0;
/// Feed-forward parts have a multiple of this width.
const MULTIPLE: usize = 8;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let heads = Heads::read(config)?;
    let feed_forward = FeedForward {
        width: (2 * config.require_size("intermediate_size")? / 3).next_multiple_of(MULTIPLE),
        activation: Activation::Swish,
        gate: Gate::First,
    };
    fields::expect(config, "dim_head", &heads.width)?;
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.epsilon(&["norm_eps"], 1e-6)?,
        spans: vec![Span {
            window: AttentionWindow::ALL,
            rotary: Some(rope::rotary(heads.width, 1.0, BASE, Scaling::None)?),
        }],
        biases: Biases::NONE,
        ..EncoderConfig::new(config, "neobert", heads, feed_forward)?
    })
}

/// Reorders the rows of queries, keys and values: files interleave them by head, and rotate neighbouring values.
pub fn arrange(config: &EncoderConfig, weights: &mut Weights) {
    if !config.names.is("neobert") {
        return;
    }
    let Heads { queries, width, .. } = config.heads;
    let halves = (0..width).step_by(2).chain((1..width).step_by(2));
    let in_order = 0..width;
    for layer in 0..config.layers {
        let name = format!(
            "{}.weight",
            config.name_in_layer(layer, config.names.projections[0])
        );
        let Some(found) = weights.find_mut(&name, config.names.prefix) else {
            continue;
        };
        let columns = found.shape.get(1).copied().unwrap_or(1).max(1);
        if found.values.len() != 3 * queries * width * columns {
            continue; // refused by its shape
        }
        let mut sorted = Vec::with_capacity(found.values.len());
        for part in 0..3 {
            let order: Vec<usize> = match part {
                2 => in_order.clone().collect(),
                _ => halves.clone().collect(),
            };
            for head in 0..queries {
                for row in &order {
                    let start = ((head * 3 + part) * width + row) * columns;
                    sorted.extend_from_slice(&found.values[start..start + columns]);
                }
            }
        }
        found.values = sorted;
    }
}
