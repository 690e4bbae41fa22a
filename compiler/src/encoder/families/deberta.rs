//! DeBERTa v1: v2 without buckets of distances, and with other weights for attention.

use super::bert;
use crate::{
    encoder::config::{EncoderConfig, Names},
    files::{
        config::{ConfigFile, OneOrMany},
        weights::{Weight, Weights},
    },
};
use kivu::{Error, Result};

const IN_PROJ: &str = "in_proj.weight";
/// In this family's `pos_att_type`.
const TERMS: [&str; 2] = ["c2p", "p2c"];

/// Weights of attention with other names in v2.
const RENAMED: [(&str, &str); 5] = [
    ("q_bias", "query_proj.bias"),
    ("v_bias", "value_proj.bias"),
    ("pos_proj.weight", "pos_key_proj.weight"),
    ("pos_q_proj.weight", "pos_query_proj.weight"),
    ("pos_q_proj.bias", "pos_query_proj.bias"),
];

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    // Scores are divided by the number of terms, whether they are known or not.
    let terms = match config.get::<OneOrMany<String>>("pos_att_type")? {
        None => Vec::new(),
        Some(OneOrMany::One(terms)) => terms
            .to_lowercase()
            .split('|')
            .map(|term| term.trim().to_owned())
            .collect(),
        Some(OneOrMany::Many(terms)) => terms,
    };
    let is_repeated = terms.len() > TERMS.len() || terms.len() == 2 && terms[0] == terms[1];
    if is_repeated || terms.iter().any(|term| !TERMS.contains(&term.as_str())) {
        return Err(Error::model(format!(
            "expected `pos_att_type` of `c2p` and `p2c`, or one of them, but found `{}`",
            terms.join("`, `")
        )));
    }
    bert::read(config)
}

/// Gives the weights the form of v2, in which keys and distance keys have biases.
pub fn arrange(config: &mut EncoderConfig, weights: &mut Weights) -> Result<()> {
    if !config.names.is("deberta") {
        return Ok(());
    }
    config.names = Names::of("deberta-v2")?;
    let (hidden, width) = (config.encoder_limits.hidden, config.heads.width);
    let bias = Weight {
        shape: vec![hidden],
        values: vec![0.0; hidden],
    };
    let names: Vec<String> = weights
        .names()
        .filter(|name| name.ends_with(IN_PROJ))
        .cloned()
        .collect();
    for name in names {
        let packed = weights.take_whole(&name, &[3 * hidden, hidden])?.clone();
        weights.tensors.remove(&name);
        let attention = name.trim_end_matches(IN_PROJ);
        for (place, part) in ["query", "key", "value"].into_iter().enumerate() {
            let heads = packed
                .values
                .chunks_exact(width * hidden)
                .skip(place)
                .step_by(3);
            let weight = Weight {
                shape: vec![hidden, hidden],
                values: heads.flatten().copied().collect(),
            };
            weights
                .tensors
                .insert(format!("{attention}{part}_proj.weight"), weight);
        }
        for (own, other) in RENAMED {
            if let Some(weight) = weights.tensors.remove(&format!("{attention}{own}")) {
                weights
                    .tensors
                    .insert(format!("{attention}{other}"), weight);
            }
        }
        weights
            .tensors
            .insert(format!("{attention}key_proj.bias"), bias.clone());
        if weights.has(&format!("{attention}pos_key_proj.weight")) {
            weights
                .tensors
                .insert(format!("{attention}pos_key_proj.bias"), bias.clone());
        }
    }
    Ok(())
}
