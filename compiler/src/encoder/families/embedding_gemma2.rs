//! EmbeddingGemma 2's model for texts, alone or beside the towers for images and sound.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    decoders::{self, Defaults},
    fields::{self, LayerKinds},
    gemma,
};
use crate::{
    encoder::{
        config::{Details, EncoderConfig, Head, Heads, OutputProjection},
        details::LayerSignals,
        layer_signals,
    },
    files::{
        config::ConfigFile,
        weights::{Weight, Weights},
    },
};
use kivu::{Error, Result};

/// The whole model, and the one for texts.
pub const WHOLE: &str = "embedding_gemma2";
pub const TEXT: &str = "embedding_gemma2_text";
/// The settings of the latter in the former's.
pub const TEXT_CONFIG: &str = "text_config";

/// Values have a normalization without a gain.
const VALUE_NORM: &str = "self_attn.v_norm";
/// The layers' signals, from one matrix.
const SIGNALS: &str = "ple.per_layer_model_projection.weight";

/// Tokens in place of which the whole model reads images, videos and sound.
const PLACEHOLDERS: [(&str, u32); 3] = [
    ("image_token_id", 258_880),
    ("video_token_id", 258_884),
    ("audio_token_id", 258_881),
];

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(2),
    ..gemma::DEFAULTS
};

/// Settings that replace the general ones in some layers.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerSettings {
    head_dim: Option<usize>,
    num_key_value_heads: Option<usize>,
}

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    if Head::kind(config).is_some() {
        return Err(Error::model(format!(
            "expected EmbeddingGemma 2 without a label head, but found `{}`",
            config.architecture()
        )));
    }
    if config.model_type() == TEXT {
        return read_text(config);
    }
    let text: Map<String, Value> = config.require(TEXT_CONFIG)?;
    let text = ConfigFile::new(ConfigFile::NAME, text);
    if ![TEXT, ""].contains(&text.model_type()) {
        return Err(Error::model(format!(
            "expected a `model_type` of `{TEXT}` in `{TEXT_CONFIG}`, but found `{}`",
            text.model_type()
        )));
    }
    let mut found = read_text(&text)?;
    config
        .architecture()
        .clone_into(&mut found.encoder_limits.architecture);
    for (place, (key, default)) in PLACEHOLDERS.into_iter().enumerate() {
        let is_null = config.is_null(key);
        found.details.placeholders[place] = config.get(key)?.or((!is_null).then_some(default));
    }
    Ok(found)
}

fn read_text(config: &ConfigFile) -> Result<EncoderConfig> {
    let every = fields::period(config, &["sliding_window_pattern"], 6)?;
    let types: Option<Vec<String>> = config.get("layer_types")?;
    let layers = config.require_size("num_hidden_layers")?;
    let mut types = types.unwrap_or_else(|| LayerKinds::alternating(layers, every));
    // Whatever the file says.
    if let Some(last) = types.last_mut() {
        LayerKinds::FULL.clone_into(last);
    }
    let [full, sliding] = heads(config, &types)?;
    let kinds = LayerKinds {
        ropes: LayerKinds::ropes(config)?
            .unwrap_or_else(|| LayerKinds::ropes_of_bases([1_000_000.0, 10_000.0])),
        window: config.get_size("sliding_window")?.unwrap_or(512),
        widths: [full.width, sliding.width],
        types,
    };
    let shared = decoders::read(config, WHOLE, &DEFAULTS, kinds.spans(config)?)?;
    let inputs = shared.encoder_limits.hidden;
    let mut encoder_limits = shared.encoder_limits;
    encoder_limits.hidden = config.get_size("embedding_dim")?.unwrap_or(768);
    Ok(EncoderConfig {
        encoder_limits,
        heads: sliding,
        biases: decoders::attention_biases(config)?,
        details: Details {
            full_heads: Some(full),
            norms_each_head: true,
            value_norm: Some(VALUE_NORM),
            word_scale: Some((inputs as f32).sqrt()),
            attention_scale: Some(1.0),
            layer_signals: Some(LayerSignals {
                width: config
                    .get_size("hidden_size_per_layer_input")?
                    .unwrap_or(512),
            }),
            output_projection: Some(OutputProjection {
                name: "embedding_projection",
                inputs,
            }),
            ..shared.details
        },
        ..shared
    })
}

