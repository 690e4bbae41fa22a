//! What `config.json` says of DeBERTa.

use std::path::Path;

use serde::Deserialize;

use super::distances::Distances;
use crate::{
    build::{
        encoder::{Facts, Head, RawConfig, read_config, require_heads_fit, required},
        layers::Activation,
    },
    error::{Error, Result},
};

/// The fields of `config.json` that no other family has.
#[derive(Debug, Deserialize)]
struct RawDeberta {
    embedding_size: Option<usize>,
    attention_head_size: Option<usize>,
    relative_attention: Option<bool>,
    pos_att_type: Option<RawTerms>,
    share_att_key: Option<bool>,
    max_relative_positions: Option<i64>,
    position_buckets: Option<i64>,
    norm_rel_ebd: Option<String>,
    position_biased_input: Option<bool>,
    conv_kernel_size: Option<usize>,
    conv_groups: Option<usize>,
    conv_act: Option<String>,
    pooler_hidden_size: Option<usize>,
    pooler_hidden_act: Option<String>,
}

/// What scores are made of besides content: `["c2p", "p2c"]`, or `"c2p|p2c"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawTerms {
    Joined(String),
    Listed(Vec<String>),
}

impl RawTerms {
    fn include(&self, term: &str) -> bool {
        match self {
            Self::Joined(terms) => includes(terms, term),
            Self::Listed(terms) => terms.iter().any(|other| other == term),
        }
    }
}

/// Whether `words`, with bars between them, has `word` among them.
fn includes(words: &str, word: &str) -> bool {
    words.split('|').any(|other| other.trim().eq_ignore_ascii_case(word))
}

impl RawDeberta {
    fn has_term(&self, term: &str) -> bool {
        self.pos_att_type.as_ref().is_some_and(|terms| terms.include(term))
    }

    /// What attention makes of distances; nothing in a model that does not look at them.
    fn distances(&self, positions: usize) -> Result<Option<Distances>> {
        let looks = self.relative_attention.unwrap_or(false);
        let distances = Distances {
            has_keys: looks && self.has_term("c2p"),
            has_queries: looks && self.has_term("p2c"),
            buckets: self.position_buckets.filter(|buckets| *buckets > 0),
            farthest: self.max_relative_positions.filter(|most| *most >= 1).unwrap_or(positions as i64),
            is_normalised: self.norm_rel_ebd.as_ref().is_some_and(|kinds| includes(kinds, "layer_norm")),
            shares_projections: self.share_att_key.unwrap_or(false),
        };
        if !distances.has_keys && !distances.has_queries {
            return Ok(None);
        }
        let Distances { buckets, farthest, .. } = distances;
        let near = buckets.map_or(1, |buckets| buckets / 2);
        if near < 1 || farthest <= near + i64::from(buckets.is_some()) {
            return Err(Error::model(format!(
                "expected distances that go beyond half of `position_buckets`, but found {farthest} distances \
                 and {} buckets",
                buckets.unwrap_or(0)
            )));
        }
        Ok(Some(distances))
    }

    fn convolution(&self) -> Result<Option<Convolution>> {
        let (width, groups) = (self.conv_kernel_size.unwrap_or(0), self.conv_groups.unwrap_or(1));
        if width == 0 {
            return Ok(None);
        }
        if width.is_multiple_of(2) || groups == 0 {
            return Err(Error::model(format!(
                "expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found {width} and \
                 {groups}"
            )));
        }
        let activation = Activation::of_name(self.conv_act.as_deref().unwrap_or("tanh"))?;
        Ok(Some(Convolution { width, groups, activation }))
    }
}

/// The shape of an encoder.
#[derive(Debug)]
pub(in crate::build) struct DebertaConfig {
    /// What it has in common with any other.
    pub(in crate::build) facts: Facts,
    pub(super) vocabulary: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) intermediate: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    /// What scores are divided by.
    pub(super) scale: f32,
    /// Whether positions are added to words.
    pub(super) has_positions: bool,
    /// The rows of the table that tells a pair's texts apart; none where the model has no such table.
    pub(super) types: usize,
    pub(super) distances: Option<Distances>,
    pub(super) convolution: Option<Convolution>,
    pub(super) pooler_activation: Activation,
    /// What the model makes of its tokens' vectors, if it has a head.
    pub(in crate::build) head: Option<Head>,
}

