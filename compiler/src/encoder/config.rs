//! The description of an encoder: what its layers consist of, and the names of its weights. Readers of `config.json` are in
//! `families`.

use std::collections::BTreeMap;

use kivu_engine::kernel::LANES;

use super::distances::{Convolution, Distances};
use crate::{
    config::ConfigFile,
    layers::{Activation, Attention, Buckets, Distance, NormKind, Projection, Reach, Rotary},
};
use kivu::{
    error::{Error, Result},
    pipeline::scores::ScoreFunction,
};

/// The ends of the class names of models with a head for labels.
const CLASSIFIERS: [(&str, HeadKind); 2] =
    [("ForSequenceClassification", HeadKind::Text), ("ForTokenClassification", HeadKind::Tokens)];

/// The limit of `num_labels`, far above that of any text classifier.
const MAX_LABELS: usize = 1 << 16;

/// Longer texts are computed in blocks of queries, in ONNX Runtime.
const MAX_TOKENS_AT_ONCE: usize = 1024;

/// The properties of an encoder that pooling and truncation depend on, whether its weights are supported or not.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The class that the weights were trained as, or the model type if no class is named.
    pub(crate) architecture: String,
    /// The width of a token's vector.
    pub(crate) hidden: usize,
    /// The number of tokens that the model has positions for.
    pub(crate) max_positions: usize,
}

/// An encoder: what its layers consist of.
#[derive(Debug)]
pub(crate) struct EncoderConfig {
    pub(crate) facts: Facts,
    pub(super) vocabulary: usize,
    pub(super) layers: usize,
    pub(super) heads: Heads,
    pub(super) feed_forward: FeedForward,
    pub(super) norm: NormKind,
    pub(super) epsilon: f32,
    pub(super) positions: Positions,
    /// The rows of the token type table; 0 if the model has none.
    pub(super) types: usize,
    /// Layers take these in turn.
    pub(super) spans: Vec<Span>,
    /// The effect of distances on attention, besides that of rotated queries and keys.
    pub(super) bias: Bias,
    /// The linear layers that have biases.
    pub(super) biases: Biases,
    pub(super) names: &'static Names,
    /// The head, in models that classify.
    pub(crate) head: Option<Head>,
    /// How a head reads vectors of tokens.
    pub(super) head_input: HeadInput,
    pub(super) details: Details,
}

/// The parts of a description that most families lack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Details {
    /// Whether queries and keys are normalized head by head.
    pub(super) norms_each_head: bool,
    /// The factor of word embeddings.
    pub(super) word_scale: Option<f32>,
    /// The factor of products of queries and keys, if it is not that of the heads' width.
    pub(super) attention_scale: Option<f32>,
    /// Whether a head that predicts words adds a bias to its logits.
    pub(super) predicts_with_bias: bool,
    /// Whether the matrix of logits is the table of words.
    pub(super) ties_words: bool,
}

impl Default for Details {
    fn default() -> Self {
        Self {
            norms_each_head: false,
            word_scale: None,
            attention_scale: None,
            predicts_with_bias: true,
            ties_words: true,
        }
    }
}

/// The heads of attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) queries: usize,
    /// The heads of keys and of values, each of which serves as many heads of queries.
    pub(super) keys: usize,
    /// The values of a head.
    pub(super) width: usize,
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedForward {
    pub(super) width: usize,
    pub(super) activation: Activation,
    pub(super) gate: Gate,
}

/// Which half of the first matrix's output is activated and then multiplied by the other half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// The feed-forward part has no gate.
    None,
    First,
    Second,
}

/// The positions that are added to words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Positions {
    None,
    /// A table of positions that count from 0.
    Table,
    /// A table of positions that count from the one after the id of padding (RoBERTa, after fairseq).
    TableAfter {
        padding: i64,
    },
}

/// The tokens that a layer attends to, and how it rotates queries and keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) reach: Reach,
    pub(super) rotary: Option<Rotary>,
}

/// The effect of the distance between two tokens on their attention.
#[derive(Debug)]
pub(super) enum Bias {
    None,
    /// Each head has a value for each bucket of distances, the same in all layers.
    Relative {
        table: &'static str,
        buckets: Buckets,
    },
    /// The distance times a slope of each head is subtracted.
    Alibi,
    /// DeBERTa's.
    Disentangled(Disentangled),
}