/// The heads of layers with full attention, and of the others.
fn heads(config: &ConfigFile, types: &[String]) -> Result<[Heads; 2]> {
    const FIELD: &str = "per_layer_config";
    let shared = decoders::heads(config, &DEFAULTS)?;
    let full_width = config.get_size("global_head_dim")?.unwrap_or(512);
    let full_keys = config.get_size("num_global_key_value_heads")?.unwrap_or(1);
    let is_given = config.value(FIELD).is_some();
    let given: BTreeMap<String, LayerSettings> = config.get(FIELD)?.unwrap_or_default();
    let mut by_layer: Vec<Heads> = types
        .iter()
        .map(|kind| match !is_given && kind == LayerKinds::FULL {
            true => Heads {
                keys: full_keys,
                width: full_width,
                ..shared
            },
            false => shared,
        })
        .collect();
    for (layer, settings) in given {
        let own = layer
            .parse()
            .ok()
            .and_then(|layer: usize| by_layer.get_mut(layer));
        let Some(own) = own else {
            return Err(Error::model(format!(
                "expected layers below {} in `{FIELD}`, but found `{layer}`",
                types.len()
            )));
        };
        own.width = settings.head_dim.unwrap_or(own.width);
        own.keys = settings.num_key_value_heads.unwrap_or(own.keys);
    }
    let of_kind = |name: &str| {
        let own = by_layer.iter().zip(types).filter(|(_, kind)| *kind == name);
        let mut own = own.map(|(heads, _)| *heads);
        let first = own.next().unwrap_or(shared);
        let is_valid =
            first.width > 0 && first.keys > 0 && first.queries.is_multiple_of(first.keys);
        match is_valid && own.all(|other| other == first) {
            true => Ok(first),
            false => Err(Error::model(format!(
                "expected the same number of heads and width of heads in all layers of `{name}`, and \
                 `num_attention_heads` as a multiple of `num_key_value_heads`, but found others in `{FIELD}`"
            ))),
        }
    };
    Ok([of_kind(LayerKinds::FULL)?, of_kind(LayerKinds::SLIDING)?])
}

/// Divides the matrix for all layers' signals, and gives values' normalizations a gain.
pub fn arrange(config: &EncoderConfig, weights: &mut Weights) -> Result<()> {
    let Some(LayerSignals { width }) = config.details.layer_signals else {
        return Ok(());
    };
    let whole = format!("{}{SIGNALS}", config.names.prefix);
    let (prefix, name) = match weights.has(&whole) {
        true => (config.names.prefix, whole.as_str()),
        false => ("", SIGNALS),
    };
    let hidden = config.layer_width();
    let all = weights
        .take_whole(name, &[config.layers * width, hidden])?
        .clone();
    weights.tensors.remove(name);
    let scale = 1.0 / (hidden as f32).sqrt();
    for (layer, rows) in all.values.chunks_exact(width * hidden).enumerate() {
        let signal = Weight {
            shape: vec![width, hidden],
            values: rows.iter().map(|value| value * scale).collect(),
        };
        let head = config.heads(layer).width;
        let gain = Weight {
            shape: vec![head],
            values: vec![1.0; head],
        };
        for (name, weight) in [(layer_signals::SIGNAL, signal), (VALUE_NORM, gain)] {
            let name = config.name_in_layer(layer, name);
            weights
                .tensors
                .insert(format!("{prefix}{name}.weight"), weight);
        }
    }
    Ok(())
}
