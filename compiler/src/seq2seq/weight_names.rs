//! Weight names in each family's files.

use std::fmt;

pub const T5: &str = "t5";
pub const MT5: &str = "mt5";

/// Encoder or decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
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

/// A sublayer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Self-attention.
    Own,
    /// The decoder's attention to the source.
    Source,
    FeedForward,
}

/// An attention projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    Query,
    Key,
    Value,
    Output,
}

/// A family's weight names, without the body prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// fairseq's names, which most families share.
    Fairseq,
    T5,
}

impl Names {
    pub fn projection(
        self,
        half: Half,
        layer: usize,
        part: Part,
        projection: Projection,
    ) -> String {
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

    /// Projections into the feed-forward part's inner layer: the activated one, and the factor if the part is gated.
    pub fn raising(self, half: Half, layer: usize, is_gated: bool) -> Vec<String> {
        let module = self.feed_forward(half, layer);
        let names: &[&str] = match (self, is_gated) {
            (Self::Fairseq, _) => &["fc1"],
            (Self::T5, false) => &["wi"],
            (Self::T5, true) => &["wi_0", "wi_1"],
        };
        names
            .iter()
            .map(|name| format!("{module}.{name}"))
            .collect()
    }

    /// Projection out of the feed-forward part's inner layer.
    pub fn lowering(self, half: Half, layer: usize) -> String {
        let name = if self == Self::Fairseq { "fc2" } else { "wo" };
        format!("{}.{name}", self.feed_forward(half, layer))
    }

    fn feed_forward(self, half: Half, layer: usize) -> String {
        match self {
            Self::Fairseq => format!("{half}.layers.{layer}"),
            Self::T5 => format!(
                "{half}.block.{layer}.layer.{}.DenseReluDense",
                last_part(half)
            ),
        }
    }

    pub fn norm(self, half: Half, layer: usize, part: Part) -> String {
        match (self, part) {
            (Self::Fairseq, Part::Own) => format!("{half}.layers.{layer}.self_attn_layer_norm"),
            (Self::Fairseq, Part::Source) => {
                format!("{half}.layers.{layer}.encoder_attn_layer_norm")
            }
            (Self::Fairseq, Part::FeedForward) => format!("{half}.layers.{layer}.final_layer_norm"),
            (Self::T5, Part::Own) => format!("{half}.block.{layer}.layer.0.layer_norm"),
            (Self::T5, Part::Source) => format!("{half}.block.{layer}.layer.1.layer_norm"),
            (Self::T5, Part::FeedForward) => {
                format!("{half}.block.{layer}.layer.{}.layer_norm", last_part(half))
            }
        }
    }

    /// The normalization after the last layer.
    pub fn last_norm(self, half: Half) -> String {
        match self {
            Self::Fairseq => format!("{half}.layer_norm"),
            Self::T5 => format!("{half}.final_layer_norm"),
        }
    }

    pub fn embedding_norm(half: Half) -> String {
        format!("{half}.layernorm_embedding")
    }

    /// Learned position table.
    pub fn positions(half: Half) -> String {
        format!("{half}.embed_positions.weight")
    }

    /// Distance value table.
    pub fn distances(half: Half) -> String {
        format!("{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    }
}

/// The feed-forward part's number in a T5 layer.
fn last_part(half: Half) -> usize {
    if half == Half::Encoder { 1 } else { 2 }
}