/// The linear layers that have biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Biases {
    pub(super) projections: bool,
    pub(super) attention_output: bool,
    pub(super) up: bool,
    pub(super) down: bool,
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
pub(crate) struct Head {
    pub(crate) kind: HeadKind,
    /// The labels, by id.
    pub(crate) labels: Vec<String>,
    /// The function that turns logits into scores.
    pub(crate) function: ScoreFunction,
}

/// Whether a head labels texts or their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadKind {
    Text,
    Tokens,
}

/// The part of a head before the labels: a linear layer, an activation, and a normalization in some families.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadInput {
    pub(super) activation: Activation,
    pub(super) has_bias: bool,
    /// Whether it reads the mean of all tokens instead of the first.
    pub(super) is_mean: bool,
}

/// The names of a family's weights.
#[derive(Debug)]
pub(super) struct Names {
    /// The prefix of the body in models with a head.
    pub(super) prefix: &'static str,
    /// The table of word embeddings.
    pub(super) words: &'static str,
    /// The normalization of embeddings; `None` in models without.
    pub(super) embedding_norm: Option<&'static str>,
    pub(super) layer: &'static str,
    /// Queries, keys and values: three matrices, or one.
    pub(super) projections: &'static [&'static str],
    /// The normalizations of queries and of keys.
    pub(super) query_key_norms: Option<[&'static str; 2]>,
    pub(super) attention_output: &'static str,
    pub(super) norms: Norms,
    /// The first matrix of the feed-forward part, or its two halves.
    pub(super) up: &'static [&'static str],
    pub(super) down: &'static str,
    /// The head's layer before the labels, and whether it is part of the body.
    pub(super) dense: (&'static str, bool),
    /// The normalization after it.
    pub(super) dense_norm: Option<&'static str>,
    pub(super) labels: &'static str,
}

/// The normalizations of a layer, and of the output.
#[derive(Debug)]
pub(super) enum Norms {
    /// Of the sum of a part's input and output; a second normalization adds the input again.
    After { attention: &'static [&'static str], output: &'static str },
    /// Of a part's input; the first layer's, unless `is_first_normal`, has none in attention.
    /// Each part's output is normalized too if there are names in `after`.
    Before {
        attention: &'static str,
        feed_forward: &'static str,
        after: Option<[&'static str; 2]>,
        last: &'static str,
        is_first_normal: bool,
    },
}

/// The table of word embeddings, in most families.
pub(super) const WORDS: &str = "embeddings.word_embeddings.weight";

impl EncoderConfig {
    /// Whether the native engine has all parts of the graph.
    pub(super) fn suits_native_engine(&self) -> bool {
        let widths = [self.facts.hidden, self.feed_forward.width];
        let is_fixed = |span: &Span| span.rotary.is_none_or(|rotary| rotary.is_fixed());
        matches!(self.names.norms, Norms::Before { .. } | Norms::After { attention: [_], .. })
            && (!self.details.norms_each_head || self.heads.width.is_multiple_of(LANES))
            // A single type is added to positions.
            && (self.types != 1 || self.positions != Positions::None)
            && self.disentangled().is_none()
            && self.spans.iter().all(is_fixed)
            && widths.iter().all(|width| width.is_multiple_of(LANES))
    }

    /// Whether linear layers in int8 have a scale for each token in ONNX Runtime, besides those with blocks of queries:
    /// vectors that are normalized by their root mean square keep values that are far from the others.
    pub(super) fn scales_each_token(&self) -> bool {
        matches!(self.norm, NormKind::RootMeanSquare { .. })
    }

    /// Whether positions affect attention itself, and not only the vectors of tokens.
    pub(super) fn attends_by_position(&self) -> bool {
        let is_special = |span: &Span| span.reach != Reach::ALL || span.rotary.is_some();
        matches!(self.bias, Bias::Alibi)
            || self.heads.keys != self.heads.queries
            || self.spans.iter().any(is_special)
    }

    /// Whether tokens have no positions, only distances, so that the longest text is not a property of the weights.
    pub(super) fn depends_on_distances_only(&self) -> bool {
        self.positions == Positions::None && self.disentangled().is_some()
    }

