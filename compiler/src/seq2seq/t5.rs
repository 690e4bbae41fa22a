//! T5 and mT5, v1.0 and v1.1.

use super::{
    model::{Distances, Memory, Norms, Positions, Seq2SeqModel, Stack, Tables, is_newer_t5},
    weight_names::Names,
};
use crate::{
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::{Activation, Buckets, NormKind},
};
use kivu::{Error, Result};

pub use super::weight_names::{MT5, T5};

/// Maximum number of source tokens if the files state none: mT5's training length.
const MAX_TOKENS: usize = 1024;
/// Maximum number of target tokens. The models have no limit, but the graph contains the values for all distances.
const MAX_POSITIONS: usize = 4096;
/// Maximum for a tokenizer's own limit, since the scores for all token pairs are in memory together.
const MAX_TOKENIZER_LENGTH: usize = 16_384;
const BUCKETS: usize = 32;
const FARTHEST: usize = 128;
pub const EPSILON: f32 = 1e-6;

/// Whether a config belongs to T5 or mT5.
pub fn is_described_by(config: &ConfigFile) -> bool {
    [T5, MT5].contains(&config.model_type())
}

/// Maximum number of tokens in a source and in a target.
pub fn lengths(config: &ConfigFile, max_tokens: Option<usize>) -> Result<[usize; 2]> {
    let tokens = match max_tokens {
        Some(tokens) => tokens,
        None => config.get_size("n_positions")?.unwrap_or(MAX_TOKENS),
    };
    Ok([tokens.clamp(1, MAX_TOKENIZER_LENGTH), MAX_POSITIONS])
}

/// Model shape for the given weights and token limits.
pub fn model(config: &ConfigFile, weights: &Weights, lengths: [usize; 2]) -> Result<Seq2SeqModel> {
    let (hidden, rows) = (
        config.require_size("d_model")?,
        config.require_size("vocab_size")?,
    );
    let [heads, head] = heads(config)?;
    let FeedForward {
        width: intermediate,
        is_gated,
        activation,
    } = feed_forward(config)?;
    let stack = |layers| Stack {
        layers,
        heads,
        head,
        intermediate,
    };
    let layers = config.require_size("num_layers")?;
    let decoder_layers = config.get_size("num_decoder_layers")?.unwrap_or(layers);
    let is_mt5 = config.model_type() == MT5;
    let is_tied = config.get("tie_word_embeddings")?.unwrap_or(!is_mt5);
    // Older versions of `transformers` scale what is tied; version 5 says so for T5, and has no scale for mT5.
    let is_scaled = match config.get("scale_decoder_outputs")? {
        Some(is_scaled) if !is_mt5 => is_scaled,
        _ => is_tied && !(is_mt5 && is_newer_t5(config)?),
    };
    Ok(Seq2SeqModel {
        architecture: config.architecture().to_owned(),
        hidden,
        encoder: stack(layers),
        decoder: stack(decoder_layers),
        tables: Tables::find(config, weights, [rows, rows])?,
        names: Names::T5,
        has_biases: false,
        activation,
        is_gated,
        norms: Norms::Before,
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.epsilon(&["layer_norm_epsilon"], EPSILON)?,
        positions: Positions::Distances(Distances {
            buckets: buckets(config)?,
            lengths,
        }),
        scale: 1.0,
        normalizes_embeddings: false,
        attention_scale: Some(1.0),
        output_scale: if is_scaled {
            (hidden as f32).sqrt().recip()
        } else {
            1.0
        },
        memory: Memory::Attention,
        is_trained_in_int8: false,
        starts_empty: false,
        has_shortlist: false,
    })
}

/// Number of heads and head width; together, they may differ from the width of a token's vector.
pub fn heads(config: &ConfigFile) -> Result<[usize; 2]> {
    Ok([
        config.require_size("num_heads")?,
        config.require_size("d_kv")?,
    ])
}

/// The layers between two attentions.
pub struct FeedForward {
    pub width: usize,
    pub is_gated: bool,
    pub activation: Activation,
}

pub fn feed_forward(config: &ConfigFile) -> Result<FeedForward> {
    let width = config.require_size("d_ff")?;
    let kind: Option<String> = config.get("feed_forward_proj")?;
    let kind = kind.as_deref().unwrap_or(if config.model_type() == MT5 {
        "gated-gelu"
    } else {
        "relu"
    });
    let (is_gated, activation) = match kind.strip_prefix("gated-") {
        // In published models, `gelu` means the tanh approximation.
        Some("gelu") => (true, "gelu_new"),
        Some(activation) => (true, activation),
        None => (false, kind),
    };
    // `is_gated_act` and `dense_act_fn`, which repeat both, take precedence.
    let is_gated = config.get("is_gated_act")?.unwrap_or(is_gated);
    let own: Option<String> = config.get("dense_act_fn")?;
    let activation = Activation::named(own.as_deref().unwrap_or(activation))?;
    Ok(FeedForward {
        width,
        is_gated,
        activation,
    })
}

pub fn buckets(config: &ConfigFile) -> Result<Buckets> {
    let count = config
        .get_size("relative_attention_num_buckets")?
        .unwrap_or(BUCKETS);
    let farthest = config
        .get_size("relative_attention_max_distance")?
        .unwrap_or(FARTHEST);
    if count < 4 || !count.is_multiple_of(4) || farthest <= count / 2 {
        return Err(Error::model(format!(
            "expected a `relative_attention_num_buckets` that 4 divides, and `relative_attention_max_distance` of more \
             than half of it, but found {count} and {farthest}"
        )));
    }
    Ok(Buckets {
        side: count / 2,
        farthest,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn feed_forward_of(fields: &Value) -> (bool, Activation) {
        let mut fields = fields.as_object().cloned().unwrap();
        fields.insert("d_ff".to_owned(), json!(64));
        let FeedForward {
            is_gated,
            activation,
            ..
        } = feed_forward(&ConfigFile::new("config.json", fields)).unwrap();
        (is_gated, activation)
    }

    #[test]
    fn repeated_fields_of_feed_forward_parts_take_precedence() {
        assert_eq!(feed_forward_of(&json!({})), (false, Activation::Relu));
        let gated = json!({"feed_forward_proj": "gated-gelu"});
        assert_eq!(feed_forward_of(&gated), (true, Activation::GeluTanh));
        let exact = json!({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"});
        assert_eq!(feed_forward_of(&exact), (true, Activation::Gelu));
        let own =
            json!({"feed_forward_proj": "relu", "dense_act_fn": "silu", "is_gated_act": true});
        assert_eq!(feed_forward_of(&own), (true, Activation::Swish));
    }
}
