//! What the graphs of an encoder and a decoder share: tables, and the parts of layers.
//!
//! A layer is a chain of parts (attention or memory, feed-forward), and the sum of all before goes past each.
//! That sum and the next normalisation are one operator, wherever the family puts its normalisations.

use super::model::{Norms, Table, TranslationModel};
use crate::{
    build::{
        layers::{BLOCK, Layers, MASKED},
        onnx::{GraphBuilder, Value, float, integer, proto::Dimension},
        quantise,
        weights::{Weight, Weights},
    },
    error::Result,
    repository::manifest::Precision,
};

/// The sizes of blocks that the runtime takes, the one that measured fastest first.
const BLOCKS: [usize; 5] = [256, 128, 64, 32, 16];
/// A vector has as many blocks at least, if it has room for them: small models need the precision.
const FEWEST: usize = 4;
/// What is added to an 8-bit integer to store it without a sign.
const SHIFT: u8 = 128;

/// One of the two graphs under construction.
pub(super) struct Writer<'a> {
    pub(super) model: &'a TranslationModel,
    pub(super) layers: Layers<'a>,
    /// The normalisations to come, in their order.
    norms: std::vec::IntoIter<String>,
}

/// What goes through a stack of layers.
pub(super) struct Stream {
    /// What the next part reads.
    pub(super) read: Value,
    /// What the next part's outcome is added to.
    sum: Value,
}

/// What the rows of a table are multiplied by.
enum Scales {
    /// Nothing: they are in fp32.
    None,
    /// All by the same, as in models that were trained on 8-bit integers.
    One(f32),
    /// Each block of so many values by its own.
    ByBlock(Value, usize),
}

/// A table in 8-bit integers, one scale a block.
struct Blocks {
    size: usize,
    values: Vec<u8>,
    scales: Vec<f32>,
}

impl<'a> Writer<'a> {
    /// A writer whose linear layers are stored in `precision`, in blocks of `block` where that is so.
    pub(super) fn new(
        model: &'a TranslationModel,
        weights: &'a Weights,
        precision: Precision,
        block: usize,
    ) -> Self {
        let graph = GraphBuilder::default();
        let layers =
            Layers { graph, weights, precision, block, hidden: model.hidden, epsilon: model.epsilon };
        Self { model, layers, norms: Vec::new().into_iter() }
    }

    /// Begins a stack of layers; `norms` are the normalisations of its parts, and the last one, if there is one.
    pub(super) fn begin(&mut self, input: Value, norms: Vec<String>) -> Result<Stream> {
        self.norms = norms.into_iter();
        let read = match self.model.norms {
            Norms::Before => {
                let name = self.norm();
                self.layers.normalise(&input, &name)?
            }
            Norms::After => input.clone(),
        };
        Ok(Stream { read, sum: input })
    }

    /// Ends a part: its outcome is added to what went past it, and the sum normalised.
    pub(super) fn end_part(&mut self, stream: &Stream, outcome: &Value) -> Result<Stream> {
        let name = self.norm();
        match self.model.norms {
            Norms::Before => {
                let [read, sum] = self.layers.add_norm_and_sum(outcome, &stream.sum, &name)?;
                Ok(Stream { read, sum })
            }
            Norms::After => {
                let read = self.layers.add_and_norm(outcome, &stream.sum, &name)?;
                Ok(Stream { sum: read.clone(), read })
            }
        }
    }

    /// The name of the next normalisation. There are as many as parts, so that the last one is never asked for
    /// twice.
    fn norm(&mut self) -> String {
        self.norms.next().unwrap_or_default()
    }

    /// The feed-forward part of a layer.
    pub(super) fn feed_forward(&mut self, layer: &str, stream: &Stream, width: usize) -> Result<Stream> {
        let hidden = self.model.hidden;
        let raised = self.linear_by_token(&format!("{layer}.fc1"), &stream.read, hidden, width)?;
        let raised = self.layers.activate(self.model.activation, &raised);
        let lowered = self.linear_by_token(&format!("{layer}.fc2"), &raised, width, hidden)?;
        self.end_part(stream, &lowered)
    }

    /// A linear layer with a scale for each token, which models that were trained in integers do without: a third
    /// of the operators of an encoder.
    pub(super) fn linear_by_token(
        &mut self,
        name: &str,
        input: &Value,
        inputs: usize,
        outputs: usize,
    ) -> Result<Value> {
        if self.model.trained_in_integers {
            return self.layers.linear(&[name.to_owned()], input, inputs, outputs);
        }
        self.layers.linear_by_token(name, input, inputs, outputs)
    }

