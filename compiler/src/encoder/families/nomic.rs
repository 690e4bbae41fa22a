//! NomicBERT: nomic-embed-text v1 and v1.5, and v2 with experts.

use serde::de::DeserializeOwned;

use super::{fields::expect, rope};
use crate::{
    encoder::config::{
        Biases, Details, EncoderConfig, ExpertLayers, FeedForward, Gate, Heads, Span,
    },
    files::{config::ConfigFile, model_folder::ModelFolder},
    onnx::layers::{Activation, AttentionWindow, ExpertKind, Scaling},
    tokenizers::tokenizer_config::{read_newer_tokenizer, read_tokenizer},
};
use kivu::{Error, Result};

/// Far above published models'.
const MAX_EXPERTS: usize = 256;

/// The positions in training, if the config does not state them.
const TRAINED_POSITIONS: usize = 2048;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
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
        return Err(Error::model(format!(
            "expected no `rotary_emb_scale_base`, but found {found}"
        )));
    }
    let heads = Heads::read(config)?;
    expect(config, "head_dim", &heads.width)?;
    let flag = |field: &str| own(config, field, false);
    let attention_bias = flag("qkv_proj_bias")?;
    let multiple = config
        .get("pad_vocab_size_multiple")?
        .filter(|multiple| *multiple > 0)
        .unwrap_or(1);
    let (activation, gate) = activation(config)?;
    let feed_forward = FeedForward {
        width: feed_forward(config, heads, gate)?,
        activation,
        gate,
    };
    let names = if gate == Gate::None {
        "nomic-plain"
    } else {
        "nomic"
    };
    let shared = EncoderConfig::new(config, names, heads, feed_forward)?;
    Ok(EncoderConfig {
        details: Details {
            experts: experts(config, gate)?,
            ..shared.details
        },
        vocabulary: config
            .require_size("vocab_size")?
            .next_multiple_of(multiple),
        epsilon: config.epsilon(&["layer_norm_epsilon", "layer_norm_eps"], 1e-12)?,
        types: config.get("type_vocab_size")?.unwrap_or(2),
        spans: vec![span(config, heads.width)?],
        biases: Biases {
            projections: attention_bias,
            attention_output: attention_bias,
            up: flag("mlp_fc1_bias")?,
            down: flag("mlp_fc2_bias")?,
        },
        ..shared
    })
}

/// Reads the tokenizer in `folder`.
pub fn tokenizer(folder: &ModelFolder) -> Result<Vec<u8>> {
    match is_authors_form(&ConfigFile::open(folder)?) {
        true => read_tokenizer(folder),
        false => read_newer_tokenizer(folder, false),
    }
}

/// Whether a config has the form of the authors' own code, and not of `transformers` 5.
fn is_authors_form(config: &ConfigFile) -> bool {
    config.value("n_embd").is_some()
}

/// A field in the authors' own config form, which all their files have; the default matches the `transformers` form.
fn own<T: DeserializeOwned>(config: &ConfigFile, field: &str, default: T) -> Result<T> {
    match is_authors_form(config) {
        true => config.require(field),
        false => Ok(config.get(field)?.unwrap_or(default)),
    }
}

/// Feed-forward width. The authors' code rounds its own field up in gated parts.
fn feed_forward(config: &ConfigFile, heads: Heads, gate: Gate) -> Result<usize> {
    let hidden = heads.queries * heads.width;
    match config.get_size("intermediate_size")? {
        Some(width) => Ok(width),
        None => {
            let width = config.get_size("n_inner")?.unwrap_or(4 * hidden);
            Ok(if gate == Gate::None {
                width
            } else {
                width.next_multiple_of(256)
            })
        }
    }
}

fn activation(config: &ConfigFile) -> Result<(Activation, Gate)> {
    match config
        .require_any::<String>(&["activation_function", "hidden_act"])?
        .as_str()
    {
        "swiglu" | "silu" => Ok((Activation::Swish, Gate::Second)),
        "geglu" => Ok((Activation::Gelu, Gate::Second)),
        "gelu" => Ok((Activation::Gelu, Gate::None)),
        other => Err(Error::model(format!(
            "expected `activation_function` `swiglu`, `geglu` or `gelu`, but found `{other}`"
        ))),
    }
}

/// Layers with experts (nomic-embed-text-v2-moe).
fn experts(config: &ConfigFile, gate: Gate) -> Result<Option<ExpertLayers>> {
    let Some(every) = config
        .get::<usize>("moe_every_n_layers")?
        .filter(|every| *every > 0)
    else {
        return Ok(None);
    };
    expect(config, "expert_choice_router", &false)?;
    expect(config, "moe_normalize_expert_weights", &false)?;
    expect(config, "num_shared_experts", &0)?;
    expect(config, "ffn_div", &1)?;
    let count = config.require_size("num_experts")?;
    let top = config.require_size("moe_top_k")?;
    if every < 2 || count > MAX_EXPERTS || top > count {
        return Err(Error::model(format!(
            "expected `moe_every_n_layers` from 2, `num_experts` up to {MAX_EXPERTS} and `moe_top_k` up to their number, but \
             found {every}, {count} and {top}"
        )));
    }
    match gate {
        Gate::None => Ok(Some(ExpertLayers {
            every,
            count,
            top,
            name: "mlp",
            kind: ExpertKind::Plain,
        })),
        Gate::First | Gate::Second => Err(Error::model(
            "expected `activation_function` `gelu` with experts, but found a gate",
        )),
    }
}

fn span(config: &ConfigFile, head_width: usize) -> Result<Span> {
    let rope = rope::Rope::read(config)?;
    let trained = config.get_any(&["max_trained_positions", "max_position_embeddings"])?;
    let trained = trained.unwrap_or(TRAINED_POSITIONS);
    let scaling = match config.get::<f64>("rotary_scaling_factor")? {
        Some(factor) if factor >= 1.0 && factor.is_finite() => Scaling::DynamicNtk {
            factor,
            positions: trained,
        },
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
