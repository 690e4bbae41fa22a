//! Models with fairseq's architecture, as `transformers` saves them: M2M100, Marian, BART, mBART and Pegasus.

use super::{
    model::{Memory, Norms, Positions, Seq2SeqModel, Sinusoids, Stack, Tables, Waves},
    weight_names::{Half, Names},
};
use crate::{
    encoder::kind_for_task,
    files::{
        config::{ConfigFile, head_width},
        weights::Weights,
    },
    onnx::layers::{Activation, NormKind},
    plan::Plan,
};
use kivu::{Error, Result};

pub const M2M100: &str = "m2m_100";
pub const MARIAN: &str = "marian";
pub const BART: &str = "bart";
pub const MBART: &str = "mbart";
pub const PEGASUS: &str = "pegasus";

/// Epsilon for families with files that do not state it.
const EPSILON: f32 = 1e-5;

/// Rows at the start of BART's position tables that no token uses.
pub const UNUSED_POSITIONS: usize = 2;

/// The last layer of BART's label head.
pub const LABELS: &str = "classification_head.out_proj";

/// Whether a config describes BART with a label head, which `encoder` builds; without a class, the task decides.
pub fn has_labels(plan: &Plan, config: &ConfigFile) -> bool {
    let has_head = match config.names_head() {
        true => config.architecture().ends_with("ForSequenceClassification"),
        false => kind_for_task(plan).is_some(),
    };
    config.model_type() == BART && has_head
}

/// Maximum number of values in a position table, a hundred times the largest models'.
const MAX_POSITION_VALUES: usize = 1 << 28;

/// Model shape for the given weights and source and target vocabulary sizes.
pub fn model(config: &ConfigFile, weights: &Weights, sizes: [usize; 2]) -> Result<Seq2SeqModel> {
    let (hidden, length) = (
        config.require_size("d_model")?,
        config.require_size("max_position_embeddings")?,
    );
    let stack = |half: &str| -> Result<Stack> {
        let size = |of: &str| config.require_size(&format!("{half}_{of}"));
        let (layers, heads, intermediate) =
            (size("layers")?, size("attention_heads")?, size("ffn_dim")?);
        Ok(Stack {
            layers,
            heads,
            head: head_width(hidden, heads)?,
            intermediate,
        })
    };
    let padding: i64 = config.require("pad_token_id")?;
    // The table may be computed, so that no weight confirms its size.
    let values = length
        .checked_add(usize::try_from(padding).unwrap_or(0))
        .and_then(|rows| rows.checked_add(1)?.checked_mul(hidden));
    if values.is_none_or(|values| values > MAX_POSITION_VALUES) {
        return Err(Error::model(format!(
            "expected `max_position_embeddings` times `d_model` of at most {MAX_POSITION_VALUES}, but found {length} \
             times {hidden}, with the padding at {padding}"
        )));
    }
    let sinusoids = |waves, padding| {
        Positions::Sinusoidal(Sinusoids {
            length,
            waves,
            padding,
        })
    };
    let has_positions = weights.has(&format!(
        "{}{}",
        weights.prefix,
        Names::positions(Half::Encoder)
    ));
    let (norms, positions) = match config.model_type() {
        MARIAN => (Norms::After, sinusoids(Waves::ShortOfTheEnd, None)),
        BART => (
            Norms::After,
            Positions::Learned {
                length,
                unused: UNUSED_POSITIONS,
            },
        ),
        MBART => (
            Norms::Before,
            Positions::Learned {
                length,
                unused: UNUSED_POSITIONS,
            },
        ),
        // Most files have the sinusoids, some rounded to 16 bits.
        PEGASUS if has_positions => (Norms::Before, Positions::Learned { length, unused: 0 }),
        PEGASUS => (Norms::Before, sinusoids(Waves::ShortOfTheEnd, None)),
        _ => (Norms::Before, sinusoids(Waves::ToTheEnd, Some(padding))),
    };
    if let Positions::Sinusoidal(sinusoids) = &positions
        && config.model_type() == MARIAN
    {
        check_sinusoids(sinusoids, weights, hidden)?;
    }
    let activation: Option<String> = config.get("activation_function")?;
    let is_bart = [BART, MBART].contains(&config.model_type());
    let is_m2m100 = config.model_type() == M2M100;
    let default = if is_m2m100 { "relu" } else { "gelu" };
    Ok(Seq2SeqModel {
        architecture: config.architecture().to_owned(),
        hidden,
        encoder: stack("encoder")?,
        decoder: stack("decoder")?,
        tables: Tables::find(config, weights, sizes)?,
        names: Names::Fairseq,
        has_biases: true,
        activation: Activation::named(activation.as_deref().unwrap_or(default))?,
        is_gated: false,
        norms,
        norm: NormKind::Layer { has_bias: true },
        epsilon: EPSILON,
        positions,
        scale: if config.get("scale_embedding")?.unwrap_or(is_m2m100) {
            (hidden as f32).sqrt()
        } else {
            1.0
        },
        normalizes_embeddings: is_bart,
        attention_scale: None,
        output_scale: 1.0,
        memory: Memory::Attention,
        is_trained_in_int8: false,
        starts_empty: false,
        has_shortlist: false,
    })
}

