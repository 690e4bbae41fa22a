//! The shape of an encoder, from its `config.json`.

use std::{collections::BTreeMap, path::Path};

use kivu_engine::kernel::LANES;

use super::distances::{Convolution, Distances};
use crate::{
    build::{
        config::{ConfigFile, check_heads},
        layers::Activation,
    },
    error::{Error, Result, quoted},
    pipeline::scores::ScoreFunction,
};

/// The `model_type`s that are supported.
pub(in crate::build) const MODEL_TYPES: [&str; 5] =
    ["bert", "distilbert", "roberta", "xlm-roberta", "deberta-v2"];

/// The end of the class names of models with a head for labels.
const CLASSIFIER: &str = "ForSequenceClassification";

/// The limit of `num_labels`, far above that of any text classifier.
const MAX_LABELS: usize = 1 << 16;

/// The properties of an encoder that pooling and truncation depend on, whether its weights are supported or not.
#[derive(Clone, Debug)]
pub(in crate::build) struct Facts {
    /// The class that the weights were trained as, or the model type if no class is named.
    pub(in crate::build) architecture: String,
    /// The width of a token's vector.
    pub(in crate::build) hidden: usize,
    /// The number of tokens that the position table has room for.
    pub(in crate::build) max_positions: usize,
}

/// The shape of an encoder.
#[derive(Debug)]
pub(in crate::build) struct EncoderConfig {
    pub(in crate::build) facts: Facts,
    pub(super) vocabulary: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) intermediate: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    /// Whether positions are added to words.
    pub(super) has_positions: bool,
    /// The id after which the positions of other tokens count (RoBERTa, after fairseq); they count from 0 if none.
    pub(super) padding: Option<i64>,
    /// The rows of the token type table; 0 if the model has none.
    pub(super) types: usize,
    pub(super) names: &'static Names,
    /// The head, in models that classify.
    pub(in crate::build) head: Option<Head>,
    /// The activation between the two layers of a head.
    pub(super) head_activation: Activation,
    /// The parts that only DeBERTa has.
    pub(super) disentangled: Option<Disentangled>,
}

/// Attention to distances, and a convolution, in DeBERTa.
#[derive(Debug)]
pub(super) struct Disentangled {
    /// The divisor of attention scores.
    pub(super) scale: f32,
    /// None in models that ignore distances.
    pub(super) distances: Option<Distances>,
    /// None in models without a convolution.
    pub(super) convolution: Option<Convolution>,
}

/// The head of a model that classifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::build) struct Head {
    /// The labels, by id.
    pub(in crate::build) labels: Vec<String>,
    /// The function that turns logits into scores.
    pub(in crate::build) function: ScoreFunction,
}

/// The names of a family's weights.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) prefix: &'static str,
    pub(super) layer: &'static str,
    pub(super) query: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    pub(super) attention_output: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) output_norm: &'static str,
    /// The head's layer between the first token's vector and the labels, and whether it is part of the body.
    pub(super) dense: (&'static str, bool),
    pub(super) labels: &'static str,
}

/// The table of word embeddings, in every family.
pub(super) const WORDS: &str = "embeddings.word_embeddings.weight";

const BERT: Names = Names {
    prefix: "bert.",
    layer: "encoder.layer.",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    output_norm: "output.LayerNorm",
    dense: ("pooler.dense", true),
    labels: "classifier",
};
const ROBERTA: Names =
    Names { prefix: "roberta.", dense: ("classifier.dense", false), labels: "classifier.out_proj", ..BERT };
const DISTILBERT: Names = Names {
    prefix: "distilbert.",
    layer: "transformer.layer.",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    output_norm: "output_layer_norm",
    dense: ("pre_classifier", false),
    labels: "classifier",
};
const DEBERTA: Names = Names {
    prefix: "deberta.",
    query: "attention.self.query_proj",
    key: "attention.self.key_proj",
    value: "attention.self.value_proj",
    dense: ("pooler.dense", false),
    ..BERT
};

