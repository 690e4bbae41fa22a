//! A model as an operation list on packed texts' vectors.
//!
//! Texts are packed: the tokens of all texts in a run are consecutive rows, without padding. Row operations treat each
//! row on its own, so a run computes them in blocks, and a text has the same bits whatever else is in the run. Only
//! attention combines rows, within one text.

use std::ops::Range;

use crate::{
    array::Array,
    floats::Floats,
    kernel::{COLUMNS, LANES, Lanes, Sums},
    panels::Panels,
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

/// The token or text that a matrix row belongs to.
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
    /// The value that the columns belong to.
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
    /// Scores of word spans.
    Spans(Box<SpanHead>),
    /// Experts, each for the rows that chose it.
    Experts(ExpertStage),
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
#[expect(
    missing_docs,
    reason = "the fields that operations share are described above"
)]
pub enum RowOperation {
    /// Looks up table rows by id.
    Lookup {
        table: Table,
        /// The index that selects the row.
        index: Index,
        out: ValueId,
    },
    /// Pools a text's token rows into one; zeros without tokens.
    Pool {
        pooling: Pooling,
        input: ValueId,
        out: ValueId,
    },
    /// Joins as many consecutive rows as fit into `out`, from `before` rows before each token's own; zeros beyond the text.
    Neighbours {
        input: ValueId,
        before: usize,
        out: ValueId,
    },
    /// Gates a short convolution: of each input row's thirds, the first times the last is convolved, then multiplied by the
    /// second.
    GatedConvolution {
        input: ValueId,
        convolution: Convolution,
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
    /// An activation function.
    Activation {
        function: Activation,
        input: ValueId,
        out: ValueId,
    },
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
    /// Multiplies two values.
    Multiply { inputs: [ValueId; 2], out: ValueId },
    /// Multiplies a value by a number.
    Scale {
        input: ValueId,
        factor: f32,
        out: ValueId,
    },
    /// Adds the product of a task's adapters and the second value to the first. A token's type is the number of its task,
    /// from 1 on; 0 adds nothing.
    Adapt {
        inputs: [ValueId; 2],
        adapters: Adapters,
        out: ValueId,
    },
    /// Chooses experts for each row: their numbers in rising order, then their weights.
    Route {
        input: ValueId,
        router: Router,
        out: ValueId,
    },
    /// Sums the chosen experts' results, each times its weight, and adds the bias.
    Combine {
        choices: ValueId,
        /// Experts per row.
        top: usize,
        /// Results of an [`ExpertStage`].
        results: ValueId,
        bias: Array<Lanes>,
        out: ValueId,
    },
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

/// The index that selects a table row.
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
    Fp32(Floats),
    /// Integers, with one scale per row.
    Int8(Array<i8>, Array<f32>),
}

/// Factors and offsets for a layer's input columns, which give them similar ranges: one scale then suits all of them.
#[derive(Debug)]
pub struct InputScaling {
    /// A factor per column.
    pub factors: Array<Lanes>,
    /// Added to each column after its factor.
    pub offsets: Array<Lanes>,
}

/// A linear layer in int8, with a scale per output and input block.
#[derive(Debug)]
pub struct Linear {
    /// The weights' name in the graph.
    pub name: String,
    /// Values per input row, a multiple of [`Linear::block`].
    pub inputs: usize,
    /// Inputs that share a scale: all, or part of each row; a multiple of 16.
    pub block: usize,
    /// Values per output row, a multiple of 16.
    pub outputs: usize,
    /// Applied to the inputs before quantization.
    pub scaling: Option<InputScaling>,
    /// The integers.
    pub panels: Panels,
    /// Scales per panel and block.
    pub scales: Array<Lanes>,
    /// Weight sums per panel and block.
    pub sums: Array<Sums>,
    /// Added to each output; zeros in a layer without a bias.
    pub bias: Array<Lanes>,
    /// Applied to the outputs, after the bias.
    pub activation: Option<Activation>,
}

/// A convolution of each column over a few rows; beyond the text are zeros.
#[derive(Debug)]
pub struct Convolution {
    /// Factors: a row per neighbour, the first of which is `before` rows before a token's own.
    pub taps: Array<f32>,
    /// Rows before a token's own.
    pub before: usize,
    /// Added to each column.
    pub bias: Option<Array<f32>>,
}

/// A linear layer in fp32.
#[derive(Debug)]
pub struct Dense {
    /// Values per output row.
    pub outputs: usize,
    /// Outputs of a panel, which has a row per input: all of them, or [`COLUMNS`](crate::kernel::COLUMNS).
    pub panel: usize,
    /// Panels, one after the other; in 32 bits unless they have [`COLUMNS`](crate::kernel::COLUMNS) outputs.
    pub weights: Floats,
    /// Added to each output.
    pub bias: Option<Array<f32>>,
}

impl Dense {
    /// Values per input row.
    #[inline(always)]
    pub fn inputs(&self) -> usize {
        self.weights.len() / self.outputs
    }
}

/// A linear layer, in either precision.
#[derive(Debug)]
pub enum Layer {
    /// With 8-bit weights.
    Int8(Linear),
    /// With 32-bit weights.
    Fp32(Dense),
}

impl Layer {
    /// Values per input row.
    #[inline(always)]
    pub fn inputs(&self) -> usize {
        match self {
            Self::Int8(layer) => layer.inputs,
            Self::Fp32(layer) => layer.inputs(),
        }
    }

