//! A model as a list of operations on the vectors of packed texts.
//!
//! Texts are packed: the tokens of all texts of a run are rows, one after the other, without padding. Operations on rows
//! treat each row on its own, so a run computes them in blocks of rows, and a text has the same bits whatever else is in
//! the run. Only attention combines rows, those of one text.

use std::ops::Range;

use crate::{
    array::Array,
    kernel::{Block, LANES, Lanes, Sums},
    rotary::Rotary,
};

/// A model.
#[derive(Debug)]
pub struct Program {
    /// The matrices that operations read and write.
    pub values: Vec<Value>,
    /// The rotations of attention, which layers share.
    pub rotaries: Vec<Rotary>,
    /// The number of slots of memory.
    pub slots: usize,
    /// In the order of execution. A stage ends where an operation needs rows that other threads may have computed.
    pub stages: Vec<Stage>,
    /// The values that a run returns.
    pub outputs: Vec<ValueId>,
    /// The numbers that the tables have rows for.
    pub limits: Limits,
    /// The id of padding, if positions count as in fairseq: from the one after this id, and this id for padding.
    pub padding: Option<u32>,
}

/// The index of a value in [`Program::values`].
pub type ValueId = usize;
/// The index of a rotation in [`Program::rotaries`].
pub type RotaryId = usize;

/// A matrix with a row for each token or for each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The rows of the matrix.
    pub per: Per,
    /// Values per row, a multiple of [`LANES`](crate::kernel::LANES) except for outputs.
    pub width: usize,
    /// The index of its memory, which values share that are not needed at the same time.
    pub slot: usize,
}

/// The unit that each row of a matrix belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// A token of any text.
    Token,
    /// A text.
    Text,
}

/// Columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The value that has the columns.
    pub value: ValueId,
    /// The first column.
    pub offset: usize,
    /// The number of columns.
    pub width: usize,
}

/// Operations that are executed without waiting for other threads.
#[derive(Debug)]
pub enum Stage {
    /// Operations on blocks of rows.
    Rows(RowStage),
    /// Attention within each text.
    Attention(Attention),
    /// The largest outputs of a linear layer in each text.
    Largest(Largest),
}

/// Operations on blocks of rows.
#[derive(Debug)]
pub struct RowStage {
    /// The rows of its values.
    pub per: Per,
    /// The values of earlier stages that are read.
    pub loads: Vec<Load>,
    /// In the order of execution.
    pub operations: Vec<RowOperation>,
    /// The values that later stages read.
    pub stores: Vec<ValueId>,
}

/// A value that an earlier stage has computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The value that is copied into the block.
    pub value: ValueId,
    /// Whether no later stage reads it.
    pub is_last: bool,
    /// The number of heads that are joined to rows, if attention has computed it.
    pub heads: Option<usize>,
}

/// An operation on each row: it reads the value `input`, or both `inputs`, and writes the value `out`.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields that operations share are described above")]
pub enum RowOperation {
    /// Rows of a table by ids.
    Lookup {
        table: Table,
        /// The number that selects the row.
        index: Index,
        out: ValueId,
    },
    /// A row for each text, from those of its tokens; zeros without tokens.
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
    /// The sum of two values.
    Add { inputs: [ValueId; 2], out: ValueId },
    /// Normalization of an input, or of the sum of two.
    Norm {
        /// Columns of a value.
        input: View,
        /// The rows that are added first.
        residual: Option<ValueId>,
        norm: Norm,
        out: ValueId,
    },
}

/// The row of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// The mean of all tokens.
    Mean,
}

/// The number by which a row of a table is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The id of the token.
    Id,
    /// The type of the token.
    Type,
    /// The position of the token.
    Position,
}

/// The rows of an embedding table.
#[derive(Debug)]
pub enum Table {
    /// In fp32.
    Fp32(Array<f32>),
    /// Integers, with one scale per row.
    Int8(Array<i8>, Array<f32>),
}