impl Facts {
    pub(in crate::build) fn read(config: &ConfigFile) -> Result<Self> {
        let rows: usize = config.require("max_position_embeddings")?;
        // After RoBERTa, no token has the rows up to the padding's.
        let unusable = match config.model_type() {
            "roberta"
            | "xlm-roberta"
            | "xlm-roberta-xl"
            | "roberta-prelayernorm"
            | "camembert"
            | "mpnet"
            | "longformer"
            | "data2vec-text"
            | "luke" => rows_up_to(padding(config)?),
            _ => 0,
        };
        Ok(Self {
            architecture: config.architecture().to_owned(),
            hidden: config.require_any(&["hidden_size", "dim"])?,
            max_positions: rows.saturating_sub(unusable),
        })
    }
}

fn padding(config: &ConfigFile) -> Result<i64> {
    Ok(config.get("pad_token_id")?.unwrap_or(1))
}

fn rows_up_to(id: i64) -> usize {
    usize::try_from(id).unwrap_or(0).saturating_add(1)
}

impl EncoderConfig {
    /// Reads the `config.json` in `folder`; unsupported architectures are refused by name.
    pub(in crate::build) fn open(folder: &Path) -> Result<Self> {
        let config = ConfigFile::open(folder)?;
        Self::read(&config)
            .map_err(|error| Error::model_because(format!("cannot build from `{}`", folder.display()), error))
    }

    /// Whether the native engine has all parts of the graph.
    pub(super) fn suits_native_engine(&self) -> bool {
        let widths = [self.facts.hidden, self.intermediate];
        self.disentangled.is_none() && widths.iter().all(|width| width.is_multiple_of(LANES))
    }

    fn read(config: &ConfigFile) -> Result<Self> {
        let model_type = config.model_type();
        let is_deberta = model_type == "deberta-v2";
        let (names, default_types, head_activation) = match model_type {
            "bert" => (&BERT, 2, Activation::Tanh),
            "distilbert" => (&DISTILBERT, 0, Activation::Relu),
            "roberta" | "xlm-roberta" => (&ROBERTA, 1, Activation::Tanh),
            "deberta-v2" => (&DEBERTA, 0, activation(config, &["pooler_hidden_act"])?),
            _ => {
                return Err(Error::model(format!(
                    "expected a `model_type` among {}, but found `{model_type}` ({})",
                    quoted(&MODEL_TYPES),
                    config.architecture()
                )));
            }
        };
        let position_type: Option<String> = config.get("position_embedding_type")?;
        if let Some(found) = position_type.filter(|found| !is_deberta && found != "absolute") {
            return Err(Error::model(format!(
                "expected `position_embedding_type` `absolute`, but found `{found}`"
            )));
        }
        let facts = Facts::read(config)?;
        let heads = config.require_any(&["num_attention_heads", "n_heads"])?;
        check_heads(facts.hidden, heads)?;
        Ok(Self {
            vocabulary: config.require("vocab_size")?,
            layers: config.require_any(&["num_hidden_layers", "n_layers"])?,
            heads,
            intermediate: config.require_any(&["intermediate_size", "hidden_dim"])?,
            epsilon: config.get("layer_norm_eps")?.unwrap_or(if is_deberta { 1e-7 } else { 1e-12 }),
            activation: activation(config, &["hidden_act", "activation"])?,
            has_positions: !is_deberta || config.get("position_biased_input")?.unwrap_or(true),
            padding: std::ptr::eq(names, &ROBERTA).then(|| padding(config)).transpose()?,
            types: config.get("type_vocab_size")?.unwrap_or(default_types),
            names,
            head: Head::read(config)?,
            head_activation,
            disentangled: is_deberta.then(|| Disentangled::read(config, &facts, heads)).transpose()?,
            facts,
        })
    }

    pub(super) fn position_rows(&self) -> usize {
        self.facts.max_positions.saturating_add(self.padding.map_or(0, rows_up_to))
    }
}

fn activation(config: &ConfigFile, fields: &[&str]) -> Result<Activation> {
    Activation::named(config.get_any::<String>(fields)?.as_deref().unwrap_or("gelu"))
}

