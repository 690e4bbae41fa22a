//! Encoders after DeBERTa-v2 and -v3, from `config.json` and weights to a graph.
//!
//! Their attention looks at distances. To the product of a token's query with another's key come two more: of the
//! query with a key that stands for how far apart the two are, and of the key with a query that does. These
//! keys and queries are the same for every text, and so they are constants here; distances far off share
//! them in buckets.

use std::path::Path;

use serde::Deserialize;

use super::{
    encoder::{Facts, Head, RawConfig, finish, read_config, require_heads_fit, required},
    layers::{Activation, Layers, MASKED, WORDS},
    onnx::{
        GraphBuilder, Value, float, integer, integers,
        proto::{ModelProto, data_type},
    },
    weights::Weights,
};
use crate::{
    error::{Error, Result},
    repository::manifest::Precision,
};

/// The family's `model_type`.
pub(super) const MODEL_TYPE: &str = "deberta-v2";
/// The prefix under which a model with a head stores its body, and a weight to tell by whether it does.
pub(super) const PREFIX: (&str, &str) = ("deberta.", WORDS);

/// The most tokens that are multiplied with the same rows of distances.
///
/// All tokens of a text need twice as many rows together as each of them alone. At 768 values a token, blocks of
/// 64 take 4 % off a text of 256 tokens and 8 % off one of 512; the shortest texts are a single block.
const BLOCK: usize = 64;

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
                "expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found {width} and {groups}"
            )));
        }
        let activation = Activation::of_name(self.conv_act.as_deref().unwrap_or("tanh"))?;
        Ok(Some(Convolution { width, groups, activation }))
    }
}

/// The shape of an encoder.
#[derive(Debug)]
pub(super) struct DebertaConfig {
    /// What it has in common with any other.
    pub(super) facts: Facts,
    vocabulary: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
    epsilon: f32,
    activation: Activation,
    /// What scores are divided by.
    scale: f32,
    /// Whether positions are added to words.
    has_positions: bool,
    /// The rows of the table that tells a pair's texts apart; none where the model has no such table.
    types: usize,
    distances: Option<Distances>,
    convolution: Option<Convolution>,
    pooler_activation: Activation,
    /// What the model makes of its tokens' vectors, if it has a head.
    pub(super) head: Option<Head>,
}

/// What attention makes of the distance from one token back to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Distances {
    /// Whether distances have keys, for the queries of tokens (content to position).
    has_keys: bool,
    /// Whether distances have queries, for the keys of tokens (position to content).
    has_queries: bool,
    /// How many rows each direction has, where far distances share them; each has its own otherwise.
    buckets: Option<i64>,
    /// From here on, distances are all the same.
    farthest: i64,
    /// Whether the embeddings of distances are normalised.
    is_normalised: bool,
    /// Whether their keys and queries are made by the projections of tokens.
    shares_projections: bool,
}

/// A convolution over neighbouring tokens, beside the first layer.
#[derive(Debug)]
struct Convolution {
    width: usize,
    groups: usize,
    activation: Activation,
}

/// What is made of the embedding of a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Keys,
    Queries,
}

/// Which way the rows of a table of distances go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// From tokens far behind to tokens far ahead of the other, as [`Distances::row`] counts.
    Rising,
    Falling,
}

impl DebertaConfig {
    /// Reads the `config.json` in `folder`; what is not supported is refused by name.
    pub(super) fn open(folder: &Path) -> Result<Self> {
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
    pub(super) fn with_head(mut self, labels: usize) -> Self {
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

impl Distances {
    /// How many rows each direction has.
    fn span(&self) -> i64 {
        self.buckets.unwrap_or(self.farthest)
    }

    /// The bucket of a distance: near ones have one each, farther ones share them by their logarithm.
    fn bucket(&self, distance: i64) -> i64 {
        let Some(buckets) = self.buckets else { return distance };
        let middle = buckets / 2;
        if distance.abs() <= middle {
            return distance;
        }
        let times = |distance: i64| (distance as f64 / middle as f64).ln();
        let share = times(distance.abs()) / times(self.farthest - 1);
        distance.signum() * ((share * (middle - 1) as f64).ceil() as i64 + middle)
    }

    /// The row of a distance in a table of [`Order::Rising`].
    fn row(&self, distance: i64) -> i64 {
        self.bucket(distance).clamp(-self.span(), self.span()) + self.span()
    }

    /// The rows of the model's own table, which has none for the farthest bucket ahead, in another table's order.
    fn order(&self, order: Order) -> Vec<usize> {
        let most = 2 * self.span() as usize;
        let rows = (0..=most).map(|row| row.min(most - 1));
        match order {
            Order::Rising => rows.collect(),
            Order::Falling => rows.rev().collect(),
        }
    }

    fn projection(&self, side: Side) -> &'static str {
        match (side, self.shares_projections) {
            (Side::Keys, true) => "key_proj",
            (Side::Keys, false) => "pos_key_proj",
            (Side::Queries, true) => "query_proj",
            (Side::Queries, false) => "pos_query_proj",
        }
    }

    /// The embeddings of distances, one a row.
    fn embeddings(&self, weights: &Weights, [hidden, epsilon]: [f32; 2]) -> Result<Vec<f32>> {
        let hidden = hidden as usize;
        let rows = 2 * self.span() as usize;
        let mut rows = weights.take("encoder.rel_embeddings.weight", &[rows, hidden])?.values.clone();
        if self.is_normalised {
            let gain = weights.take("encoder.LayerNorm.weight", &[hidden])?;
            let bias = weights.take("encoder.LayerNorm.bias", &[hidden])?;
            normalise(&mut rows, &gain.values, &bias.values, epsilon);
        }
        Ok(rows)
    }
}
