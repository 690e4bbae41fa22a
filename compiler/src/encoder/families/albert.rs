//! ALBERT: narrow embeddings, and layers that share their weights.

use super::fields::{activation, epsilon, expect, expect_absolute_positions};
use crate::{
    encoder::{
        config::{
            Details, EmbeddingProjection, EncoderConfig, FeedForward, Gate, Heads, Positions,
        },
        details::LayerSharing,
    },
    files::config::ConfigFile,
    onnx::layers::Activation,
};
use kivu::{Error, Result};

/// Far above any model's. No weight confirms the number, since all passes may share one layer.
const MAX_LAYERS: usize = 1 << 10;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "is_decoder", &false)?;
    expect_absolute_positions(config)?;
    let activation = match config.get::<String>("hidden_act")? {
        Some(_) => activation(config, &["hidden_act"])?,
        None => Activation::GeluTanh,
    };
    let width = config.require_size("intermediate_size")?;
    let feed_forward = FeedForward {
        width,
        activation,
        gate: Gate::None,
    };
    let shared = EncoderConfig::new(config, "albert", Heads::read(config)?, feed_forward)?;
    let sharing = sharing(config, shared.layers)?;
    let projection = EmbeddingProjection {
        name: "encoder.embedding_hidden_mapping_in",
        width: config.get_size("embedding_size")?.unwrap_or(128),
        has_bias: true,
        is_normalized_before: true,
        joined_words: None,
    };
    Ok(EncoderConfig {
        layers: sharing.passes * sharing.layers,
        positions: Positions::Table,
        epsilon: epsilon(config)?,
        types: config.get_size("type_vocab_size")?.unwrap_or(2),
        details: Details {
            projection: Some(projection),
            sharing: Some(sharing),
            ..shared.details
        },
        ..shared
    })
}

fn sharing(config: &ConfigFile, passes: usize) -> Result<LayerSharing> {
    let [groups, layers] = ["num_hidden_groups", "inner_group_num"]
        .map(|field| config.get_size(field).map(|size| size.unwrap_or(1)));
    let (groups, layers) = (groups?, layers?);
    match passes.saturating_mul(layers) {
        0..=MAX_LAYERS => Ok(LayerSharing {
            passes,
            groups,
            layers,
            name: "albert_layers",
        }),
        found => Err(Error::model(format!(
            "expected at most {MAX_LAYERS} layers (`num_hidden_layers` times `inner_group_num`), but found {found}"
        ))),
    }
}