impl Head {
    /// A head whose labels have no names.
    pub(super) fn unnamed(labels: usize) -> Self {
        let labels = (0..labels).map(|id| format!("LABEL_{id}")).collect();
        Self { labels, function: ScoreFunction::Softmax }
    }

    /// The head that a config describes, as `transformers` reads it; none if its class has none.
    fn read(config: &ConfigFile) -> Result<Option<Self>> {
        if !config.architecture().ends_with(CLASSIFIER) {
            return Ok(None);
        }
        let mut head = Self::unnamed(0);
        if let Some(labels) = config.get::<BTreeMap<usize, String>>("id2label")? {
            if !labels.keys().copied().eq(0..labels.len()) {
                return Err(Error::model(format!(
                    "expected `id2label` with ids from 0 on, but found {:?}",
                    labels.keys().collect::<Vec<_>>()
                )));
            }
            head.labels = labels.into_values().collect();
        } else {
            let labels = config.get("num_labels")?.unwrap_or(2);
            if labels > MAX_LABELS {
                return Err(Error::model(format!(
                    "expected `num_labels` of at most {MAX_LABELS}, but found {labels}"
                )));
            }
            head = Self::unnamed(labels);
        }
        head.function = match config.get::<String>("problem_type")?.as_deref() {
            Some("regression") => ScoreFunction::None,
            Some("multi_label_classification") => ScoreFunction::Sigmoid,
            _ if head.labels.len() == 1 => ScoreFunction::Sigmoid,
            _ => ScoreFunction::Softmax,
        };
        Ok(Some(head))
    }
}

impl Disentangled {
    fn read(config: &ConfigFile, facts: &Facts, heads: usize) -> Result<Self> {
        let width = facts.hidden / heads;
        let sizes = [
            ("embedding_size", facts.hidden),
            ("attention_head_size", width),
            ("pooler_hidden_size", facts.hidden),
        ];
        for (name, expected) in sizes {
            if let Some(found) = config.get(name)?.filter(|found: &usize| *found != expected) {
                return Err(Error::model(format!("expected `{name}` {expected}, but found {found}")));
            }
        }
        let (distances, terms) = Distances::read(config, facts.max_positions)?;
        Ok(Self {
            // The model has a term for content and one for each use of distances.
            scale: ((width * (1 + terms)) as f32).sqrt(),
            distances,
            convolution: Convolution::read(config)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A config like that of DeBERTa-v3, except for one field.
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
        let config = EncoderConfig::read(&ConfigFile::new("config.json", fields))?;
        Ok(config.disentangled.unwrap())
    }

    #[test]
    fn terms_are_a_list_or_one_string() {
        let listed = config("pos_att_type", json!(["p2c", "c2p"])).unwrap();
        let expected = Distances {
            has_keys: true,
            has_queries: true,
            buckets: Some(256),
            max: 512,
            is_normalised: true,
            shares_projections: true,
        };
        assert_eq!(listed.distances, Some(expected));
        assert_eq!(config("pos_att_type", json!("c2p|P2C")).unwrap().distances, listed.distances);
        assert_eq!(config("pos_att_type", json!(null)).unwrap().distances, None);
        // A model that ignores distances still divides by the number of terms.
        let without = config("relative_attention", json!(false)).unwrap();
        assert_eq!((without.distances, without.scale), (None, listed.scale));
    }

    #[test]
    fn unsupported_fields_of_deberta_are_refused_by_name() {
        let refusals = [
            config("embedding_size", json!(128)),
            config("attention_head_size", json!(64)),
            config("conv_kernel_size", json!(4)),
            config("position_buckets", json!(1)),
            config("pooler_hidden_act", json!("mish")),
        ];
        let refusals = refusals.map(|refusal| refusal.unwrap_err().to_string()).join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `embedding_size` 32, but found 128
        expected `attention_head_size` 8, but found 64
        expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found 4 and 1
        expected distances that go beyond half of `position_buckets`, but found 512 distances and 1 buckets
        expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, `swish`, `tanh`, but found `mish`
        ");
    }
}
