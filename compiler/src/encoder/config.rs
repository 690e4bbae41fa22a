//! Encoder description: layer structure and weight names. `config.json` readers are in `families`.

use std::collections::{BTreeMap, BTreeSet};

use kivu_engine::kernel::LANES;

use super::attention::distances::{Convolution, Distances};
pub use super::{
    details::{Details, EmbeddingProjection, ExpertLayers, Heads, OutputProjection, PositionTable},
    names::{Names, Norms},
};
use crate::{
    files::{config::ConfigFile, weights::Weights},
    onnx::{
        functions::ConvolutionForm,
        layers::{
            Activation, Attention, AttentionWindow, Buckets, Distance, NormKind, Projection,
            Rotary, Scaling,
        },
    },
};
use kivu::{Error, Result, pipeline::classification::scores::ScoreFunction};

/// Class name suffixes for models with a label head.
const CLASSIFIERS: [(&str, HeadKind); 2] = [
    ("ForSequenceClassification", HeadKind::Text),
    ("ForTokenClassification", HeadKind::Tokens),
];

/// Maximum `num_labels`, far above any text classifier's.
const MAX_LABELS: usize = 1 << 16;

/// Encoder properties for pooling and truncation, whether or not the weights are supported.
#[derive(Clone, Debug)]
pub struct EncoderLimits {
    /// Class that the weights were trained as, or the model type if no class is named.
    pub architecture: String,
    /// Width of a token's vector.
    pub hidden: usize,
    /// Number of tokens that the model has positions for.
    pub max_positions: usize,
    /// Number of tokens up to which files may raise the limit: more than the positions if rotary frequencies depend on
    /// the text's length.
    pub longest: usize,
}

/// An encoder's layer structure.
#[derive(Debug)]
pub struct EncoderConfig {
    pub encoder_limits: EncoderLimits,
    pub vocabulary: usize,
    pub layers: usize,
    pub heads: Heads,
    pub feed_forward: FeedForward,
    pub norm: NormKind,
    pub epsilon: f32,
    pub positions: Positions,
    /// Rows in the token type table; 0 if the model has none.
    pub types: usize,
    /// Layers cycle through these.
    pub spans: Vec<Span>,
    /// Distance bias in attention scores, besides rotary positions.
    pub bias: Bias,
    /// Linear layers with biases.
    pub biases: Biases,
    pub names: &'static Names,
    /// Label head, in classifiers.
    pub head: Option<Head>,
    /// How a head reads token vectors.
    pub head_input: HeadInput,
    /// Layers after the encoder's, which the head reads.
    pub decoder: Option<Box<Decoder>>,
    pub details: Details,
    /// Gated short convolutions in place of some layers' attention.
    pub convolutions: Option<Convolutions>,
    /// Tasks with adapters, if the model has them.
    pub tasks: Option<Tasks>,
}

/// Layers with a gated short convolution in place of attention (LFM2).
#[derive(Debug)]
pub struct Convolutions {
    pub layers: BTreeSet<usize>,
    pub form: ConvolutionForm,
}

/// Tasks that a request may choose, each with narrow matrices that are added to the weights (LoRA).
#[derive(Clone, Debug, PartialEq)]
pub struct Tasks {
    /// Names, in the order of the matrices.
    pub names: Vec<String>,
    /// The text that a task's texts begin with, in models with such texts.
    pub prompts: BTreeMap<String, String>,
    /// Numbers between a task's two matrices.
    pub rank: usize,
    /// Factor for a task's product.
    pub scale: f32,
}

impl Tasks {
    /// Tasks whose matrices are in files of their own, and without texts.
    pub fn unread(names: Vec<String>) -> Self {
        Self {
            names,
            prompts: BTreeMap::new(),
            rank: 0,
            scale: 1.0,
        }
    }
}

/// A decoder over the encoder's text, shifted by one token. Its tokens attend to earlier ones, and then to all of the
/// encoder's.
#[derive(Debug)]
pub struct Decoder {
    /// The token before the text.
    pub start: usize,
    /// The token at the text's end, which the head reads.
    pub end: i64,
    /// Layers, without their attention to the encoder.
    pub layers: EncoderConfig,
}

/// A layer's feed-forward part.
#[derive(Clone, Copy, Debug)]
pub struct FeedForward {
    pub width: usize,
    pub activation: Activation,
    pub gate: Gate,
}

/// Which half of the first matrix's output is activated before multiplying it by the other half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The feed-forward part has no gate.
    None,
    First,
    Second,
}

/// Positions added to words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    None,
    /// A position table, counted from 0.
    Table,
    /// A position table, counted from the one after the padding id (RoBERTa, after fairseq).
    TableAfter {
        padding: i64,
    },
}

