//! The names of weights in the files of the families.

use std::fmt;

pub(crate) const MT5: &str = "mt5";

/// One of the two graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Encoder,
    Decoder,
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
        })
    }
}

/// A part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Attention to the tokens of the same text.
    Own,
    /// The decoder's attention to the source.
    Source,
    FeedForward,
}

/// A projection of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    Query,
    Key,
    Value,
    Output,
}

/// How a family names its weights, without the prefix of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Those of fairseq, which most families share.
    Fairseq,
    T5,
}

impl Names {
    pub(super) fn projection(self, half: Half, layer: usize, part: Part, projection: Projection) -> String {
        let (fairseq, t5) = match projection {
            Projection::Query => ("q_proj", "q"),
            Projection::Key => ("k_proj", "k"),
            Projection::Value => ("v_proj", "v"),
            Projection::Output => ("out_proj", "o"),
        };
        match (self, part) {
            (Self::Fairseq, Part::Own) => format!("{half}.layers.{layer}.self_attn.{fairseq}"),
            (Self::Fairseq, _) => format!("{half}.layers.{layer}.encoder_attn.{fairseq}"),
            (Self::T5, Part::Own) => format!("{half}.block.{layer}.layer.0.SelfAttention.{t5}"),
            (Self::T5, _) => format!("{half}.block.{layer}.layer.1.EncDecAttention.{t5}"),
        }
    }

    /// The projections of a feed-forward part into its inner layer: the activated one, and the one that it is multiplied
    /// by if the part is gated.
    pub(super) fn raising(self, half: Half, layer: usize, is_gated: bool) -> Vec<String> {
        let module = self.feed_forward(half, layer);
        let names: &[&str] = match (self, is_gated) {
            (Self::Fairseq, _) => &["fc1"],
            (Self::T5, false) => &["wi"],
            (Self::T5, true) => &["wi_0", "wi_1"],
        };
        names.iter().map(|name| format!("{module}.{name}")).collect()
    }

    /// The projection of a feed-forward part out of its inner layer.
    pub(super) fn lowering(self, half: Half, layer: usize) -> String {
        let name = if self == Self::Fairseq { "fc2" } else { "wo" };
        format!("{}.{name}", self.feed_forward(half, layer))
    }

    fn feed_forward(self, half: Half, layer: usize) -> String {
        match self {
            Self::Fairseq => format!("{half}.layers.{layer}"),
            Self::T5 => format!("{half}.block.{layer}.layer.{}.DenseReluDense", last_part(half)),
        }
    }

    /// The normalization of a part.
    pub(super) fn norm(self, half: Half, layer: usize, part: Part) -> String {
        match (self, part) {
            (Self::Fairseq, Part::Own) => format!("{half}.layers.{layer}.self_attn_layer_norm"),
            (Self::Fairseq, Part::Source) => format!("{half}.layers.{layer}.encoder_attn_layer_norm"),
            (Self::Fairseq, Part::FeedForward) => format!("{half}.layers.{layer}.final_layer_norm"),
            (Self::T5, Part::Own) => format!("{half}.block.{layer}.layer.0.layer_norm"),
            (Self::T5, Part::Source) => format!("{half}.block.{layer}.layer.1.layer_norm"),
            (Self::T5, Part::FeedForward) => {
                format!("{half}.block.{layer}.layer.{}.layer_norm", last_part(half))
            }
        }
    }

    /// The normalization after the last layer.
    pub(super) fn last_norm(self, half: Half) -> String {
        match self {
            Self::Fairseq => format!("{half}.layer_norm"),
            Self::T5 => format!("{half}.final_layer_norm"),
        }
    }

    /// The normalization of embeddings.
    pub(super) fn embedding_norm(half: Half) -> String {
        format!("{half}.layernorm_embedding")
    }

    /// The table of learned positions.
    pub(super) fn positions(half: Half) -> String {
        format!("{half}.embed_positions.weight")
    }

    /// The table of the values of distances.
    pub(super) fn distances(half: Half) -> String {
        format!("{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    }
}

/// The number of the feed-forward part in a layer of T5.
fn last_part(half: Half) -> usize {
    if half == Half::Encoder { 1 } else { 2 }
}