    /// Values per output row.
    #[inline(always)]
    pub fn outputs(&self) -> usize {
        match self {
            Self::Int8(layer) => layer.outputs,
            Self::Fp32(layer) => layer.outputs,
        }
    }
}

/// Chooses experts for a row. A softmax makes weights of their logits.
#[derive(Debug)]
pub struct Router {
    /// A logit per expert.
    pub layer: Dense,
    /// Experts per row, with the largest logits.
    pub top: usize,
    /// The logits in the softmax.
    pub softmax: RouterSoftmax,
}

/// Which experts' logits are in a router's softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterSoftmax {
    /// The logits of all experts.
    All,
    /// The logits of the chosen experts.
    Chosen,
}

/// Feed-forward layers of experts. A separate stage, with a task per expert, so that a run reads an expert's weights once.
#[derive(Debug)]
pub struct ExpertStage {
    /// A row per token or text.
    pub input: ValueId,
    /// Choices by [`RowOperation::Route`].
    pub choices: ValueId,
    /// Experts per row.
    pub top: usize,
    /// Two layers per expert.
    pub layers: Vec<[Layer; 2]>,
    /// Between both layers; GELU without it.
    pub gate: Option<LimitedGate>,
    /// A part per expert: the results of the rows that chose it, and then the rows' numbers.
    pub out: ValueId,
}

/// The halves `g` and `u` of a row become `(u + 1) × g × sigmoid(alpha × g)`, with `g` at most `limit`, and `u` from
/// `-limit` to `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitedGate {
    /// Factor in the sigmoid.
    pub alpha: f32,
    /// Limit for both halves.
    pub limit: f32,
}

/// Narrow matrices per task, in fp32 (LoRA).
#[derive(Debug)]
pub struct Adapters {
    /// Numbers between a task's two matrices.
    pub rank: usize,
    /// Projects an input to these numbers: a row per task and number. `None` if the input has the numbers of all tasks, one
    /// task after the other.
    pub down: Option<Array<Lanes>>,
    /// Projects these numbers to an output: a row per task and number.
    pub up: Array<Lanes>,
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
    /// 127 times the hyperbolic tangent, rounded; halves to even.
    RoundedTanh,
}