/// A linear layer in int8, with a scale for each output and block of inputs.
#[derive(Debug)]
pub struct Linear {
    /// Values per input row, a multiple of [`Linear::block`].
    pub inputs: usize,
    /// The number of inputs that have a common scale: all of them, or a part of each row; a multiple of 16.
    pub block: usize,
    /// Values per output row, a multiple of 16.
    pub outputs: usize,
    /// Panels of 16 outputs, each of `inputs` / 4 blocks.
    pub panels: Array<Block>,
    /// The scales of the blocks of each panel.
    pub scales: Array<Lanes>,
    /// The sums of the weights of the blocks of each panel.
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

/// Normalization of a row, or of each of its parts (heads) that are as wide as the gain.
#[derive(Debug)]
pub struct Norm {
    /// Whether the mean is subtracted first (layer normalization, rather than root mean square).
    pub centers: bool,
    /// The factor of each value.
    pub gain: Array<Lanes>,
    /// The bias of each value.
    pub bias: Array<Lanes>,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Scaled dot-product attention with several heads.
#[derive(Debug)]
pub struct Attention {
    /// A row per query.
    pub queries: View,
    /// A row per token.
    pub keys: View,
    /// A row per token.
    pub values: View,
    /// The number of heads of queries, which have equal parts of the columns.
    pub heads: usize,
    /// The number of heads of keys and of values: each serves as many heads of queries, in order.
    pub key_heads: usize,
    /// The factor of products of queries and keys.
    pub scale: f32,
    /// Rotates queries and keys.
    pub rotary: Option<RotaryId>,
    /// The tokens that a query attends to.
    pub reach: Reach,
    /// Added to scores.
    pub bias: DistanceBias,
    /// The contexts, a row per query.
    pub out: ValueId,
}

/// The largest value of each output of a linear layer among the tokens of each text; the lowest number without tokens.
///
/// A stage of its own, since the layer may have a hundred thousand outputs: its tasks are parts of the outputs, so that
/// the weights of a part stay in the cache for all texts, and the outputs of all tokens are never in memory.
#[derive(Debug)]
pub struct Largest {
    /// A row per token.
    pub input: ValueId,
    /// The weights, with as many outputs as `out` has values, padded to a multiple of 16.
    pub layer: Linear,
    /// A row per text.
    pub out: ValueId,
}

/// The tokens that a query attends to, apart from its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The number of tokens before it.
    pub before: usize,
    /// The number of tokens after it.
    pub after: usize,
}

impl Reach {
    /// All tokens of the text.
    pub const ALL: Self = Self { before: usize::MAX, after: usize::MAX };
}

/// A bias of the score of a key, by its distance to the query.
#[derive(Debug)]
pub enum DistanceBias {
    /// Nothing.
    None,
    /// The distance times the slope of the head is subtracted (ALiBi, in its symmetric form).
    Slopes(Array<f32>),
    /// A value per distance, from the farthest before a query to the farthest after it; a row per head.
    Values {
        /// The values of all heads.
        values: Array<f32>,
        /// The largest distance.
        farthest: usize,
    },
}

/// The numbers of rows of the tables, and the maximum length of a text. Ids, types and positions must be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size of the vocabulary.
    pub ids: usize,
    /// The number of token types.
    pub types: usize,
    /// The number of positions.
    pub positions: usize,
    /// The maximum number of tokens of a text.
    pub length: usize,
}

/// Panels of a part of a layer: with 768 inputs, 400 kB of weights, which fit into the second-level cache.
const PANELS_PER_PART: usize = 32;

impl Linear {
    /// The number of blocks of a row of inputs.
    pub(crate) fn blocks(&self) -> usize {
        self.inputs / self.block
    }
}

impl Largest {
    /// The number of parts of its outputs.
    pub(crate) fn tasks(&self) -> usize {
        (self.layer.outputs / LANES).div_ceil(PANELS_PER_PART)
    }

    /// The panels of one part.
    pub(crate) fn panels(&self, part: usize) -> Range<usize> {
        let first = part * PANELS_PER_PART;
        first..(first + PANELS_PER_PART).min(self.layer.outputs / LANES)
    }
}

impl RowOperation {
    /// The values that the operation reads.
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

    /// The value that it writes.
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
