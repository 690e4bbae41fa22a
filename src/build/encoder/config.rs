//! What `config.json` says of an encoder, under all the names that its fields go by.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    build::layers::Activation,
    error::{Error, Result, quoted},
    pipeline::classification::ScoreFunction,
};

/// How the class of a model with a head for labels ends.
const CLASSIFIER: &str = "ForSequenceClassification";

/// The `model_type`s that are supported; the last has a graph of its own, in `deberta.rs`.
pub const MODEL_TYPES: [&str; 5] = ["bert", "distilbert", "roberta", "xlm-roberta", "deberta-v2"];

/// More labels than any classifier of texts has.
const MOST_LABELS: usize = 1 << 16;

/// The weight by which a body is known, with or without its prefix.
pub(in crate::build) const WORDS: &str = "embeddings.word_embeddings.weight";

/// The fields of `config.json` that matter, under all the names that they go by.
#[derive(Debug, Deserialize)]
pub(in crate::build) struct RawConfig {
    pub(in crate::build) model_type: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(alias = "dim")]
    hidden_size: Option<usize>,
    #[serde(alias = "n_layers")]
    pub(in crate::build) num_hidden_layers: Option<usize>,
    #[serde(alias = "n_heads")]
    pub(in crate::build) num_attention_heads: Option<usize>,
    #[serde(alias = "hidden_dim")]
    pub(in crate::build) intermediate_size: Option<usize>,
    #[serde(alias = "activation")]
    pub(in crate::build) hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    pub(in crate::build) layer_norm_eps: Option<f32>,
    pub(in crate::build) vocab_size: Option<usize>,
    pub(in crate::build) type_vocab_size: Option<usize>,
    pad_token_id: Option<i64>,
    position_embedding_type: Option<String>,
    id2label: Option<BTreeMap<usize, String>>,
    num_labels: Option<usize>,
    problem_type: Option<String>,
}

/// The shape of an encoder.
#[derive(Debug)]
pub struct EncoderConfig {
    /// What it has in common with any other.
    pub facts: Facts,
    pub(super) vocabulary: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) intermediate: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) positions: Positions,
    /// The rows of the table that tells a pair's texts apart; none where the model has no such table.
    pub(super) types: usize,
    pub(super) names: &'static Names,
    /// What the model makes of its tokens' vectors, if it has a head.
    pub head: Option<Head>,
}

/// The head of a model that classifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The labels, by their ids.
    pub labels: Vec<String>,
    /// What makes scores of the logits.
    pub function: ScoreFunction,
}

impl Head {
    /// A head that says no more of its labels than how many they are.
    pub(in crate::build) fn unnamed(labels: usize) -> Self {
        Self { labels: Self::names(labels), function: ScoreFunction::Softmax }
    }

    /// The head that a config describes, as `transformers` reads it; none where its class has none.
    pub(in crate::build) fn of_class(raw: &RawConfig) -> Result<Option<Self>> {
        raw.architecture().ends_with(CLASSIFIER).then(|| Self::from_raw(raw)).transpose()
    }

    fn from_raw(raw: &RawConfig) -> Result<Self> {
        let labels: Vec<String> = match &raw.id2label {
            Some(labels) if labels.keys().copied().eq(0..labels.len()) => labels.values().cloned().collect(),
            Some(labels) => {
                return Err(Error::model(format!(
                    "expected `id2label` with ids from 0 on, but found {:?}",
                    labels.keys().collect::<Vec<_>>()
                )));
            }
            None => match raw.num_labels.unwrap_or(2) {
                labels if labels <= MOST_LABELS => return Ok(Self::with_function(raw, Self::names(labels))),
                labels => {
                    return Err(Error::model(format!(
                        "expected `num_labels` of at most {MOST_LABELS}, but found {labels}"
                    )));
                }
            },
        };
        Ok(Self::with_function(raw, labels))
    }

    fn with_function(raw: &RawConfig, labels: Vec<String>) -> Self {
        let function = match raw.problem_type.as_deref() {
            Some("regression") => ScoreFunction::None,
            Some("multi_label_classification") => ScoreFunction::Sigmoid,
            _ if labels.len() == 1 => ScoreFunction::Sigmoid,
            _ => ScoreFunction::Softmax,
        };
        Self { labels, function }
    }

    /// The names of labels that have none.
    fn names(labels: usize) -> Vec<String> {
        (0..labels).map(|id| format!("LABEL_{id}")).collect()
    }
}

/// How a token's position is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Positions {
    /// From 0, whatever the token.
    FromZero,
    /// Tokens that are not padding count on from the padding's id (RoBERTa, after fairseq).
    AfterPadding(i64),
}

/// What a family calls its weights.
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
    /// The dense layer between the first token's vector and the labels: its name, whether it is part of the
    /// body, and what follows it.
    pub(super) dense: (&'static str, bool, &'static str),
    pub(super) labels: &'static str,
}

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
    dense: ("pooler.dense", true, "Tanh"),
    labels: "classifier",
};
const ROBERTA: Names = Names {
    prefix: "roberta.",
    dense: ("classifier.dense", false, "Tanh"),
    labels: "classifier.out_proj",
    ..BERT
};
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
    dense: ("pre_classifier", false, "Relu"),
    labels: "classifier",
};

/// The facts that pooling and truncation need of any encoder, supported here or not.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The class that the weights were made with, or the model type where none is named.
    pub architecture: String,
    /// The width of a token's vector.
    pub hidden: usize,
    /// The most tokens that the position table has room for.
    pub max_positions: usize,
}

