//! NomicBERT: nomic-embed-text v1 and v1.5.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::{fields::expect, rope};
use crate::{
    config::ConfigFile,
    encoder::config::{Biases, EncoderConfig, FeedForward, Gate, Heads, Names, Norms, Span, WORDS},
    layers::{Activation, AttentionWindow, Scaling},
    tokenizer_config::{read_bert_tokenizer, read_tokenizer},
};
use kivu::error::{Error, Result};

pub(super) const NAMES: Names = Names {
    prefix: "bert.",
    words: WORDS,
    embedding_norm: Some("emb_ln"),
    layer: "encoder.layers.",
    projections: &["attn.Wqkv"],
    query_key_norms: None,
    attention_output: "attn.out_proj",
    norms: Norms::After { attention: &["norm1"], output: "norm2" },
    up: &["mlp.fc11", "mlp.fc12"],
    down: "mlp.fc2",
    dense: ("pooler.dense", true),
    dense_norm: None,
    labels: "classifier",
};

/// The positions in training, if the config does not state them.
const TRAINED_POSITIONS: usize = 2048;

pub(super) fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    // Options in the authors' code; their text models do not use them.
    for field in [
        "causal",
        "prenorm",
        "parallel_block",
        "rotary_emb_interleaved",
        "use_rms_norm",
        "scale_attn_by_inverse_layer_idx",
    ] {
        expect(config, field, &false)?;
    }
    if let Some(found) = config.get::<f64>("rotary_emb_scale_base")? {
        return Err(Error::model(format!("expected no `rotary_emb_scale_base`, but found {found}")));
    }
    if let Some(found) = config.get::<i64>("moe_every_n_layers")?.filter(|every| *every > 0) {
        return Err(Error::model(format!("expected no layers of experts, but found one in {found}")));
    }
    let heads = Heads::read(config)?;
    expect(config, "head_dim", &heads.width)?;
    let flag = |field: &str| own(config, field, false);
    let attention_bias = flag("qkv_proj_bias")?;
    let multiple = config.get("pad_vocab_size_multiple")?.filter(|multiple| *multiple > 0).unwrap_or(1);
    let feed_forward = FeedForward {
        width: feed_forward(config, heads)?,
        activation: activation(config)?,
        gate: Gate::Second,
    };
    Ok(EncoderConfig {
        vocabulary: config.require_size("vocab_size")?.next_multiple_of(multiple),
        epsilon: config.get_any(&["layer_norm_epsilon", "layer_norm_eps"])?.unwrap_or(1e-12),
        types: config.get("type_vocab_size")?.unwrap_or(2),
        spans: vec![span(config, heads.width)?],
        biases: Biases {
            projections: attention_bias,
            attention_output: attention_bias,
            up: flag("mlp_fc1_bias")?,
            down: flag("mlp_fc2_bias")?,
        },
        ..EncoderConfig::new(config, &NAMES, heads, feed_forward)?
    })
}

/// Reads the tokenizer in `folder`.
pub(super) fn tokenizer(folder: &Path) -> Result<Vec<u8>> {
    match is_authors_form(&ConfigFile::open(folder)?) {
        true => read_tokenizer(folder),
        false => read_bert_tokenizer(folder),
    }
}

/// Whether a config has the form of the authors' own code, and not of `transformers` 5.
fn is_authors_form(config: &ConfigFile) -> bool {
    config.fields().contains_key("n_embd")
}

/// A field in the authors' own config form, which all their files have; the default matches the `transformers` form.
fn own<T: DeserializeOwned>(config: &ConfigFile, field: &str, default: T) -> Result<T> {
    match is_authors_form(config) {
        true => config.require(field),
        false => Ok(config.get(field)?.unwrap_or(default)),
    }
}

/// Feed-forward width. The authors' code rounds its own field up.
fn feed_forward(config: &ConfigFile, heads: Heads) -> Result<usize> {
    let hidden = heads.queries * heads.width;
    match config.get_size("intermediate_size")? {
        Some(width) => Ok(width),
        None => Ok(config.get_size("n_inner")?.unwrap_or(4 * hidden).next_multiple_of(256)),
    }
}

fn activation(config: &ConfigFile) -> Result<Activation> {
    match config.require_any::<String>(&["activation_function", "hidden_act"])?.as_str() {
        "swiglu" | "silu" => Ok(Activation::Swish),
        "geglu" => Ok(Activation::Gelu),
        other => Err(Error::model(format!(
            "expected `activation_function` `swiglu` or `geglu`, but found `{other}`"
        ))),
    }
}

fn span(config: &ConfigFile, head_width: usize) -> Result<Span> {
    let rope = rope::Rope::read(config)?;
    let trained = config.get_any(&["max_trained_positions", "max_position_embeddings"])?;
    let trained = trained.unwrap_or(TRAINED_POSITIONS);
    let scaling = match config.get::<f64>("rotary_scaling_factor")? {
        Some(factor) if factor >= 1.0 && factor.is_finite() => {
            Scaling::DynamicNtk { factor, positions: trained }
        }
        Some(factor) => {
            return Err(Error::model(format!(
                "expected `rotary_scaling_factor` of at least 1, but found {factor}"
            )));
        }
        None => rope.scaling(&["dynamic"], trained)?,
    };
    let fraction = own(config, "rotary_emb_fraction", 1.0)?;
    let base = own(config, "rotary_emb_base", rope.rope_theta.unwrap_or(1000.0))?;
    Ok(Span {
        window: AttentionWindow::ALL,
        rotary: Some(rope::rotary(head_width, fraction, base, scaling)?),
    })
}
