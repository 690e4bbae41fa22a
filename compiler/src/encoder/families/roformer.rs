//! RoFormer: BERT with rotary positions, in pairs of neighbouring values, in place of a table.

use super::{
    fields::{epsilon, expect},
    rope,
};
use crate::{
    encoder::config::{
        Details, EmbeddingProjection, EncoderConfig, FeedForward, Gate, HeadInput, Heads, Span,
    },
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::{AttentionWindow, Scaling},
};
use kivu::{Error, Result};

/// The rotations' base, which no file names.
const BASE: f64 = 10_000.0;
/// A table with their sines and cosines, which `transformers` reads if a file has it.
const TABLE: &str = "encoder.embed_positions.weight";

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "is_decoder", &false)?;
    expect(config, "rotary_value", &false)?;
    let feed_forward = FeedForward::read(config, Gate::None)?;
    let heads = Heads::read(config)?;
    let shared = EncoderConfig::new(config, "roformer", heads, feed_forward)?;
    let hidden = shared.encoder_limits.hidden;
    let width = config.get_size("embedding_size")?.unwrap_or(hidden);
    Ok(EncoderConfig {
        epsilon: epsilon(config)?,
        types: config.get_size("type_vocab_size")?.unwrap_or(2),
        spans: vec![Span {
            window: AttentionWindow::ALL,
            rotary: Some(rope::rotary(heads.width, 1.0, BASE, Scaling::None)?),
        }],
        head_input: HeadInput::first(feed_forward.activation),
        details: Details {
            pairs_neighbours: true,
            projection: (width != hidden).then_some(EmbeddingProjection {
                name: "embeddings_project",
                width,
                has_bias: true,
                is_normalized_before: true,
                joined_words: None,
            }),
            ..shared.details
        },
        ..shared
    })
}

/// Refuses other positions than the layers compute.
pub fn check_table(config: &EncoderConfig, weights: &mut Weights) -> Result<()> {
    /// The rounding of `f32`.
    const TOLERANCE: f64 = 1e-6;
    if !config.names.is("roformer") {
        return Ok(());
    }
    let names = [TABLE.to_owned(), format!("{}{TABLE}", config.names.prefix)];
    for name in names {
        if !weights.has(&name) {
            continue;
        }
        let width = config.heads.width;
        let table = weights.take_whole(&name, &[config.encoder_limits.max_positions, width])?;
        let expected = |position: usize, column: usize| {
            let pair = column % (width / 2);
            let angle = position as f64 / BASE.powf((2 * pair) as f64 / width as f64);
            if column < width / 2 {
                angle.sin()
            } else {
                angle.cos()
            }
        };
        let mut values = table.values.iter().enumerate();
        let other = values.find(|(place, value)| {
            let expected = expected(place / width, place % width);
            (f64::from(**value) - expected).abs() > TOLERANCE
        });
        if let Some((place, value)) = other {
            return Err(Error::model(format!(
                "expected sines and cosines to the base {BASE} in `{name}`, but found {value} in row {}",
                place / width
            )));
        }
        weights.tensors.remove(&name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::files::weights::Weight;

    #[test]
    fn another_table_of_positions_is_refused() {
        let fields = json!({
            "model_type": "roformer", "architectures": ["RoFormerModel"], "hidden_size": 8, "num_attention_heads": 2,
            "num_hidden_layers": 1, "intermediate_size": 16, "max_position_embeddings": 3, "vocab_size": 9,
        });
        let fields = fields.as_object().cloned().unwrap();
        let config = read(&ConfigFile::new(ConfigFile::NAME, fields)).unwrap();
        // The second pair of a head's values turns a hundredth as far.
        let row = |position: f32| {
            let angles = [position, position / 100.0];
            [angles.map(f32::sin), angles.map(f32::cos)].concat()
        };
        let check = |values: Vec<f32>| {
            let table = Weight {
                shape: vec![3, 4],
                values,
            };
            let tensors = BTreeMap::from([(format!("roformer.{TABLE}"), table)]);
            let mut weights = Weights::of_tensors(tensors, String::new());
            check_table(&config, &mut weights).map(|()| weights.tensors.len())
        };
        let table = [row(0.0), row(1.0), row(2.0)].concat();
        assert_eq!(check(table.clone()).unwrap(), 0);
        let mut rounded = table;
        rounded[4] = 0.8415;
        insta::assert_snapshot!(check(rounded).unwrap_err(), @"expected sines and cosines to the base 10000 in `roformer.encoder.embed_positions.weight`, but found 0.8415 in row 1");
    }
}