/// Normalizes each row, or each head if the gain is as wide as a head.
#[derive(Debug)]
pub struct Norm {
    /// Whether the mean is subtracted first (layer normalization, rather than root mean square).
    pub centers: bool,
    /// Whether rows are normalized at all, before the gain and the bias.
    pub scales: bool,
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
    /// Limit for scores, by a hyperbolic tangent.
    pub cap: Option<f32>,
    /// A logit per query head that takes part in the softmax, without a value.
    pub sinks: Option<Array<f32>>,
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
    /// The weights, with as many outputs as `out` has values, padded to whole panels.
    pub layer: Layer,
    /// A row per text.
    pub out: ValueId,
}

/// Scores for each text's words or word spans and for labels (GLiNER), which are in front of the text, or have vectors from
/// another model.
///
/// A token's type is the number of the word that begins with it, or 0.
#[derive(Debug)]
pub struct SpanHead {
    /// A row per token.
    pub input: ValueId,
    /// Values per word and label.
    pub width: usize,
    /// The id of the token before each label; `None` if runs have the labels' vectors.
    pub marker: Option<u32>,
    /// The tokens around labels, in heads whose labels are in schemas.
    pub schemas: Option<SchemaTokens>,
    /// Recurrent layers over a text's words.
    pub layers: Vec<Lstm>,
    /// The scorer for each word and label.
    pub scorer: Scorer,
    /// A part per text: scores by word and label. Its width is the number of scores per word and label.
    pub out: ValueId,
}

/// Tokens in GLiNER2's schemas, each of which has labels behind the token in front of its name. The head's own marker is in
/// front of entity labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaTokens {
    /// The token in front of a schema's name.
    pub schema: u32,
    /// Tokens in front of labels that each instance has: a structure's fields, and both ends of a relation.
    pub fields: [u32; 2],
    /// The token in front of labels that the text has.
    pub class: u32,
}

/// A word's scores for a label.
#[derive(Debug)]
pub enum Scorer {
    /// The spans that begin with the word, by length.
    Spans(SpanScorer),
    /// The word as the first, as the last, and as any word of an entity.
    Words(WordScorer),
    /// The text, which is the only word (GLiClass).
    Texts(TextScorer),
    /// The label, whose vector the text has contributed to: two layers, with a ReLU between them, the last with
    /// one output and zeros up to [`COLUMNS`](crate::kernel::COLUMNS) (GLiNER2).
    Labels([Dense; 2]),
}

/// Layers that score spans.
#[derive(Debug)]
pub struct SpanScorer {
    /// Maximum number of words in a span.
    pub longest: usize,
    /// Layers from a label's vector to the one that spans are compared with.
    pub labels: LabelLayers,
    /// Layers from that vector to the label's factors and bias.
    pub factors: [Dense; 2],
    /// Layers on a word's vector, for spans that begin and that end with it.
    pub sides: [[Dense; 3]; 2],
}

/// Layers on label vectors in front of a span scorer.
#[derive(Debug)]
pub enum LabelLayers {
    /// Two layers, with a ReLU between them (GLiNER).
    Plain([Dense; 2]),
    /// A recurrent step and further layers (GLiNER2).
    Counted(Box<CountedLabels>),
}

/// GLiNER2's layers on label vectors: a recurrent layer that has a step per instance, and layers on its result.
///
/// A schema's likeliest number of instances is the number of steps for its labels; entities have one step at most. A text
/// has a score per word for each label in each instance. The scores are [`ABSENT`] if a label's schema has fewer instances,
/// and a class label's score is the same for all words and instances.
#[derive(Debug)]
pub struct CountedLabels {
    /// Two layers on the schema token's vector, with a ReLU between them: a logit per number of instances.
    pub counts: [Dense; 2],
    /// Each step's own contribution to the gates reset, update and new state.
    pub steps: Array<f32>,
    /// Projects the state before a step, at first a label's vector, to the same gates.
    pub gates: Dense,
    /// Layers after a step.
    pub mixing: Mixing,
    /// Two layers on a class label's vector, with a ReLU between them, the last with one output and zeros up to
    /// [`COLUMNS`](crate::kernel::COLUMNS).
    pub classes: [Dense; 2],
}