/// What the `config.json` in `folder` says of the fields of `T`.
pub(in crate::build) fn read_config<T: DeserializeOwned>(folder: &Path) -> Result<T> {
    let path = folder.join("config.json");
    let text = std::fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => {
            Error::model(format!("expected a model in `{}`, but found no `config.json`", folder.display()))
        }
        _ => Error::Io { action: format!("cannot read `{}`", path.display()), source },
    })?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::model_because(format!("cannot read `{}`", path.display()), error))
}

impl RawConfig {
    fn architecture(&self) -> String {
        self.architectures.first().or(self.model_type.as_ref()).cloned().unwrap_or_default()
    }

    /// The position table's rows that no token ever gets: up to that of the padding, in models after RoBERTa.
    fn unusable_positions(&self) -> usize {
        match self.model_type.as_deref() {
            Some(
                "roberta"
                | "xlm-roberta"
                | "xlm-roberta-xl"
                | "roberta-prelayernorm"
                | "camembert"
                | "mpnet"
                | "longformer"
                | "data2vec-text"
                | "luke",
            ) => usize::try_from(self.pad_token_id.unwrap_or(1)).unwrap_or(0).saturating_add(1),
            _ => 0,
        }
    }

    pub(in crate::build) fn facts(&self) -> Result<Facts> {
        let table = required(self.max_position_embeddings, "max_position_embeddings")?;
        Ok(Facts {
            architecture: self.architecture(),
            hidden: required(self.hidden_size, "hidden_size")?,
            max_positions: table.saturating_sub(self.unusable_positions()),
        })
    }
}

impl Facts {
    /// Reads them from the `config.json` in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        read_config::<RawConfig>(folder)?.facts()
    }
}

impl EncoderConfig {
    /// Reads the `config.json` in `folder`; architectures that are not supported are refused by name.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::from_raw(read_config(folder)?)
            .map_err(|error| Error::model_because(format!("cannot build from `{}`", folder.display()), error))
    }

    fn from_raw(raw: RawConfig) -> Result<Self> {
        let facts = raw.facts();
        let architecture = raw.architecture();
        let head = Head::of_class(&raw);
        let model_type = raw.model_type.unwrap_or_default();
        if !MODEL_TYPES.contains(&model_type.as_str()) {
            return Err(Error::model(format!(
                "expected a `model_type` among {}, but found `{model_type}` ({architecture})",
                quoted(&MODEL_TYPES)
            )));
        }
        if let Some(kind) = raw.position_embedding_type.filter(|kind| kind != "absolute") {
            return Err(Error::model(format!(
                "expected `position_embedding_type` `absolute`, but found `{kind}`"
            )));
        }
        let facts = facts?;
        let (names, positions, types) = match model_type.as_str() {
            "distilbert" => (&DISTILBERT, Positions::FromZero, 0),
            "bert" => (&BERT, Positions::FromZero, raw.type_vocab_size.unwrap_or(2)),
            "roberta" | "xlm-roberta" => {
                let padding = raw.pad_token_id.unwrap_or(1);
                (&ROBERTA, Positions::AfterPadding(padding), raw.type_vocab_size.unwrap_or(1))
            }
            other => {
                return Err(Error::model(format!(
                    "expected a model of the BERT family, but found `{other}`"
                )));
            }
        };
        let config = Self {
            facts,
            vocabulary: required(raw.vocab_size, "vocab_size")?,
            layers: required(raw.num_hidden_layers, "num_hidden_layers")?,
            heads: required(raw.num_attention_heads, "num_attention_heads")?,
            intermediate: required(raw.intermediate_size, "intermediate_size")?,
            epsilon: raw.layer_norm_eps.unwrap_or(1e-12),
            activation: Activation::of_name(raw.hidden_act.as_deref().unwrap_or("gelu"))?,
            positions,
            types,
            names,
            head: head?,
        };
        require_heads_fit(config.facts.hidden, config.heads)?;
        Ok(config)
    }

    /// The same body under a head for labels, which an adapter brings.
    pub fn with_head(mut self, labels: usize) -> Self {
        if self.head.is_none() {
            self.head = Some(Head::unnamed(labels));
        }
        self
    }

    /// The prefix under which a model with a head stores its body, and a weight to tell by whether it does.
    pub fn prefix(&self) -> (&'static str, &'static str) {
        (self.names.prefix, WORDS)
    }

    pub(super) fn position_rows(&self) -> usize {
        match self.positions {
            Positions::FromZero => self.facts.max_positions,
            Positions::AfterPadding(padding) => {
                let unusable = usize::try_from(padding).unwrap_or(0).saturating_add(1);
                self.facts.max_positions.saturating_add(unusable)
            }
        }
    }
}

/// Refuses heads that do not share a token's vector evenly.
pub(in crate::build) fn require_heads_fit(hidden: usize, heads: usize) -> Result<()> {
    if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
        return Err(Error::model(format!(
            "expected `hidden_size` to be a multiple of `num_attention_heads`, but found {hidden} and {heads}"
        )));
    }
    Ok(())
}

/// The value of a field that a model cannot do without.
pub(in crate::build) fn required<T>(value: Option<T>, name: &str) -> Result<T> {
    value.ok_or_else(|| Error::model(format!("expected `{name}` in `config.json`, but found none")))
}
