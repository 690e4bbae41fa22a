//! A model as an operation list on packed texts' vectors.
//!
//! Texts are packed: the tokens of all texts in a run are consecutive rows, without padding. Row operations treat each
//! row on its own, so a run computes them in blocks, and a text has the same bits whatever else is in the run. Only
//! attention combines rows, within one text.

use std::ops::Range;

use crate::{
    array::Array,
    kernel::{Block, LANES, Lanes, Sums},
    rotary::Rotary,
};

/// A model as stages, tables and memory slots.
#[derive(Debug)]
pub struct Program {
    /// Matrices that operations read and write.
    pub values: Vec<Value>,
    /// Rotary embeddings for attention, shared between layers.
    pub rotaries: Vec<Rotary>,
    /// Memory slot count.
    pub slots: usize,
    /// In execution order. A stage ends where an operation needs rows that other threads may have computed.
    pub stages: Vec<Stage>,
    /// Values that a run returns.
    pub outputs: Vec<ValueId>,
    /// Table sizes and maximum text length.
    pub limits: Limits,
    /// Padding id, if positions count as in fairseq: they start after this id, and padding gets this id.
    pub padding: Option<u32>,
}

/// Index into [`Program::values`].
pub type ValueId = usize;
/// Index into [`Program::rotaries`].
pub type RotaryId = usize;

/// A matrix with a row for each token or for each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Whether a row is a token or a text.
    pub per: Per,
    /// Values per row, a multiple of [`LANES`](crate::kernel::LANES) except for outputs.
    pub width: usize,
    /// Memory slot index; values share a slot if they are not needed at the same time.
    pub slot: usize,
}

/// What a matrix row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// A token in any text.
    Token,
    /// A text.
    Text,
}

/// A column range in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The value with the columns.
    pub value: ValueId,
    /// The first column.
    pub offset: usize,
    /// Column count.
    pub width: usize,
}

/// Operations executed without waiting for other threads.
#[derive(Debug)]
pub enum Stage {
    /// Row-wise operations, in blocks.
    Rows(RowStage),
    /// Attention within each text.
    Attention(Attention),
    /// A linear layer's per-output maximum over each text's tokens.
    Largest(Largest),
}

/// Row-wise operations, executed block by block.
#[derive(Debug)]
pub struct RowStage {
    /// Whether rows are tokens or texts.
    pub per: Per,
    /// Values from earlier stages.
    pub loads: Vec<Load>,
    /// In execution order.
    pub operations: Vec<RowOperation>,
    /// Values for later stages.
    pub stores: Vec<ValueId>,
}

/// A value from an earlier stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The value to copy into the block.
    pub value: ValueId,
    /// Whether no later stage reads it.
    pub is_last: bool,
    /// Number of heads to join into rows, if attention has computed the value.
    pub heads: Option<usize>,
}

/// An operation on each row: it reads the value `input`, or both `inputs`, and writes the value `out`.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields that operations share are described above")]
pub enum RowOperation {
    /// Looks up table rows by id.
    Lookup {
        table: Table,
        /// What selects the row.
        index: Index,
        out: ValueId,
    },
    /// Pools a text's token rows into one; zeros without tokens.
    Pool { pooling: Pooling, input: ValueId, out: ValueId },
    /// A linear layer in int8.
    Linear { input: ValueId, layer: Linear, out: ValueId },
    /// A linear layer in fp32.
    Dense { input: ValueId, layer: Dense, out: ValueId },
    /// An activation function.
    Activation { function: Activation, input: ValueId, out: ValueId },
    /// One half of each row, activated, times the other half.
    Gate {
        function: Activation,
        /// Whether the second half is activated.
        activates_second: bool,
        input: ValueId,
        out: ValueId,
    },
    /// Adds two values.
    Add { inputs: [ValueId; 2], out: ValueId },
    /// Normalizes an input, or the sum of two.
    Norm {
        /// Input columns.
        input: View,
        /// Rows to add first.
        residual: Option<ValueId>,
        norm: Norm,
        out: ValueId,
    },
}

/// How a text's row is computed from its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// First token.
    First,
    /// Last token.
    Last,
    /// Mean over all tokens.
    Mean,
}

/// What selects a table row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Token id.
    Id,
    /// Token type.
    Type,
    /// Token position.
    Position,
}

/// Embedding table rows.
#[derive(Debug)]
pub enum Table {
    /// In fp32.
    Fp32(Array<f32>),
    /// Integers, with one scale per row.
    Int8(Array<i8>, Array<f32>),
}

/// A linear layer in int8, with a scale per output and input block.
#[derive(Debug)]
pub struct Linear {
    /// Values per input row, a multiple of [`Linear::block`].
    pub inputs: usize,
    /// Inputs that share a scale: all, or part of each row; a multiple of 16.
    pub block: usize,
    /// Values per output row, a multiple of 16.
    pub outputs: usize,
    /// 16 outputs per panel, as `inputs` / 4 blocks.
    pub panels: Array<Block>,
    /// Scales per panel and block.
    pub scales: Array<Lanes>,
    /// Weight sums per panel and block.
    pub sums: Array<Sums>,
    /// Added to each output; zeros in a layer without a bias.
    pub bias: Array<Lanes>,
    /// Applied to the outputs, after the bias.
    pub activation: Option<Activation>,
}

