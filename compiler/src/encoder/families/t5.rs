//! T5 and mT5 encoders, v1.0 and v1.1: sentence-t5, GTR.

pub use crate::seq2seq::t5::{MT5, T5};
use crate::{
    encoder::config::{
        Bias, Biases, Details, EncoderConfig, EncoderLimits, FeedForward, Gate, HeadInput, Heads,
        Names, Norms, Positions, Span,
    },
    files::config::ConfigFile,
    onnx::layers::{Activation, NormKind},
    seq2seq::t5::{self, EPSILON, buckets, feed_forward, heads, lengths},
};
use kivu::error::Result;

pub const PLAIN: Names = Names {
    prefix: "",
    words: "shared.weight",
    words_aliases: &["encoder.embed_tokens.weight"],
    embedding_norm: None,
    layer: "encoder.block.",
    projections: &[
        "layer.0.SelfAttention.q",
        "layer.0.SelfAttention.k",
        "layer.0.SelfAttention.v",
    ],
    query_key_norms: None,
    attention_output: "layer.0.SelfAttention.o",
    norms: Norms::Before {
        attention: "layer.0.layer_norm",
        feed_forward: "layer.1.layer_norm",
        after: None,
        last: "encoder.final_layer_norm",
        is_first_normal: true,
    },
    up: &["layer.1.DenseReluDense.wi"],
    down: "layer.1.DenseReluDense.wo",
    dense: ("", false),
    dense_norm: None,
    labels: "",
};
const GATED: Names = Names {
    up: &["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"],
    ..PLAIN
};

/// Reads a `config.json`; a decoder, if the files have one, is not used.
pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let t5::FeedForward {
        width: inner,
        is_gated,
        activation,
    } = feed_forward(config)?;
    let [heads, width] = heads(config)?;
    let [max_positions, _] = lengths(config, None)?;
    Ok(EncoderConfig {
        encoder_limits: EncoderLimits {
            architecture: config.architecture().to_owned(),
            hidden: config.require_size("d_model")?,
            max_positions,
            longest: max_positions,
        },
        vocabulary: config.require_size("vocab_size")?,
        layers: config.require_size("num_layers")?,
        heads: Heads {
            queries: heads,
            keys: heads,
            width,
        },
        feed_forward: FeedForward {
            width: inner,
            activation,
            gate: if is_gated { Gate::First } else { Gate::None },
        },
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.epsilon(&["layer_norm_epsilon"], EPSILON)?,
        positions: Positions::None,
        types: 0,
        spans: vec![Span::ALL],
        bias: Bias::Relative {
            table: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            buckets: buckets(config)?,
        },
        biases: Biases::NONE,
        names: if is_gated { &GATED } else { &PLAIN },
        head: None,
        head_input: HeadInput::first(Activation::Tanh),
        decoder: None,
        convolutions: None,
        tasks: None,
        details: Details {
            attention_scale: Some(1.0),
            ..Details::default()
        },
    })
}
