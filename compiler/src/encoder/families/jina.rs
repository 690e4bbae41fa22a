//! JinaBERT v2: jina-embeddings-v2-base-en and its series, including the code model, which has different layers.

use super::fields::{activation, epsilon, expect};
use crate::{
    encoder::config::{Bias, Biases, EncoderConfig, FeedForward, Gate, Heads, Names},
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::Activation,
};
use kivu::{Error, Result};

/// Whether a config with type `bert` belongs to this family.
pub fn is_described_by(config: &ConfigFile) -> Result<bool> {
    Ok(config.get::<String>("position_embedding_type")?.as_deref() == Some("alibi"))
}

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "is_decoder", &false)?;
    let gelu = activation(config, &["hidden_act"])?;
    let activation = match config.get::<String>("feed_forward_type")?.as_deref() {
        Some("geglu") => gelu,
        Some("reglu") => Activation::Relu,
        other => {
            return Err(Error::model(format!(
                "expected `feed_forward_type` `geglu` or `reglu`, but found `{}`",
                other.unwrap_or("none")
            )));
        }
    };
    let width = config.require_size("intermediate_size")?;
    let feed_forward = FeedForward {
        width,
        activation,
        gate: Gate::First,
    };
    Ok(EncoderConfig {
        epsilon: epsilon(config)?,
        types: config.get_size("type_vocab_size")?.unwrap_or(2),
        bias: Bias::Alibi,
        biases: Biases {
            up: false,
            ..Biases::ALL
        },
        ..EncoderConfig::new(config, "jina", Heads::read(config)?, feed_forward)?
    })
}

/// Switches to the code model's layout if the weights have it; the config does not state it.
pub fn adapt(config: &mut EncoderConfig, weights: &Weights) -> Result<()> {
    let code = Names::of("jina-code")?;
    let name = config.in_layer(0, code.up[0], 0, false).name;
    if config.names.is("jina") && weights.has(&format!("{}{name}.weight", weights.prefix)) {
        config.names = code;
        config.feed_forward.gate = Gate::Second;
    }
    Ok(())
}
