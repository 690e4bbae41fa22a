//! UltraBERT: EuroBERT's layers, with windows in most of them, and a rotary base per kind of layer.

use super::{
    decoders::{self, Defaults},
    fields::{self, LayerKinds},
    llama,
    rope::Rope,
};
use crate::{
    encoder::config::{Details, EncoderConfig, HeadInput},
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::Activation,
};
use kivu::Result;

/// Prefixes in files, and those in the class.
const PREFIXES: [[&str; 2]; 2] = [["ultrabert.", "model."], ["cls.", "head.decoder."]];

/// Rotary base of an entry that has none.
const BASE: f64 = 10_000.0;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let defaults = Defaults::LLAMA;
    let spans = kinds(config, &defaults)?.spans(config)?;
    let shared = decoders::read(config, "ultrabert", &defaults, spans)?;
    let width = config.get_size("prediction_head_size")?.unwrap_or(768);
    Ok(EncoderConfig {
        biases: llama::biases(config)?,
        head_input: HeadInput {
            read: fields::head_read(config)?,
            ..HeadInput::first(Activation::Tanh)
        },
        details: Details {
            prediction_width: Some(width),
            ..shared.details
        },
        ..shared
    })
}

/// Gives weights the names in the class: `transformers` saves others.
pub fn rename(config: &EncoderConfig, weights: &mut Weights) {
    if config.details.prediction_width.is_none() {
        return;
    }
    for [old, new] in PREFIXES {
        let found = weights.split_off(old).tensors.into_iter();
        let renamed = found.map(|(name, weight)| (name.replacen(old, new, 1), weight));
        weights.tensors.extend(renamed);
    }
}

/// Older files list a window and a rotary base for each layer, of which one for each kind of layer counts.
fn kinds(config: &ConfigFile, defaults: &Defaults) -> Result<LayerKinds> {
    let windows: Option<Vec<Option<usize>>> = config.get("attention_windows")?;
    let types: Vec<String> = match (config.get("layer_types")?, &windows) {
        (Some(types), _) => types,
        (None, Some(windows)) => windows
            .iter()
            .map(|window| match window.unwrap_or(0) {
                0 => LayerKinds::FULL.to_owned(),
                _ => LayerKinds::SLIDING.to_owned(),
            })
            .collect(),
        (None, None) => LayerKinds::alternating(config.require_size("num_hidden_layers")?, 3),
    };
    let listed = windows.into_iter().flatten().flatten();
    let window = config.get_size("sliding_window")?.unwrap_or(128);
    let bases = config.get::<Vec<f64>>("rope_theta");
    let mut ropes = match LayerKinds::ropes(config)? {
        Some(ropes) => ropes,
        None => match bases? {
            Some(bases) => {
                let listed = types.iter().cloned().zip(bases);
                listed
                    .map(|(kind, base)| (kind, Some(Rope::of_base(base))))
                    .collect()
            }
            None => LayerKinds::ropes_of_bases([2_560_000.0, BASE]),
        },
    };
    for rope in ropes.values_mut().flatten() {
        rope.rope_theta.get_or_insert(BASE);
    }
    Ok(LayerKinds {
        types,
        ropes,
        window: listed
            .into_iter()
            .find(|window| *window > 0)
            .unwrap_or(window),
        widths: [decoders::heads(config, defaults)?.width; 2],
    })
}