/// Layers on the state after a recurrent step.
#[derive(Debug)]
pub enum Mixing {
    /// Two layers on the state and the label's vector, concatenated, with a ReLU between the layers.
    Joined([Dense; 2]),
    /// Attention among a schema's labels.
    Attention(Box<LabelTransformer>),
    /// A sum of experts, weighted by a router.
    Experts(Box<Experts>),
}

/// A transformer over a schema's labels. It reads sums of state and label vector.
#[derive(Debug)]
pub struct LabelTransformer {
    /// Number of attention heads.
    pub heads: usize,
    /// Projects label vectors to the transformer's width.
    pub input: Dense,
    /// Its layers.
    pub layers: Vec<LabelTransformerLayer>,
    /// Three layers on its result and on its own input, concatenated, with a ReLU after all but the last.
    pub output: [Dense; 3],
}

/// A transformer layer with normalizations after attention and feed-forward layers.
#[derive(Debug)]
pub struct LabelTransformerLayer {
    /// Projects to queries, keys and values.
    pub projection: Dense,
    /// Projects the attended values.
    pub output: Dense,
    /// Norms after attention, and after the feed-forward layers.
    pub norms: [Norm; 2],
    /// Feed-forward layers, with a ReLU after the first.
    pub feed_forward: [Dense; 2],
}

/// Experts, and the layers that weigh them.
#[derive(Debug)]
pub struct Experts {
    /// Two layers with GELU between them: a logit per expert.
    pub router: [Dense; 2],
    /// Two layers with GELU between them.
    pub experts: Vec<[Dense; 2]>,
}

/// Logit of spans in instances that a text does not have, by count: its sigmoid is 0.
pub const ABSENT: f32 = -1e4;

/// Layers that score words. A word and a label each have two vectors: the second vectors' product passes a layer, and both
/// first vectors contribute to its result.
#[derive(Debug)]
pub struct WordScorer {
    /// Scores per word and label, at most [`COLUMNS`](crate::kernel::COLUMNS).
    pub count: usize,
    /// Layers on a word's vector: its first vector, with its contribution, and its second vector.
    pub words: [Dense; 3],
    /// The same for a label.
    pub labels: [Dense; 3],
    /// Projects the products; a ReLU follows.
    pub products: Dense,
    /// The last layer, with `count` outputs and zeros up to [`COLUMNS`](crate::kernel::COLUMNS).
    pub scores: Dense,
}

/// Scores per word and label in GLiNER: the word as the first, the last and any word of an entity.
pub const WORD_SCORES: usize = 3;

/// Layers that score a text. All tokens that are pooled begin the first word; their sum or mean is the text's vector.
#[derive(Debug)]
pub struct TextScorer {
    /// Whether tokens are averaged, rather than added up.
    pub is_mean: bool,
    /// Two layers on the text's vector, with GELU between them.
    pub text: [Dense; 2],
    /// The same for a label.
    pub label: [Dense; 2],
    /// Factor for the scores of normalized vectors; `None` if vectors are not normalized.
    pub scale: Option<f32>,
    /// The score of a text's and a label's vector.
    pub pairs: PairScorer,
}

/// The score of a text's and a label's vector.
#[derive(Debug)]
pub enum PairScorer {
    /// Their dot product.
    Dot,
    /// Layers on both vectors and on their product.
    Products(Box<WordScorer>),
    /// Layers on both vectors, one after the other.
    Layers(Box<PairLayers>),
}