    /// The linear layers whose outcomes attention compares: in blocks, where others have one scale an output
    /// channel. In encoders that were not trained in integers they cause most of the rounding error, and take the
    /// least time.
    pub(super) fn careful_linear(&mut self, names: &[String], input: &Value) -> Result<Value> {
        let hidden = self.model.hidden;
        let careful = match self.layers.precision {
            Precision::Int8 if !self.model.trained_in_integers => Precision::Int8Blocks,
            precision => precision,
        };
        let precision = std::mem::replace(&mut self.layers.precision, careful);
        let projected = self.layers.linear(names, input, hidden, hidden);
        self.layers.precision = precision;
        projected
    }

    /// Attention to `key` and `value` where `mask` is not zero.
    pub(super) fn attend(&mut self, [query, key, value]: [&Value; 3], mask: &Value, heads: usize) -> Value {
        let inputs = [query, key, value, &Value::none(), mask];
        self.layers.graph.microsoft("MultiHeadAttention", &inputs, attention(heads))
    }

    /// Embeddings and positions together. Where the decoder starts empty, the embedding of −1 is all zeros.
    pub(super) fn embed(&mut self, table: &Table, ids: &Value, positions: &Value) -> Result<Value> {
        let (values, scales) = self.rows(table)?;
        let graph = &mut self.layers.graph;
        let (words, scale) = match scales {
            // The two scales are one.
            Scales::One(step) => {
                let rows = graph.node("Gather", &[&values, ids], vec![]);
                (dequantise(graph, &rows, "embedding.step", step * self.model.scale), 1.0)
            }
            Scales::ByBlock(scales, size) => {
                let attributes = vec![
                    integer("bits", 8),
                    integer("block_size", size as i64),
                    integer("gather_axis", 0),
                    integer("quantize_axis", 2),
                ];
                let words = graph.microsoft("GatherBlockQuantized", &[&values, ids, &scales], attributes);
                let whole = graph.integers("whole_words", &[0, 0, -1]);
                (graph.node("Reshape", &[&words, &whole], vec![]), self.model.scale)
            }
            Scales::None => (graph.node("Gather", &[&values, ids], vec![]), self.model.scale),
        };
        let words = if scale == 1.0 {
            words
        } else {
            let scale = graph.floats("scale", &[], &[scale]);
            graph.node("Mul", &[&words, &scale], vec![])
        };
        Ok(graph.node("Add", &[&words, positions], vec![]))
    }

    /// The rows of a table for hundreds of ids. The operator that looks up blocks and makes numbers of them at once
    /// takes 15 times as long for so many: 1.2 ms in place of 0.07 for 650 of 32000 rows.
    pub(super) fn look_up_many(&mut self, table: &Table, ids: &Value) -> Result<Value> {
        let width = self.model.hidden;
        let (values, scales) = self.rows(table)?;
        let graph = &mut self.layers.graph;
        let rows = graph.node("Gather", &[&values, ids], vec![]);
        let scales = match scales {
            Scales::None => return Ok(rows),
            Scales::One(step) => return Ok(dequantise(graph, &rows, "output.step", step)),
            Scales::ByBlock(scales, _) => scales,
        };
        let whole = graph.integers("whole_rows", &[-1, width as i64]);
        let rows = dequantise(graph, &rows, "unit", 1.0);
        let scales = graph.node("Gather", &[&scales, ids], vec![]);
        let rows = graph.node("Mul", &[&rows, &scales], vec![]);
        Ok(graph.node("Reshape", &[&rows, &whole], vec![]))
    }

    /// The rows of a table as constants, with their scales. Where the decoder starts empty, a row of zeros comes
    /// last.
    fn rows(&mut self, table: &Table) -> Result<(Value, Scales)> {
        let width = self.model.hidden;
        let weight = self.table(table)?;
        let rows = table.rows + usize::from(self.model.starts_empty);
        let Some(blocks) = self.blocks(weight) else {
            let mut values = weight.values.clone();
            values.resize(rows * width, 0.0);
            return Ok((self.layers.graph.floats(&table.name, &[rows, width], &values), Scales::None));
        };
        let Blocks { size, mut values, mut scales } = blocks;
        values.resize(rows * width, SHIFT);
        let first = scales.first().copied().filter(|first| scales.iter().all(|scale| scale == first));
        if let Some(first) = first {
            let values = self.layers.graph.unsigned_bytes(&table.name, &[rows, width], values);
            return Ok((values, Scales::One(first)));
        }
        let blocks = width / size;
        scales.resize(rows * blocks, 0.0);
        // The shapes that products with all rows want, so that both are the same tensor in memory.
        let values = self.layers.graph.unsigned_bytes(&table.name, &[rows, blocks, size], values);
        let name = format!("{}.scales", table.name);
        let scales = self.layers.graph.floats(&name, &[rows, blocks, 1], &scales);
        Ok((values, Scales::ByBlock(scales, size)))
    }