/// A layer's attention window and rotary positions.
#[derive(Clone, Debug)]
pub struct Span {
    pub window: AttentionWindow,
    pub rotary: Option<Rotary>,
}

/// How the distance between two tokens affects their attention.
#[derive(Debug)]
pub enum Bias {
    None,
    /// Each head has a value per distance bucket, the same in all layers.
    Relative {
        table: &'static str,
        buckets: Buckets,
    },
    /// Subtracts the distance times a per-head slope.
    Alibi,
    /// DeBERTa's.
    Disentangled(Disentangled),
}

/// Which linear layers have biases.
#[derive(Clone, Copy, Debug)]
pub struct Biases {
    pub projections: bool,
    pub attention_output: bool,
    pub up: bool,
    pub down: bool,
}

/// Attention to distances, and a convolution, in DeBERTa.
#[derive(Debug)]
pub struct Disentangled {
    /// Divisor for attention scores.
    pub scale: f32,
    /// `None` in models that ignore distances.
    pub distances: Option<Distances>,
    /// `None` in models without a convolution.
    pub convolution: Option<Convolution>,
}

/// A classifier's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: HeadKind,
    /// The labels, by id.
    pub labels: Vec<String>,
    /// Function from logits to scores.
    pub function: ScoreFunction,
}

/// Whether a head labels texts or their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    Text,
    Tokens,
}

/// Head layers before the labels: a linear layer, an activation, and in some families a normalization.
#[derive(Clone, Copy, Debug)]
pub struct HeadInput {
    pub activation: Activation,
    pub has_bias: bool,
    pub read: HeadRead,
}

/// The vector that a text's head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRead {
    First,
    Last,
    Mean,
    /// The mean of all tokens' vectors after the layer before the labels, rather than before it.
    MeanOfActivated,
}

impl EncoderConfig {
    /// Whether the native engine supports the whole graph.
    pub fn suits_native_engine(&self) -> bool {
        let Heads {
            queries,
            keys,
            width,
        } = self.heads;
        let widths = [
            self.encoder_limits.hidden,
            self.layer_width(),
            self.embedding_width(),
            self.feed_forward.width,
            queries * width,
            self.details
                .bottlenecks
                .map_or(LANES, |layers| layers.width),
            (queries + 2 * keys) * width,
            self.details
                .layer_signals
                .map_or(LANES, |signals| signals.width),
        ];
        let mut heads = (0..self.layers).map(|layer| self.heads(layer));
        (!self.details.norms_each_head || heads.all(|heads| heads.width.is_multiple_of(LANES)))
            // Tasks take the place of types.
            && (self.types < 2 || self.tasks.is_none())
            && self.decoder.as_ref().is_none_or(|decoder| decoder.layers.suits_native_engine())
            && widths.iter().all(|width| width.is_multiple_of(LANES))
    }

    /// Whether int8 linear layers have a per-token scale in ONNX Runtime: after root mean square normalization, or without a
    /// normalization, some values remain outliers.
    pub fn scales_each_token(&self) -> bool {
        matches!(self.norm, NormKind::RootMeanSquare { .. } | NormKind::None)
            || self.attends_by_position()
    }

    /// Whether positions affect attention itself, not only token vectors.
    pub fn attends_by_position(&self) -> bool {
        let is_special = |span: &Span| span.window != AttentionWindow::ALL || span.rotary.is_some();
        matches!(self.bias, Bias::Alibi)
            || self.heads.keys != self.heads.queries
            || self.spans.iter().any(is_special)
    }

    /// Whether convolutions read rows after a token's own.
    pub fn reads_later_rows(&self) -> bool {
        let form = self.convolutions.as_ref().map(|found| found.form);
        form.is_some_and(|form| form.before + 1 < form.count)
    }

    /// Tokens on either side on which a token's vector depends, through the windows of all layers; `None` if there is no limit,
    /// or if positions matter by themselves.
    pub fn context(&self) -> Option<usize> {
        let is_relative = matches!(self.bias, Bias::None | Bias::Alibi)
            && self.positions == Positions::None
            && self.decoder.is_none()
            && self.tasks.is_none();
        let reach = |layer: usize| {
            let Span { window, rotary } = &self.spans[layer % self.spans.len()];
            let depends_on_place = rotary.as_ref().is_some_and(|rotary| {
                rotary.growth.is_some()
                    || matches!(
                        rotary.scaling,
                        Scaling::DynamicNtk { .. } | Scaling::Long { .. }
                    )
            });
            let AttentionWindow { before, after } = *window;
            before
                .zip(after)
                .map(|(before, after)| before.max(after))
                .filter(|_| !depends_on_place)
        };
        let sum = (0..self.layers).map(reach).sum::<Option<usize>>();
        sum.filter(|reach| is_relative && *reach > 0)
    }

