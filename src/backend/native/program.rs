//! A model as a list of operations on the vectors of packed texts.
//!
//! Texts are packed: the tokens of all texts of a run are rows, one after the other, without padding. Operations on rows
//! treat each row on its own, so a run computes them in blocks of rows, and a text has the
//! same bits whatever else is in the run.
//! Only attention combines rows, those of one text.

use kivu_kernel::{Block, Lanes, Sums};

use super::weights::Array;

/// A model.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) values: Vec<Value>,
    /// The number of slots of memory.
    pub(super) slots: usize,
    /// In the order of execution. A stage ends where an operation needs rows that other threads may have computed.
    pub(super) stages: Vec<Stage>,
    pub(super) output: ValueId,
    pub(super) limits: Limits,
    /// The id of padding, if positions count as in fairseq: from the one after this id, and this id for padding.
    pub(super) padding: Option<u32>,
}

/// The index of a value in [`Program::values`].
pub(super) type ValueId = usize;

/// A matrix with a row for each token or for each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) per: Per,
    /// Values per row, a multiple of [`LANES`](kivu_kernel::LANES) except for outputs.
    pub(super) width: usize,
    /// The index of its memory, which values share that are not needed at the same time.
    pub(super) slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    Token,
    Text,
}

/// Columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) value: ValueId,
    pub(super) offset: usize,
    pub(super) width: usize,
}

/// Operations that are executed without waiting for other threads.
#[derive(Debug)]
pub(super) enum Stage {
    /// Operations on blocks of rows.
    Rows(RowStage),
    /// Attention within each text.
    Attention(Attention),
}

/// Operations on blocks of rows.
#[derive(Debug)]
pub(super) struct RowStage {
    pub(super) per: Per,
    /// The values of earlier stages that are read, and whether no later stage reads them.
    pub(super) loads: Vec<(ValueId, bool)>,
    pub(super) operations: Vec<RowOperation>,
    /// The values that later stages read.
    pub(super) stores: Vec<ValueId>,
}

/// An operation on each row.
#[derive(Debug)]
pub(super) enum RowOperation {
    /// Rows of a table by ids.
    Lookup {
        table: Table,
        index: Index,
        out: ValueId,
    },
    /// The first token of each text.
    First {
        input: ValueId,
        out: ValueId,
    },
    /// A linear layer in int8.
    Linear {
        input: ValueId,
        layer: Linear,
        out: ValueId,
    },
    /// A linear layer in fp32.
    Dense {
        input: ValueId,
        layer: Dense,
        out: ValueId,
    },
    Activation {
        function: Activation,
        input: ValueId,
        out: ValueId,
    },
    Add {
        inputs: [ValueId; 2],
        out: ValueId,
    },
    /// Layer normalization of an input, or of the sum of two.
    Norm {
        input: ValueId,
        residual: Option<ValueId>,
        norm: Norm,
        out: ValueId,
    },
}

/// The number by which a row of a table is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Index {
    Id,
    Type,
    Position,
}

/// The rows of an embedding table.
#[derive(Debug)]
pub(super) enum Table {
    Fp32(Array<f32>),
    /// Integers, with one scale per row.
    Int8(Array<i8>, Array<f32>),
}

/// The weights of a linear layer in int8, with one scale per output.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Panels of 16 outputs, each of `inputs` / 4 blocks.
    pub(super) panels: Array<Block>,
    pub(super) scales: Array<Lanes>,
    /// The sum of each output's weights.
    pub(super) sums: Array<Sums>,
    pub(super) bias: Array<Lanes>,
    pub(super) activation: Option<Activation>,
}

/// The weights of a linear layer in fp32.
#[derive(Debug)]
pub(super) struct Dense {
    pub(super) outputs: usize,
    /// A row per input.
    pub(super) weights: Array<f32>,
    pub(super) bias: Option<Array<f32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Swish,
    Tanh,
}

#[derive(Debug)]
pub(super) struct Norm {
    pub(super) gain: Array<Lanes>,
    pub(super) bias: Array<Lanes>,
    pub(super) epsilon: f32,
}

/// Scaled dot-product attention with several heads.
#[derive(Debug)]
pub(super) struct Attention {
    /// A row per query.
    pub(super) queries: View,
    pub(super) keys: View,
    pub(super) values: View,
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) out: ValueId,
}

/// The rows of the tables: the numbers that index them are smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) ids: usize,
    pub(super) types: usize,
    pub(super) positions: usize,
}