    /// Whether attention in ONNX Runtime needs blocks of queries.
    pub(super) fn needs_blocks(&self) -> bool {
        match self.bias {
            Bias::Disentangled(_) | Bias::Relative { .. } => false,
            Bias::Alibi | Bias::None => {
                self.attends_by_position() || self.facts.max_positions > MAX_TOKENS_AT_ONCE
            }
        }
    }

    /// Attention in the given layer.
    pub(super) fn attention(&self, layer: usize) -> Attention {
        let Heads { queries, keys, width } = self.heads;
        Attention {
            heads: queries,
            key_heads: keys,
            width,
            scale: self.details.attention_scale.unwrap_or(1.0 / (width as f32).sqrt()),
            reach: self.spans[layer % self.spans.len()].reach,
            distance: match self.bias {
                Bias::Alibi => Distance::Alibi,
                _ => Distance::Ignored,
            },
        }
    }

    /// The factor of attention scores of all queries together, if it is not that of the heads' width.
    pub(super) fn scale_at_once(&self) -> Option<f32> {
        self.disentangled().map(|settings| 1.0 / settings.scale).or(self.details.attention_scale)
    }

    pub(super) fn disentangled(&self) -> Option<&Disentangled> {
        match &self.bias {
            Bias::Disentangled(settings) => Some(settings),
            _ => None,
        }
    }

    /// The matrices of queries, keys and values in the given layer; one that contains all three, or three.
    pub(super) fn projections(&self, layer: usize) -> Vec<Projection> {
        let Heads { queries, keys, width } = self.heads;
        let outputs = match self.names.projections {
            [_] => vec![(queries + 2 * keys) * width],
            _ => vec![queries * width, keys * width, keys * width],
        };
        let matrices = self.names.projections.iter().zip(outputs);
        matrices.map(|(name, outputs)| self.in_layer(layer, name, outputs, self.biases.projections)).collect()
    }

    /// A matrix in a layer.
    pub(super) fn in_layer(&self, layer: usize, name: &str, outputs: usize, has_bias: bool) -> Projection {
        Projection { name: format!("{}{layer}.{name}", self.names.layer), outputs, has_bias }
    }

    /// The first matrix of the feed-forward part, or its two halves.
    pub(super) fn up(&self, layer: usize) -> Vec<Projection> {
        let FeedForward { width, gate, .. } = self.feed_forward;
        let outputs = if gate == Gate::None { width } else { 2 * width };
        let names = self.names.up;
        names.iter().map(|name| self.in_layer(layer, name, outputs / names.len(), self.biases.up)).collect()
    }

    pub(super) fn position_rows(&self) -> usize {
        let unusable = match self.positions {
            Positions::TableAfter { padding } => rows_up_to(padding),
            _ => 0,
        };
        self.facts.max_positions.saturating_add(unusable)
    }
}

impl Span {
    /// Attention to all tokens, without rotation.
    pub(super) const ALL: Self = Self { reach: Reach::ALL, rotary: None };
}

impl Biases {
    pub(super) const ALL: Self = Self { projections: true, attention_output: true, up: true, down: true };
}

impl HeadInput {
    /// The first token's vector, through a linear layer with this activation.
    pub(super) const fn first(activation: Activation) -> Self {
        Self { activation, has_bias: true, is_mean: false }
    }
}

/// The number of rows of a table up to that of padding.
pub(super) fn rows_up_to(id: i64) -> usize {
    usize::try_from(id).unwrap_or(0).saturating_add(1)
}

impl Head {
    /// A head whose labels have no names.
    pub(super) fn unnamed(kind: HeadKind, labels: usize) -> Self {
        let function = if labels == 1 { ScoreFunction::Sigmoid } else { ScoreFunction::Softmax };
        let labels = (0..labels).map(|id| format!("LABEL_{id}")).collect();
        Self { kind, labels, function }
    }

    /// The head that a config describes, as `transformers` reads it; `None` if its class has none.
    pub(crate) fn read(config: &ConfigFile) -> Result<Option<Self>> {
        let found = CLASSIFIERS.iter().find(|(end, _)| config.architecture().ends_with(end));
        let Some((_, kind)) = found else { return Ok(None) };
        let mut head = Self::unnamed(*kind, 0);
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
            head = Self::unnamed(*kind, labels);
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
