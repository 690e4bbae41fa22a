//! The BERT family: BERT, ERNIE, RoBERTa, XLM-RoBERTa, CamemBERT, data2vec, ELECTRA, DistilBERT, DeBERTa and MPNet.

use super::fields::{activation, epsilon, expect, expect_absolute_positions, positions};
use crate::{
    encoder::{
        attention::distances::{Convolution, Deberta, Distances},
        config::{
            Bias, Details, Disentangled, EmbeddingProjection, EncoderConfig, FeedForward, Gate,
            HeadInput, Heads, Positions,
        },
    },
    files::config::ConfigFile,
    onnx::layers::{Activation, Buckets},
};
use kivu::Result;

/// Number of distance buckets in MPNet. `transformers` ignores the number in the config.
const BUCKETS: usize = 32;
/// Distance from which MPNet uses a single bucket. The config does not name it.
const FARTHEST: usize = 128;

/// Width of ELECTRA's embeddings, if the config does not name it.
const ELECTRA_WIDTH: usize = 128;

/// Members with layers, or fields, of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    DistilBert,
    Electra,
    Ernie,
    Mpnet,
    Deberta(Deberta),
}

impl Kind {
    fn of(model_type: &str) -> Self {
        match model_type {
            "distilbert" => Self::DistilBert,
            "electra" => Self::Electra,
            "ernie" => Self::Ernie,
            "mpnet" => Self::Mpnet,
            "deberta" => Self::Deberta(Deberta::First),
            "deberta-v2" => Self::Deberta(Deberta::Later),
            _ => Self::Plain,
        }
    }
}

/// Reads a family member's `config.json`.
pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let names = config.model_type();
    let kind = Kind::of(names);
    let head_activation = match kind {
        Kind::DistilBert => Activation::Relu,
        Kind::Electra => Activation::Gelu,
        Kind::Deberta(_) => activation(config, &["pooler_hidden_act"])?,
        _ => Activation::Tanh,
    };
    // A decoder's tokens attend only to earlier tokens.
    expect(config, "is_decoder", &false)?;
    match kind {
        Kind::Deberta(_) => {}
        Kind::DistilBert | Kind::Mpnet => {
            expect(config, "position_embedding_type", &"absolute".to_owned())?
        }
        _ => expect_absolute_positions(config)?,
    }
    let [width_field, activation_field] = match kind {
        Kind::DistilBert => ["hidden_dim", "activation"],
        _ => ["intermediate_size", "hidden_act"],
    };
    let feed_forward = FeedForward {
        width: config.require_size(width_field)?,
        activation: activation(config, &[activation_field])?,
        gate: Gate::None,
    };
    let shared = EncoderConfig::new(config, names, Heads::read(config)?, feed_forward)?;
    let bias = match kind {
        Kind::Deberta(version) => Bias::Disentangled(Disentangled::read(config, &shared, version)?),
        Kind::Mpnet => {
            expect(config, "relative_attention_num_buckets", &BUCKETS)?;
            let buckets = Buckets {
                side: BUCKETS / 2,
                farthest: FARTHEST,
            };
            Bias::Relative {
                table: "encoder.relative_attention_bias.weight",
                buckets,
            }
        }
        _ => Bias::None,
    };
    Ok(EncoderConfig {
        epsilon: match kind {
            Kind::DistilBert => shared.epsilon,
            Kind::Deberta { .. } => config.epsilon(&["layer_norm_eps"], 1e-7)?,
            _ => epsilon(config)?,
        },
        positions: match kind {
            Kind::Deberta { .. } if !config.is_set_or("position_biased_input", true)? => {
                Positions::None
            }
            _ => positions(config)?,
        },
        types: match kind {
            Kind::DistilBert | Kind::Mpnet => 0,
            Kind::Deberta(_) => config.get("type_vocab_size")?.unwrap_or(0),
            _ => config.get_size("type_vocab_size")?.unwrap_or(2),
        },
        bias,
        head_input: HeadInput::first(head_activation),
        details: details(config, kind, &shared)?,
        ..shared
    })
}