    /// Whether tokens have no positions, only distances, so that the weights do not determine the maximum length.
    pub fn depends_on_distances_only(&self) -> bool {
        self.positions == Positions::None && self.disentangled().is_some()
    }

    /// Attention heads in the given layer.
    pub fn heads(&self, layer: usize) -> Heads {
        let is_full = self.spans[layer % self.spans.len()].window == AttentionWindow::ALL;
        self.details
            .full_heads
            .filter(|_| is_full)
            .unwrap_or(self.heads)
    }

    /// Attention in the given layer.
    pub fn attention(&self, layer: usize) -> Attention {
        let Heads {
            queries,
            keys,
            width,
        } = self.heads(layer);
        Attention {
            heads: queries,
            key_heads: keys,
            width,
            scale: self
                .details
                .attention_scale
                .unwrap_or(1.0 / (width as f32).sqrt()),
            cap: self.details.attention_cap,
            window: self.spans[layer % self.spans.len()].window,
            distance: match self.bias {
                Bias::Alibi => Distance::Alibi,
                _ => Distance::Ignored,
            },
        }
    }

    /// Factor for attention scores when all queries attend at once, if not derived from the head width.
    pub fn scale_at_once(&self) -> Option<f32> {
        self.disentangled()
            .map(|settings| 1.0 / settings.scale)
            .or(self.details.attention_scale)
    }

    pub fn disentangled(&self) -> Option<&Disentangled> {
        match &self.bias {
            Bias::Disentangled(settings) => Some(settings),
            _ => None,
        }
    }

    /// Width of word, type and position embeddings.
    pub fn embedding_width(&self) -> usize {
        self.details
            .projection
            .map_or(self.layer_width(), |projection| projection.width)
    }

    /// Width of the layers.
    pub fn layer_width(&self) -> usize {
        self.details
            .output_projection
            .map_or(self.encoder_limits.hidden, |projection| projection.inputs)
    }

    /// The convolution after the first layer.
    pub fn convolution(&self) -> Option<&Convolution> {
        self.disentangled()?.convolution.as_ref()
    }

    /// Query, key and value matrices in the given layer; one that contains all three, or three.
    pub fn projections(&self, layer: usize) -> Vec<Projection> {
        let Heads {
            queries,
            keys,
            width,
        } = self.heads(layer);
        let outputs = match self.names.projections[..] {
            [_] => vec![(queries + 2 * keys) * width],
            _ => vec![queries * width, keys * width, keys * width],
        };
        let matrices = self.names.projections.iter().zip(outputs);
        matrices
            .map(|(name, outputs)| self.in_layer(layer, name, outputs, self.biases.projections))
            .collect()
    }

    /// A matrix in a layer.
    pub fn in_layer(&self, layer: usize, name: &str, outputs: usize, has_bias: bool) -> Projection {
        Projection {
            name: self.name_in_layer(layer, name),
            outputs,
            has_bias,
        }
    }

    /// A weight name in a layer.
    pub fn name_in_layer(&self, layer: usize, name: &str) -> String {
        match self.details.sharing {
            None => format!("{}{layer}.{name}", self.names.layer),
            Some(sharing) => format!("{}{}{name}", self.names.layer, sharing.layer(layer)),
        }
    }

    /// Whether a weight belongs to a layer that no text passes.
    pub fn is_in_unused_layer(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(self.names.layer) else {
            return false;
        };
        let parts: Vec<&str> = rest.split('.').collect();
        let number = |place: usize| parts.get(place).and_then(|part| part.parse::<usize>().ok());
        match self.details.sharing {
            None => number(0).is_some_and(|layer| layer >= self.layers),
            Some(sharing) => {
                let is_layer = number(0).is_some()
                    && parts.get(1) == Some(&sharing.name)
                    && number(2).is_some();
                is_layer && !(0..self.layers).any(|layer| rest.starts_with(&sharing.layer(layer)))
            }
        }
    }

    /// The first matrix of the feed-forward part whose names begin with `prefix`, or its two halves.
    pub fn up(&self, layer: usize, prefix: &str) -> Vec<Projection> {
        let FeedForward { width, gate, .. } = self.feed_forward;
        let outputs = if gate == Gate::None { width } else { 2 * width };
        let names = &self.names.up;
        names
            .iter()
            .map(|name| {
                let name = format!("{prefix}{name}");
                self.in_layer(layer, &name, outputs / names.len(), self.biases.up)
            })
            .collect()
    }

