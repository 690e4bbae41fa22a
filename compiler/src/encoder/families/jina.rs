//! JinaBERT v2: jina-embeddings-v2-base-en and its series, including the code model, which has different layers.

use super::{
    bert::BERT,
    fields::{activation, epsilon, expect},
};
use crate::{
    encoder::config::{Bias, Biases, EncoderConfig, FeedForward, Gate, Heads, Names, Norms},
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::Activation,
};
use kivu::error::{Error, Result};

const NAMES: Names = Names {
    norms: Norms::After {
        attention: &["attention.output.LayerNorm"],
        output: "mlp.layernorm",
    },
    up: &["mlp.gated_layers"],
    down: "mlp.wo",
    ..BERT
};
const CODE: Names = Names {
    query_key_norms: Some(["attention.self.layer_norm_q", "attention.self.layer_norm_k"]),
    norms: Norms::After {
        attention: &["attention.output.LayerNorm", "layer_norm_1"],
        output: "layer_norm_2",
    },
    up: &["mlp.up_gated_layer"],
    down: "mlp.down_layer",
    ..BERT
};

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
        types: config.get("type_vocab_size")?.unwrap_or(2),
        bias: Bias::Alibi,
        biases: Biases {
            up: false,
            ..Biases::ALL
        },
        ..EncoderConfig::new(config, &NAMES, Heads::read(config)?, feed_forward)?
    })
}

/// Switches to the code model's layout if the weights have it; the config does not state it.
pub fn adapt(config: &mut EncoderConfig, weights: &Weights) {
    let name = config.in_layer(0, CODE.up[0], 0, false).name;
    if std::ptr::eq(config.names, &NAMES)
        && weights.has(&format!("{}{name}.weight", weights.prefix))
    {
        config.names = &CODE;
        config.feed_forward.gate = Gate::Second;
    }
}