/// A linear layer in fp32.
#[derive(Debug)]
pub struct Dense {
    /// Values per output row.
    pub outputs: usize,
    /// A row per input.
    pub weights: Array<f32>,
    /// Added to each output.
    pub bias: Option<Array<f32>>,
}

/// An activation function, as `transformers` defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU with the error function.
    Gelu,
    /// GELU with a hyperbolic tangent.
    GeluTanh,
    /// The positive part.
    Relu,
    /// `x × sigmoid(x)`
    Swish,
    /// The hyperbolic tangent.
    Tanh,
}

/// Normalizes each row, or each head if the gain is as wide as a head.
#[derive(Debug)]
pub struct Norm {
    /// Whether the mean is subtracted first (layer normalization, rather than root mean square).
    pub centers: bool,
    /// Factor per column.
    pub gain: Array<Lanes>,
    /// Bias per column.
    pub bias: Array<Lanes>,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Scaled dot-product attention with several heads.
#[derive(Debug)]
pub struct Attention {
    /// Query vectors; a row per query.
    pub queries: View,
    /// A row per token.
    pub keys: View,
    /// A row per token.
    pub values: View,
    /// Number of query heads, which split the columns evenly.
    pub heads: usize,
    /// Number of key and value heads; consecutive query heads share one.
    pub key_heads: usize,
    /// Factor for query-key products.
    pub scale: f32,
    /// Rotates queries and keys.
    pub rotary: Option<RotaryId>,
    /// Attention window.
    pub window: AttentionWindow,
    /// Added to scores.
    pub bias: DistanceBias,
    /// The contexts, a row per query.
    pub out: ValueId,
}

/// A linear layer's per-output maximum over each text's tokens; `f32::MIN` without tokens.
///
/// A separate stage, since the layer may have a hundred thousand outputs: its tasks are output ranges, so that a
/// range's weights stay in the cache for all texts, and all tokens' outputs are never in memory at once.
#[derive(Debug)]
pub struct Largest {
    /// A row per token.
    pub input: ValueId,
    /// The weights, with as many outputs as `out` has values, padded to a multiple of 16.
    pub layer: Linear,
    /// A row per text.
    pub out: ValueId,
}

/// An attention window: the tokens a query attends to, apart from its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionWindow {
    /// Tokens before the query.
    pub before: usize,
    /// Tokens after the query.
    pub after: usize,
}

impl AttentionWindow {
    /// The whole text.
    pub const ALL: Self = Self { before: usize::MAX, after: usize::MAX };
}

/// Score bias by the key's distance to the query.
#[derive(Debug)]
pub enum DistanceBias {
    /// Nothing.
    None,
    /// Subtracts the distance times the head's slope (symmetric ALiBi).
    Slopes(Array<f32>),
    /// A value per distance, from the farthest before a query to the farthest after it; a row per head.
    Values {
        /// All heads' values.
        values: Array<f32>,
        /// Largest distance with its own value.
        farthest: usize,
    },
}

/// Table sizes and maximum text length. Ids, types and positions must be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Vocabulary size.
    pub ids: usize,
    /// Number of token types.
    pub types: usize,
    /// Number of positions.
    pub positions: usize,
    /// Maximum text length in tokens.
    pub length: usize,
}

/// Panels per task: with 768 inputs, 400 kB of weights, which fit into the second-level cache.
const PANELS_PER_PART: usize = 32;

impl Linear {
    /// Blocks per input row.
    pub(crate) fn blocks(&self) -> usize {
        self.inputs / self.block
    }
}

impl Largest {
    /// Number of output ranges.
    pub(crate) fn tasks(&self) -> usize {
        (self.layer.outputs / LANES).div_ceil(PANELS_PER_PART)
    }

    /// The panels in an output range.
    pub(crate) fn panels(&self, part: usize) -> Range<usize> {
        let first = part * PANELS_PER_PART;
        first..(first + PANELS_PER_PART).min(self.layer.outputs / LANES)
    }
}

impl RowOperation {
    /// Values the operation reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Self::Lookup { .. } => Vec::new(),
            Self::Pool { input, .. }
            | Self::Linear { input, .. }
            | Self::Dense { input, .. }
            | Self::Activation { input, .. }
            | Self::Gate { input, .. }
            | Self::Norm { input: View { value: input, .. }, residual: None, .. } => vec![input],
            Self::Norm { input: View { value: input, .. }, residual: Some(residual), .. } => {
                vec![input, residual]
            }
            Self::Add { inputs, .. } => inputs.to_vec(),
        }
    }

    /// The value it writes.
    pub fn output(&self) -> ValueId {
        match *self {
            Self::Lookup { out, .. }
            | Self::Pool { out, .. }
            | Self::Linear { out, .. }
            | Self::Dense { out, .. }
            | Self::Activation { out, .. }
            | Self::Gate { out, .. }
            | Self::Norm { out, .. }
            | Self::Add { out, .. } => out,
        }
    }
}
