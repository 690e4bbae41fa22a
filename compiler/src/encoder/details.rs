//! Encoder properties that most families lack.

use crate::onnx::layers::ExpertKind;

/// Details that most families lack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Details {
    /// Whether queries and keys are normalized head by head.
    pub norms_each_head: bool,
    /// The layer from embeddings to token vectors, if they have different widths.
    pub projection: Option<EmbeddingProjection>,
    /// Rows in the task type table; 0 if the model has none. All tokens have the first type.
    pub task_types: usize,
    /// The position table.
    pub position_table: PositionTable,
    /// Layers that share their weights.
    pub sharing: Option<LayerSharing>,
    /// Heads in layers that attend to all tokens, if the others have different ones.
    pub full_heads: Option<Heads>,
    /// Each head's normalization of values.
    pub value_norm: Option<&'static str>,
    /// Signals from the embeddings to each layer.
    pub layer_signals: Option<LayerSignals>,
    /// Tokens in place of which other inputs are read.
    pub placeholders: [Option<u32>; 3],
    /// The layer from the last layer's width to token vectors.
    pub output_projection: Option<OutputProjection>,
    /// Factor for word embeddings.
    pub word_scale: Option<f32>,
    /// Factor for query-key products, if not derived from the head width.
    pub attention_scale: Option<f32>,
    /// Limit for attention scores, by a hyperbolic tangent (Gemma 2).
    pub attention_cap: Option<f32>,
    /// Name of the logits, one per head, that take part in each softmax of a layer's attention scores.
    pub sinks: Option<&'static str>,
    /// Whether rotations pair neighbouring values of a head, until the weights are rearranged.
    pub pairs_neighbours: bool,
    /// Layers that are narrower inside.
    pub bottlenecks: Option<BottleneckLayers>,
    /// Layers with experts in place of a feed-forward part.
    pub experts: Option<ExpertLayers>,
    /// Whether graphs in `int8-blocks` keep attention's matrices in fp32.
    pub keeps_attention: bool,
    /// Whether a word prediction head adds no bias to its logits.
    pub predicts_without_bias: bool,
    /// Whether the output matrix is the word embedding table.
    pub ties_words: bool,
    /// Width between the two layers of a word prediction head (UltraBERT).
    pub prediction_width: Option<usize>,
}

impl Details {
    /// Whether a weight belongs to narrower vectors, or to a projection of words, that no layer reads.
    pub fn is_unused_bottleneck(&self, name: &str) -> bool {
        self.bottlenecks
            .is_some_and(|layers| match layers.bottleneck {
                Bottleneck::All => name.contains(".bottleneck.attention."),
                _ => false,
            })
            || self.bottlenecks.is_some()
                && self.projection.is_none()
                && name.starts_with("embeddings.embedding_transformation.")
    }
}

/// A linear layer from the sum of word, type and position embeddings to a token's vector.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingProjection {
    /// Weight name.
    pub name: &'static str,
    /// Width of the embeddings.
    pub width: usize,
    pub has_bias: bool,
    /// Whether the embedding normalization is before the projection instead of after it.
    pub is_normalized_before: bool,
    /// Words that are joined for a token, its own and its neighbours, if words alone are projected; types and positions are
    /// then as wide as token vectors.
    pub joined_words: Option<usize>,
}

/// Layers with one or more feed-forward parts on vectors that are narrower than a token's.
#[derive(Clone, Copy, Debug)]
pub struct BottleneckLayers {
    pub bottleneck: Bottleneck,
    /// Width inside of layers.
    pub width: usize,
    /// Feed-forward parts in a layer.
    pub parts: usize,
    /// Epsilon of all normalizations but those of the embeddings and of the last feed-forward part.
    pub epsilon: f32,
}

/// What attention reads from narrower vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Layers are as wide as token vectors.
    None,
    All,
    /// Queries and keys from narrower vectors of their own, and the residual.
    QueriesAndKeys,
    Residual,
}

/// A linear layer without bias on all token vectors.
#[derive(Clone, Copy, Debug)]
pub struct OutputProjection {
    /// Weight name.
    pub name: &'static str,
    /// Width of the layers.
    pub inputs: usize,
}

/// Which layers have experts: all, or every n-th one, after the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLayers {
    pub every: usize,
    /// Experts in a layer.
    pub count: usize,
    /// Experts per token.
    pub top: usize,
    /// The part's name in a layer.
    pub name: &'static str,
    pub kind: ExpertKind,
}

/// A position table in a file.
#[derive(Clone, Copy, Debug)]
pub struct PositionTable {
    /// Weight name.
    pub name: &'static str,
    /// Rows before the first position.
    pub unused: usize,
}

impl Default for PositionTable {
    fn default() -> Self {
        Self {
            name: "embeddings.position_embeddings.weight",
            unused: 0,
        }
    }
}

/// ALBERT's layers: each pass runs all layers in one group, and several passes share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSharing {
    /// Passes through a group.
    pub passes: usize,
    /// Groups of layers with their own weights.
    pub groups: usize,
    /// Layers in a group.
    pub layers: usize,
    /// Name of a group's layer list.
    pub name: &'static str,
}

impl LayerSharing {
    /// The name for the weights in the given layer, counted over all passes.
    pub fn layer(&self, layer: usize) -> String {
        let pass = layer / self.layers;
        // `transformers` rounds the same quotients.
        let group = (pass as f64 / (self.passes as f64 / self.groups as f64)) as usize;
        format!("{group}.{}.{}.", self.name, layer % self.layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_share_passes_as_in_transformers() {
        let groups = |passes, groups, layers| {
            let sharing = LayerSharing {
                passes,
                groups,
                layers,
                name: "layers",
            };
            (0..passes * layers)
                .map(|layer| sharing.layer(layer))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(groups(3, 1, 1), "0.layers.0. 0.layers.0. 0.layers.0.");
        assert_eq!(
            groups(3, 2, 2),
            "0.layers.0. 0.layers.1. 0.layers.0. 0.layers.1. 1.layers.0. 1.layers.1."
        );
        // With more groups than passes, some are unused.
        assert_eq!(groups(2, 4, 1), "0.layers.0. 2.layers.0.");
    }
}

/// Signals that a layer multiplies its output by.
#[derive(Clone, Copy, Debug)]
pub struct LayerSignals {
    /// Values per token.
    pub width: usize,
}

/// Attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub queries: usize,
    /// Key and value heads; each serves the same number of query heads.
    pub keys: usize,
    /// Head width.
    pub width: usize,
}