/// A convolution over neighbouring tokens, beside the first layer.
#[derive(Debug)]
pub(super) struct Convolution {
    pub(super) width: usize,
    pub(super) groups: usize,
    pub(super) activation: Activation,
}

impl DebertaConfig {
    /// Reads the `config.json` in `folder`; what is not supported is refused by name.
    pub(in crate::build) fn open(folder: &Path) -> Result<Self> {
        let raw: RawConfig = read_config(folder)?;
        let own: RawDeberta = read_config(folder)?;
        Self::from_raw(&raw, &own)
            .map_err(|error| Error::model_because(format!("cannot build from `{}`", folder.display()), error))
    }

    fn from_raw(raw: &RawConfig, own: &RawDeberta) -> Result<Self> {
        let facts = raw.facts()?;
        let heads = required(raw.num_attention_heads, "num_attention_heads")?;
        require_heads_fit(facts.hidden, heads)?;
        let width = facts.hidden / heads;
        require_size("embedding_size", own.embedding_size, facts.hidden)?;
        require_size("attention_head_size", own.attention_head_size, width)?;
        require_size("pooler_hidden_size", own.pooler_hidden_size, facts.hidden)?;
        // A term counts even in a model that does not look at distances.
        let terms = 1 + usize::from(own.has_term("c2p")) + usize::from(own.has_term("p2c"));
        Ok(Self {
            vocabulary: required(raw.vocab_size, "vocab_size")?,
            layers: required(raw.num_hidden_layers, "num_hidden_layers")?,
            heads,
            intermediate: required(raw.intermediate_size, "intermediate_size")?,
            epsilon: raw.layer_norm_eps.unwrap_or(1e-7),
            activation: Activation::of_name(raw.hidden_act.as_deref().unwrap_or("gelu"))?,
            scale: ((width * terms) as f32).sqrt(),
            has_positions: own.position_biased_input.unwrap_or(true),
            types: raw.type_vocab_size.unwrap_or(0),
            distances: own.distances(facts.max_positions)?,
            convolution: own.convolution()?,
            pooler_activation: Activation::of_name(own.pooler_hidden_act.as_deref().unwrap_or("gelu"))?,
            head: Head::of_class(raw)?,
            facts,
        })
    }

    /// The same body under a head for labels, which an adapter brings.
    pub(in crate::build) fn with_head(mut self, labels: usize) -> Self {
        if self.head.is_none() {
            self.head = Some(Head::unnamed(labels));
        }
        self
    }
}

/// Refuses a size that could be another's and is not.
fn require_size(name: &str, found: Option<usize>, expected: usize) -> Result<()> {
    match found {
        Some(found) if found != expected => {
            Err(Error::model(format!("expected `{name}` {expected}, but found {found}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::build::deberta::distances::tests::distances;

    /// A config like that of DeBERTa-v3, but for one field.
    fn config(name: &str, value: serde_json::Value) -> Result<DebertaConfig> {
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
        let raw: RawConfig = serde_json::from_value(config.clone()).unwrap();
        DebertaConfig::from_raw(&raw, &serde_json::from_value(config).unwrap())
    }

    #[test]
    fn terms_are_a_list_or_one_string() {
        let listed = config("pos_att_type", json!(["p2c", "c2p"])).unwrap();
        assert_eq!(listed.distances, Some(distances(Some(256), 512)));
        assert_eq!(config("pos_att_type", json!("c2p|P2C")).unwrap().distances, listed.distances);
        assert_eq!(config("pos_att_type", json!(null)).unwrap().distances, None);
        let blind = config("relative_attention", json!(false)).unwrap();
        assert_eq!((blind.distances, blind.scale), (None, listed.scale));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
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