    /// The products of `vectors` with all rows of a table, `bias` added. The table's bytes are those of its
    /// lookup, which are stored once.
    pub(super) fn compare_with_all(&mut self, table: &Table, vectors: &Value, bias: &Value) -> Result<Value> {
        let width = self.model.hidden;
        let weight = self.table(table)?;
        let name = format!("{}.output", table.name);
        let Some(Blocks { size, values, scales }) = self.blocks(weight) else {
            let matrix = self.layers.graph.floats(&name, &[table.rows, width], &weight.values);
            return Ok(self.layers.graph.node("Gemm", &[vectors, &matrix, bias], vec![integer("transB", 1)]));
        };
        let values = self.layers.graph.unsigned_bytes(&name, &[table.rows, width / size, size], values);
        let scales = self.layers.graph.floats(&format!("{name}.scales"), &[scales.len()], &scales);
        Ok(self.layers.multiply_in_blocks(vectors, [&values, &scales, bias], [width, table.rows], size))
    }

    /// What is added to the logits.
    pub(super) fn output_bias(&mut self) -> Result<Value> {
        let rows = self.model.tables.output.rows;
        let values = match &self.model.tables.bias {
            Some(name) => self.layers.weights.take_whole(name, &[1, rows])?.values.clone(),
            None => vec![0.0; rows],
        };
        Ok(self.layers.graph.floats("output.bias", &[rows], &values))
    }

    /// The table of positions.
    pub(super) fn positions_table(&mut self) -> Value {
        let (positions, width) = (self.model.positions, self.model.hidden);
        self.layers.graph.floats("positions", &[positions.rows(), width], &positions.table(width))
    }

    fn table(&self, table: &Table) -> Result<&'a Weight> {
        self.layers.weights.take_whole(&table.name, &[table.rows, self.model.hidden])
    }

    /// The table in blocks; nothing where it stays as it is.
    fn blocks(&self, weight: &Weight) -> Option<Blocks> {
        let size = block_that_fits(self.model.hidden)?;
        if self.layers.precision == Precision::Fp32 {
            return None;
        }
        let quantise::Rows { values, scales } = quantise::rows(&weight.values, size);
        let values = values.into_iter().map(|value| value.cast_unsigned() ^ SHIFT).collect();
        Some(Blocks { size, values, scales })
    }
}

/// Numbers from the bytes of a table.
fn dequantise(graph: &mut GraphBuilder, bytes: &Value, name: &str, step: f32) -> Value {
    let (step, shift) = (graph.floats(name, &[], &[step]), graph.unsigned_bytes("shift", &[], vec![SHIFT]));
    graph.node("DequantizeLinear", &[bytes, &step, &shift], vec![])
}

/// The size of the blocks of the decoder's linear layers: the most exact where that is wanted, or the fastest.
pub(super) fn block_size(precision: Precision, hidden: usize) -> usize {
    match precision {
        Precision::Int8Blocks => BLOCK,
        Precision::Int8 | Precision::Fp32 => block_that_fits(hidden).unwrap_or(BLOCK),
    }
}

/// The fastest size of blocks that a vector of so many values can be cut into.
fn block_that_fits(width: usize) -> Option<usize> {
    let fits = |size: &usize| width.is_multiple_of(*size);
    let few = BLOCKS.into_iter().find(|size| fits(size) && width / size >= FEWEST);
    few.or_else(|| BLOCKS.into_iter().rfind(fits))
}

/// The attributes of attention.
pub(super) fn attention(heads: usize) -> Vec<crate::build::onnx::proto::AttributeProto> {
    vec![integer("num_heads", heads as i64), float("mask_filter_value", MASKED)]
}

/// An axis of any length.
pub(super) fn axis(name: &str) -> Dimension {
    Dimension::DimParam(name.into())
}

/// An axis of a fixed length.
pub(super) fn fixed(length: usize) -> Dimension {
    Dimension::DimValue(length as i64)
}
