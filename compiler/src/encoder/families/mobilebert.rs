//! MobileBERT: BERT whose layers are narrower inside, with several feed-forward parts each.

use super::fields::{epsilon, expect};
use crate::{
    encoder::{
        config::{
            Details, EmbeddingProjection, EncoderConfig, FeedForward, Gate, HeadInput, Heads,
            Positions,
        },
        details::{Bottleneck, BottleneckLayers},
    },
    files::{
        config::{ConfigFile, head_width},
        weights::Weights,
    },
    onnx::layers::{Activation, NormKind},
};
use kivu::{Error, Result};

/// The layer from words, each with its neighbours, to token vectors.
const WORDS: &str = "embeddings.embedding_transformation";
/// `eps` in `torch.nn.LayerNorm`, which two normalizations have whatever the config says.
const EPSILON: f32 = 1e-5;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    expect(config, "is_decoder", &false)?;
    let size = |field, default| Ok::<_, Error>(config.get_size(field)?.unwrap_or(default));
    let hidden = config.require_size("hidden_size")?;
    let is_narrow = config.is_set_or("use_bottleneck", true)?;
    let inner = size("intra_bottleneck_size", 128)?;
    let width = if is_narrow { inner } else { hidden };
    if let Some(found) = config.get_size("true_hidden_size")?
        && found != width
    {
        return Err(Error::model(format!(
            "expected a `true_hidden_size` of {width}, the width inside of layers, but found {found}"
        )));
    }
    let bottleneck = match (
        is_narrow,
        config.is_set("use_bottleneck_attention")?,
        config.is_set_or("key_query_shared_bottleneck", true)?,
    ) {
        (false, ..) => Bottleneck::None,
        (true, true, _) => Bottleneck::All,
        (true, false, true) => Bottleneck::QueriesAndKeys,
        (true, false, false) if hidden == width => Bottleneck::Residual,
        (true, false, false) => {
            return Err(Error::model(format!(
                "expected `use_bottleneck_attention` or `key_query_shared_bottleneck` true, or equal widths, but found \
                 {hidden} and {width}"
            )));
        }
    };
    let queries = config.require_size("num_attention_heads")?;
    let heads = Heads {
        queries,
        keys: queries,
        width: head_width(width, queries)?,
    };
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: Activation::named(
            config
                .get::<String>("hidden_act")?
                .as_deref()
                .unwrap_or("relu"),
        )?,
        gate: Gate::None,
    };
    let is_activated = config.is_set_or("classifier_activation", true)?;
    let names = if is_activated {
        "mobilebert"
    } else {
        "mobilebert-plain"
    };
    let kind: Option<String> = config.get("normalization_type")?;
    let norm = match kind.as_deref() {
        None | Some("no_norm") => NormKind::None,
        Some("layer_norm") => NormKind::Layer { has_bias: true },
        Some(other) => {
            return Err(Error::model(format!(
                "expected `normalization_type` `no_norm` or `layer_norm`, but found `{other}`"
            )));
        }
    };
    let words = size("embedding_size", 128)?;
    let joined = if config.is_set_or("trigram_input", true)? {
        3
    } else {
        1
    };
    let shared = EncoderConfig::new(config, names, heads, feed_forward)?;
    Ok(EncoderConfig {
        norm,
        epsilon: EPSILON,
        positions: Positions::Table,
        types: config.get_size("type_vocab_size")?.unwrap_or(2),
        head_input: HeadInput::first(Activation::Tanh),
        details: Details {
            projection: (joined > 1 || words != hidden).then_some(EmbeddingProjection {
                name: WORDS,
                width: words,
                has_bias: true,
                is_normalized_before: false,
                joined_words: Some(joined),
            }),
            bottlenecks: Some(BottleneckLayers {
                bottleneck,
                width,
                parts: size("num_feedforward_networks", 4)?,
                epsilon: epsilon(config)?,
            }),
            ..shared.details
        },
        ..shared
    })
}

/// Sorts the columns for neighbours: the next word's come first in files.
pub fn arrange(config: &EncoderConfig, weights: &mut Weights) {
    let Some(projection) = config
        .details
        .projection
        .filter(|it| it.joined_words == Some(3))
    else {
        return;
    };
    let Some(found) = weights.find_mut(&format!("{WORDS}.weight"), config.names.prefix) else {
        return;
    };
    let width = projection.width;
    if found.shape != [config.encoder_limits.hidden, 3 * width] {
        return; // refused by its shape
    }
    for row in found.values.chunks_exact_mut(3 * width) {
        let (next, others) = row.split_at_mut(width);
        next.swap_with_slice(&mut others[width..]);
    }
}