/// Refuses position tables that differ from the sinusoids by more than 16-bit rounding.
fn check_sinusoids(sinusoids: &Sinusoids, weights: &Weights, hidden: usize) -> Result<()> {
    const TOLERANCE: f32 = 1e-3;
    for half in [Half::Encoder, Half::Decoder] {
        let name = format!("{}{}", weights.prefix, Names::positions(half));
        if !weights.has(&name) {
            continue;
        }
        let found = weights.take_whole(&name, &[sinusoids.rows(), hidden])?;
        let expected = sinusoids.table(hidden);
        let is_same = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE;
        if !found.values.iter().zip(&expected).all(is_same) {
            return Err(Error::model(format!(
                "the positions in `{name}` are not sinusoids"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Map, Value};

    use super::*;
    use crate::seq2seq::t5;

    #[test]
    fn defaults_are_those_of_the_config_classes() {
        const FIXTURES: [&str; 7] = [
            "tiny-bart",
            "tiny-m2m100",
            "tiny-marian",
            "tiny-mbart",
            "tiny-mt5",
            "tiny-pegasus",
            "tiny-t5",
        ];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let read = |path: &str| -> Map<String, Value> {
            serde_json::from_slice(&std::fs::read(folder.join(path)).unwrap()).unwrap()
        };
        let defaults = read("published/defaults.json");
        let table = crate::files::weights::Weight {
            shape: vec![1, 1],
            values: vec![0.0],
        };
        let tensors = ["shared.weight", "lm_head.weight"];
        let tensors = tensors.map(|name| (name.to_owned(), table.clone()));
        let weights = Weights::of_tensors(tensors.into(), String::new());
        for fixture in FIXTURES {
            let fields = read(&format!("models/{fixture}/config.json"));
            let model_type = fields["model_type"].as_str().unwrap();
            let describe = |fields: &Map<String, Value>| {
                let config = ConfigFile::new("config.json", fields.clone());
                match t5::is_described_by(&config) {
                    true => t5::model(&config, &weights, [8, 8]),
                    false => model(&config, &weights, [8, 8]),
                }
                .map(|model| format!("{model:?}"))
            };
            for (key, default) in defaults[model_type].as_object().unwrap() {
                let mut without = fields.clone();
                without.remove(key);
                let mut with = without.clone();
                with.insert(key.clone(), default.clone());
                // Some configs are invalid without the key.
                let Ok(without) = describe(&without) else {
                    continue;
                };
                assert_eq!(
                    without,
                    describe(&with).unwrap_or_default(),
                    "{model_type}: {key}"
                );
            }
        }
    }
}