    pub fn position_rows(&self) -> usize {
        let unusable = match self.positions {
            Positions::TableAfter { padding } => rows_up_to(padding),
            _ => 0,
        };
        self.encoder_limits
            .max_positions
            .saturating_add(unusable)
            .saturating_add(self.details.position_table.unused)
    }
}

impl Span {
    /// Attention to all tokens, without rotation.
    pub const ALL: Self = Self {
        window: AttentionWindow::ALL,
        rotary: None,
    };
}

impl Biases {
    pub const ALL: Self = Self {
        projections: true,
        attention_output: true,
        up: true,
        down: true,
    };
    pub const NONE: Self = Self {
        projections: false,
        attention_output: false,
        up: false,
        down: false,
    };
}

impl HeadInput {
    /// The first token's vector, through a linear layer with this activation.
    pub const fn first(activation: Activation) -> Self {
        Self {
            activation,
            has_bias: true,
            read: HeadRead::First,
        }
    }
}

/// Table row count up to and including the padding row.
pub fn rows_up_to(id: i64) -> usize {
    usize::try_from(id).unwrap_or(0).saturating_add(1)
}

impl Head {
    /// A head with unnamed labels.
    pub fn unnamed(kind: HeadKind, labels: usize) -> Self {
        let function = if labels == 1 {
            ScoreFunction::Sigmoid
        } else {
            ScoreFunction::Softmax
        };
        let labels = (0..labels).map(|id| format!("LABEL_{id}")).collect();
        Self {
            kind,
            labels,
            function,
        }
    }

    /// Reads the head that a config describes, as `transformers` does; `None` if its class has none.
    pub fn read(config: &ConfigFile) -> Result<Option<Self>> {
        Self::kind(config)
            .map(|kind| Self::of(kind, config))
            .transpose()
    }

    /// The kind of head that the config's class has.
    pub fn kind(config: &ConfigFile) -> Option<HeadKind> {
        let (_, kind) = CLASSIFIERS
            .iter()
            .find(|(end, _)| config.architecture().ends_with(end))?;
        Some(*kind)
    }

    /// Reads the labels of a head of this kind, whatever class the config names.
    pub fn of(kind: HeadKind, config: &ConfigFile) -> Result<Self> {
        let mut head = Self::unnamed(kind, 0);
        if let Some(labels) = config.get::<BTreeMap<usize, String>>("id2label")? {
            if !labels.keys().copied().eq(0..labels.len()) {
                return Err(Error::model(format!(
                    "expected `id2label` with ids from 0 on, but found {:?}",
                    labels.keys().collect::<Vec<_>>()
                )));
            }
            head.labels = labels.into_values().collect();
        } else {
            let labels = config
                .get("num_labels")?
                .unwrap_or(if config.model_type() == "bart" { 3 } else { 2 });
            if labels > MAX_LABELS {
                return Err(Error::model(format!(
                    "expected `num_labels` of at most {MAX_LABELS}, but found {labels}"
                )));
            }
            head = Self::unnamed(kind, labels);
        }
        head.function = match config.get::<String>("problem_type")?.as_deref() {
            Some("regression") => ScoreFunction::None,
            Some("multi_label_classification") => ScoreFunction::Sigmoid,
            _ if head.labels.len() == 1 => ScoreFunction::Sigmoid,
            _ => ScoreFunction::Softmax,
        };
        Ok(head)
    }
}

impl Names {
    /// Whether a text's head, if there is one, is a decoder's: a layer without bias on the last token.
    pub fn has_decoder_head(&self) -> bool {
        self.dense.0.is_empty() && self.labels != "classifier"
    }

    /// The layer with an output per label.
    pub fn label_layer(&self, kind: HeadKind) -> &'static str {
        match kind {
            HeadKind::Text => self.labels,
            // Some heads have nothing before the labels.
            HeadKind::Tokens if self.dense.0.is_empty() => self.labels,
            HeadKind::Tokens => "classifier",
        }
    }

    /// Whether a weight belongs to a label head, of either kind.
    pub fn is_of_label_head(&self, name: &str) -> bool {
        let (dense, is_of_body) = self.dense;
        let layers = [
            self.label_layer(HeadKind::Text),
            self.label_layer(HeadKind::Tokens),
            if is_of_body { "" } else { dense },
        ];
        layers.iter().any(|layer| {
            !layer.is_empty()
                && name
                    .strip_prefix(layer)
                    .is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// The weight of a label head's last layer, if `weights` have one.
    pub fn label_weight(&self, weights: &Weights) -> Option<String> {
        [HeadKind::Text, HeadKind::Tokens]
            .map(|kind| format!("{}.weight", self.label_layer(kind)))
            .into_iter()
            .find(|name| weights.has(name))
    }
}