/// Three layers on two vectors, one after the other, with positive values between them. The first layer has two parts,
/// whose results are added.
#[derive(Debug)]
pub struct PairLayers {
    /// The first layer's part for texts, with the bias.
    pub text: Dense,
    /// The first layer's part for labels, without a bias.
    pub label: Dense,
    /// The second layer.
    pub middle: Dense,
    /// The last layer, with one output and zeros up to [`COLUMNS`](crate::kernel::COLUMNS).
    pub last: Dense,
}

/// A bidirectional LSTM layer, with the gates input, output, forget and cell.
#[derive(Debug)]
pub struct Lstm {
    /// Projects words to both directions' gates, one after the other.
    pub gates: Dense,
    /// For each direction, a row per state and a column per gate and state.
    pub states: Array<f32>,
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
    pub const ALL: Self = Self {
        before: usize::MAX,
        after: usize::MAX,
    };
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
    /// Products with vectors for the distance (DeBERTa).
    Vectors(DistanceVectors),
}

/// Vectors for distances between a query and a key, positive if the key is before the query. Far distances share them.
#[derive(Debug)]
pub struct DistanceVectors {
    /// The column of each distance in the tables, from the farthest key after a query to the farthest before it. A
    /// distance has its predecessor's column, or the next one.
    columns: Vec<u32>,
    /// Number of heads in each table.
    pub heads: usize,
    /// Numbers per vector.
    size: usize,
    /// Vectors that queries are multiplied by: for each head, panels with a row per number and 32 columns.
    pub keys: Option<Array<f32>>,
    /// Vectors that keys are multiplied by, in the same order.
    pub queries: Option<Array<f32>>,
}

/// Tables of distance vectors, and their shape.
#[derive(Debug)]
pub struct DistanceTables {
    /// Heads, panels of 32 columns, numbers per vector.
    pub shape: [usize; 3],
    /// Vectors that queries are multiplied by.
    pub keys: Option<Array<f32>>,
    /// Vectors that keys are multiplied by.
    pub queries: Option<Array<f32>>,
}

impl DistanceVectors {
    /// Joins tables with each distance's column. `None` unless columns rise by 0 or 1 per distance, distances are odd in
    /// number, and tables have their shape and all columns.
    pub fn new(columns: Vec<u32>, tables: DistanceTables) -> Option<Self> {
        let DistanceTables {
            shape: [heads, panels, size],
            keys,
            queries,
        } = tables;
        let rises = columns
            .windows(2)
            .all(|pair| pair[1].checked_sub(pair[0]).is_some_and(|step| step <= 1));
        let last = *columns.last()? as usize;
        let numbers = heads
            .checked_mul(panels)?
            .checked_mul(size)?
            .checked_mul(COLUMNS)?;
        let fits =
            |table: &Option<Array<f32>>| table.as_ref().is_none_or(|table| table.len() == numbers);
        let is_valid = rises
            && columns.len() % 2 == 1
            && last / COLUMNS < panels
            && heads > 0
            && size > 0
            && fits(&keys)
            && fits(&queries);
        is_valid.then_some(Self {
            columns,
            heads,
            size,
            keys,
            queries,
        })
    }

    /// Whether the tables are for this number of heads, and for heads of this size.
    pub fn has_shape(&self, heads: usize, size: Option<usize>) -> bool {
        self.heads == heads && size == Some(self.size)
    }

    /// Maximum number of tokens.
    pub fn max_tokens(&self) -> usize {
        self.columns.len() / 2 + 1
    }