fn details(config: &ConfigFile, kind: Kind, shared: &EncoderConfig) -> Result<Details> {
    let is_electra = match kind {
        Kind::Electra => true,
        Kind::Deberta { .. } => false,
        Kind::Ernie if config.is_set("use_task_id")? => {
            let task_types = config.get_size("task_type_vocab_size")?.unwrap_or(3);
            return Ok(Details {
                task_types,
                ..shared.details
            });
        }
        _ => return Ok(shared.details),
    };
    let default = if is_electra {
        ELECTRA_WIDTH
    } else {
        shared.encoder_limits.hidden
    };
    let width = config.get_size("embedding_size")?.unwrap_or(default);
    let projection = EmbeddingProjection {
        name: if is_electra {
            "embeddings_project"
        } else {
            "embeddings.embed_proj"
        },
        width,
        has_bias: is_electra,
        is_normalized_before: is_electra,
        joined_words: None,
    };
    Ok(Details {
        projection: (width != shared.encoder_limits.hidden).then_some(projection),
        ..shared.details
    })
}

impl Disentangled {
    fn read(config: &ConfigFile, shared: &EncoderConfig, version: Deberta) -> Result<Self> {
        let EncoderConfig {
            encoder_limits,
            heads: Heads { width, .. },
            ..
        } = shared;
        expect(config, "attention_head_size", width)?;
        expect(config, "pooler_hidden_size", &encoder_limits.hidden)?;
        let (distances, terms) = Distances::read(config, encoder_limits.max_positions, version)?;
        Ok(Self {
            // The model has one term for content and one for each use of distances.
            scale: ((width * (1 + terms)) as f32).sqrt(),
            distances,
            convolution: match version {
                Deberta::First => None,
                Deberta::Later => Convolution::read(config)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// DeBERTa-v3's config with one field changed.
    fn config(name: &str, value: serde_json::Value) -> Result<Disentangled> {
        let mut config = json!({
            "architectures": ["DebertaV2ForSequenceClassification"],
            "model_type": "deberta-v2",
            "vocab_size": 288,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 512,
            "max_relative_positions": -1,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": false,
            "position_buckets": 256,
            "relative_attention": true,
            "share_att_key": true,
        });
        config[name] = value;
        let fields = config.as_object().cloned().unwrap();
        let config = read(&ConfigFile::new("config.json", fields))?;
        match config.bias {
            Bias::Disentangled(settings) => Ok(settings),
            other => panic!("expected disentangled attention, but found {other:?}"),
        }
    }

    #[test]
    fn terms_are_a_list_or_one_string() {
        let listed = config("pos_att_type", json!(["p2c", "c2p"])).unwrap();
        let expected = Distances {
            has_keys: true,
            has_queries: true,
            buckets: Some(256),
            max: 512,
            is_normalized: true,
            shares_projections: true,
        };
        assert_eq!(listed.distances, Some(expected));
        assert_eq!(
            config("pos_att_type", json!("c2p|P2C")).unwrap().distances,
            listed.distances
        );
        assert_eq!(config("pos_att_type", json!(null)).unwrap().distances, None);
        // A model that ignores distances still divides by the number of terms.
        let without = config("relative_attention", json!(false)).unwrap();
        assert_eq!((without.distances, without.scale), (None, listed.scale));
    }

    #[test]
    fn unsupported_fields_of_deberta_are_refused_by_name() {
        let refusals = [
            config("attention_head_size", json!(64)),
            config("conv_kernel_size", json!(4)),
            config("position_buckets", json!(1)),
            config("pooler_hidden_act", json!("mish")),
        ];
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `attention_head_size` 8, but found 64
        expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found 4 and 1
        expected distances that go beyond half of `position_buckets`, but found 512 distances and 1 buckets
        expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, `swish`, `tanh`, but found `mish`
        ");
    }
}
