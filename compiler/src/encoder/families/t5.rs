//! T5 and mT5 encoders, v1.0 and v1.1: sentence-t5, GTR.

pub use crate::seq2seq::t5::{MT5, T5};
use crate::{
    encoder::config::{
        Bias, Biases, Details, EncoderConfig, EncoderLimits, FeedForward, Gate, Heads,
    },
    files::config::ConfigFile,
    onnx::layers::NormKind,
    seq2seq::t5::{self, EPSILON, buckets, feed_forward, heads, lengths},
};
use kivu::Result;

/// Reads a `config.json`; a decoder, if the files have one, is not used.
pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let t5::FeedForward {
        width: inner,
        is_gated,
        activation,
    } = feed_forward(config)?;
    let [heads, width] = heads(config)?;
    let [max_positions, _] = lengths(config, None)?;
    let encoder_limits = EncoderLimits {
        architecture: config.architecture().to_owned(),
        hidden: config.require_size("d_model")?,
        max_positions,
        longest: max_positions,
    };
    let heads = Heads {
        queries: heads,
        keys: heads,
        width,
    };
    let feed_forward = FeedForward {
        width: inner,
        activation,
        gate: if is_gated { Gate::First } else { Gate::None },
    };
    let names = if is_gated { "t5-gated" } else { "t5" };
    let layers = config.require_size("num_layers")?;
    let shared =
        EncoderConfig::without_head(config, names, encoder_limits, layers, heads, feed_forward)?;
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.epsilon(&["layer_norm_epsilon"], EPSILON)?,
        bias: Bias::Relative {
            table: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            buckets: buckets(config)?,
        },
        biases: Biases::NONE,
        details: Details {
            attention_scale: Some(1.0),
            ..shared.details
        },
        ..shared
    })
}