    /// Columns for a range of distances.
    pub fn columns_of(&self, distances: Range<isize>) -> &[u32] {
        let zero = (self.columns.len() / 2) as isize;
        &self.columns[(zero + distances.start) as usize..(zero + distances.end) as usize]
    }
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

impl Program {
    /// Multiplications in the linear layers of each token.
    pub fn token_products(&self) -> usize {
        let size = |layer: &Linear| layer.inputs * layer.outputs;
        let of_operation = |operation: &RowOperation| match operation {
            RowOperation::Linear { layer, .. } => size(layer),
            RowOperation::Dense { layer, .. } => layer.weights.len(),
            RowOperation::Route { router, .. } => router.layer.weights.len(),
            _ => 0,
        };
        let of_stage = |stage: &Stage| match stage {
            Stage::Rows(stage) if stage.per == Per::Token => {
                stage.operations.iter().map(of_operation).sum()
            }
            Stage::Experts(stage) if self.values[stage.input].per == Per::Token => {
                let layers = stage.layers.first().into_iter().flatten();
                let size = |layer: &Layer| layer.inputs() * layer.outputs();
                stage.top * layers.map(size).sum::<usize>()
            }
            _ => 0,
        };
        self.stages.iter().map(of_stage).sum()
    }

    /// The head that scores spans, if `value` has its scores.
    pub fn spans(&self, value: ValueId) -> Option<&SpanHead> {
        self.stages.iter().find_map(|stage| match stage {
            Stage::Spans(head) if head.out == value => Some(head.as_ref()),
            _ => None,
        })
    }
}

/// Outputs per task in 8 bits; a quarter of them in fp32. With 768 inputs, 400 kB of weights, which fit into the
/// second-level cache.
const OUTPUTS_PER_TASK: usize = 32 * LANES;

impl Linear {
    /// Blocks per input row.
    pub fn blocks(&self) -> usize {
        self.inputs / self.block
    }
}

impl Largest {
    /// Number of output ranges.
    pub fn tasks(&self) -> usize {
        self.layer.outputs().div_ceil(self.outputs_per_task())
    }

    /// The outputs in a range.
    pub fn outputs(&self, task: usize) -> Range<usize> {
        let (size, all) = (self.outputs_per_task(), self.layer.outputs());
        task * size..((task + 1) * size).min(all)
    }

    fn outputs_per_task(&self) -> usize {
        match self.layer {
            Layer::Int8(_) => OUTPUTS_PER_TASK,
            Layer::Fp32(_) => OUTPUTS_PER_TASK / 4,
        }
    }
}

impl RowOperation {
    /// Whether it reads rows of its input that other threads may have computed.
    pub fn reads_other_rows(&self) -> bool {
        matches!(
            self,
            Self::Pool { .. }
                | Self::Neighbours { .. }
                | Self::GatedConvolution { .. }
                | Self::Combine { .. }
        )
    }

    /// Values the operation reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Self::Lookup { .. } => Vec::new(),
            Self::Pool { input, .. }
            | Self::Neighbours { input, .. }
            | Self::GatedConvolution { input, .. }
            | Self::Linear { input, .. }
            | Self::Dense { input, .. }
            | Self::Activation { input, .. }
            | Self::Gate { input, .. }
            | Self::Route { input, .. }
            | Self::Scale { input, .. }
            | Self::Norm {
                input: View { value: input, .. },
                residual: None,
                ..
            } => vec![input],
            Self::Norm {
                input: View { value: input, .. },
                residual: Some(residual),
                ..
            } => {
                vec![input, residual]
            }
            Self::Add { inputs, .. }
            | Self::Multiply { inputs, .. }
            | Self::Adapt { inputs, .. } => inputs.to_vec(),
            Self::Combine {
                choices, results, ..
            } => vec![choices, results],
        }
    }

    /// The value it writes.
    pub fn output(&self) -> ValueId {
        match *self {
            Self::Lookup { out, .. }
            | Self::Pool { out, .. }
            | Self::Neighbours { out, .. }
            | Self::GatedConvolution { out, .. }
            | Self::Linear { out, .. }
            | Self::Dense { out, .. }
            | Self::Activation { out, .. }
            | Self::Gate { out, .. }
            | Self::Route { out, .. }
            | Self::Combine { out, .. }
            | Self::Norm { out, .. }
            | Self::Add { out, .. }
            | Self::Multiply { out, .. }
            | Self::Scale { out, .. }
            | Self::Adapt { out, .. } => out,
        }
    }
}
