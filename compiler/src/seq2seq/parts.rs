//! Parts shared between encoder and decoder graphs: tables, positions and layer parts.
//!
//! A layer is a chain of parts (attention or memory, feed-forward), each with a residual connection. The sum at the end
//! of a part and the next normalization are one operator, whether the family normalizes before or after its parts.

use super::{
    model::{Norms, Positions, Seq2SeqModel, Table},
    weight_names::{Half, Names, Part, Projection},
};
use crate::{
    files::weights::Weights,
    onnx::{
        AttributeProto, GraphBuilder, Value, float, integer,
        layers::{self, BLOCK, Layers, attention},
    },
    quantize,
};
use kivu::{Result, repository::manifest::Precision};

/// Block sizes that the runtime supports, fastest first.
const BLOCKS: [usize; 5] = [256, 128, 64, 32, 16];
/// Preferred minimum number of blocks per vector, since small models need the precision.
const MIN_BLOCKS: usize = 4;

/// An encoder or decoder graph under construction.
pub struct Writer<'a> {
    pub model: &'a Seq2SeqModel,
    pub half: Half,
    pub layers: Layers<'a>,
    /// Names of the next normalizations, in order.
    norms: std::vec::IntoIter<String>,
}

/// Values that pass through a layer stack.
pub struct Stream {
    /// The next part's input.
    pub input: Value,
    /// The residual, to which the next part's output is added.
    residual: Value,
}

/// A table's rows as a constant.
enum Rows {
    Fp32(Value),
    /// 8-bit integers with a common scale, as in models trained in int8.
    OneScale(Value, f32),
    /// 8-bit integers in blocks of the given size, and the scale per block.
    Blocks(Value, Value, usize),
}

impl<'a> Writer<'a> {
    /// Creates an empty graph with linear layers quantized to `precision`.
    pub fn new(
        model: &'a Seq2SeqModel,
        half: Half,
        weights: &'a Weights,
        precision: Precision,
    ) -> Self {
        let mut layers = Layers::new(weights, precision, model.hidden, model.epsilon);
        layers.is_trained_in_int8 = model.is_trained_in_int8;
        layers.norm = model.norm;
        Self {
            model,
            half,
            layers,
            norms: Vec::new().into_iter(),
        }
    }

    /// Begins a layer stack; each layer consists of `parts`.
    pub fn begin(&mut self, input: Value, layers: usize, parts: &[Part]) -> Result<Stream> {
        let Seq2SeqModel { names, norms, .. } = *self.model;
        let of_layer = |layer| parts.iter().map(move |part| (layer, *part));
        let all = (0..layers)
            .flat_map(of_layer)
            .map(|(layer, part)| names.norm(self.half, layer, part));
        let last = (norms == Norms::Before).then(|| names.last_norm(self.half));
        self.norms = all.chain(last).collect::<Vec<_>>().into_iter();
        let residual = input.clone();
        let input = match self.model.norms {
            Norms::Before => {
                let name = self.norm();
                self.layers.normalize(&input, &name)?
            }
            Norms::After => input,
        };
        Ok(Stream { input, residual })
    }

    /// Ends a part: adds its output to the residual and normalizes the sum.
    pub fn end_part(&mut self, stream: &Stream, output: &Value) -> Result<Stream> {
        let name = self.norm();
        match self.model.norms {
            Norms::Before => {
                let [input, residual] =
                    self.layers
                        .add_norm_and_sum(output, &stream.residual, &name)?;
                Ok(Stream { input, residual })
            }
            Norms::After => {
                let input = self.layers.add_and_norm(output, &stream.residual, &name)?;
                Ok(Stream {
                    residual: input.clone(),
                    input,
                })
            }
        }
    }

    /// The next normalization's name. There is one for each call.
    fn norm(&mut self) -> String {
        self.norms.next().unwrap_or_default()
    }

    pub fn feed_forward(&mut self, layer: usize, stream: &Stream, width: usize) -> Result<Stream> {
        let Seq2SeqModel {
            hidden,
            names,
            is_gated,
            activation,
            ..
        } = *self.model;
        let raising = names.raising(self.half, layer, is_gated);
        let raised = self.linear_by_token(&raising, &stream.input, [hidden, width])?;
        let inner = if is_gated {
            let [activated, other] = self.layers.graph.split(&raised);
            let activated = self.layers.activate(activation, &activated);
            self.layers.graph.mul(&activated, &other)
        } else {
            self.layers.activate(activation, &raised)
        };
        let lowering = names.lowering(self.half, layer);
        let lowered = self.linear_by_token(&[lowering], &inner, [width, hidden])?;
        self.end_part(stream, &lowered)
    }

    /// Attention projections, by their weight names.
    pub fn projections<const COUNT: usize>(
        &self,
        layer: usize,
        part: Part,
        projections: [Projection; COUNT],
    ) -> [String; COUNT] {
        projections.map(|projection| {
            self.model
                .names
                .projection(self.half, layer, part, projection)
        })
    }

    /// Joins the linear layers called `names`, each with the given numbers of inputs and outputs.
    pub fn linear(&mut self, names: &[String], input: &Value, shape: [usize; 2]) -> Result<Value> {
        let projections = self.described(names, shape[1]);
        self.layers.project(&projections, input, shape[0])
    }

    /// The same, but in int8, each token's values are scaled separately; see [`Layers::project_by_token`].
    pub fn linear_by_token(
        &mut self,
        names: &[String],
        input: &Value,
        shape: [usize; 2],
    ) -> Result<Value> {
        if self.model.is_trained_in_int8 {
            return self.linear(names, input, shape);
        }
        let projections = self.described(names, shape[1]);
        self.layers.project_by_token(&projections, input, shape[0])
    }

    fn described(&self, names: &[String], outputs: usize) -> Vec<layers::Projection> {
        let has_bias = self.model.has_biases;
        names
            .iter()
            .map(|name| layers::Projection {
                name: name.clone(),
                outputs,
                has_bias,
            })
            .collect()
    }

    /// Projections that attention compares: quantized in blocks even if other layers have one scale per output channel.
    /// In encoders not trained in int8, they cause most of the rounding error and take the least time.
    pub fn project(&mut self, names: &[String], input: &Value, outputs: usize) -> Result<Value> {
        let precision = self.layers.precision;
        if precision == Precision::Int8 && !self.model.is_trained_in_int8 {
            self.layers.precision = Precision::Int8Blocks;
        }
        let projected = self.linear(names, input, [self.model.hidden, outputs]);
        self.layers.precision = precision;
        projected
    }

    /// Attention to `key` and `value` where `mask` is not zero, with `bias` added to the scores.
    pub fn attend(
        &mut self,
        [query, key, value]: [&Value; 3],
        mask: &Value,
        bias: &Value,
        heads: usize,
    ) -> Value {
        let inputs = [query, key, value, &Value::none(), mask, bias];
        let attributes = self.attention(heads);
        self.layers
            .graph
            .microsoft("MultiHeadAttention", &inputs, attributes)
    }

    pub fn attention(&self, heads: usize) -> Vec<AttributeProto> {
        let scale = self
            .model
            .attention_scale
            .map(|scale| float("scale", scale));
        attention(heads).into_iter().chain(scale).collect()
    }

    /// Adds embeddings and positions, where the model does so. In models that start empty, the embedding for −1 is
    /// zero.
    pub fn embed(
        &mut self,
        table: &Table,
        ids: &Value,
        positions: Option<&Value>,
    ) -> Result<Value> {
        let rows = self.rows(table)?;
        let (graph, mut scale) = (&mut self.layers.graph, self.model.scale);
        let mut words = match rows {
            Rows::Fp32(values) => graph.gather(&values, ids),
            Rows::OneScale(values, step) => {
                let rows = graph.gather(&values, ids);
                let step = step * std::mem::replace(&mut scale, 1.0);
                dequantize(graph, &rows, "embedding.step", step)
            }
            Rows::Blocks(values, scales, size) => {
                let attributes = vec![
                    integer("bits", 8),
                    integer("block_size", size as i64),
                    integer("gather_axis", 0),
                    integer("quantize_axis", 2),
                ];
                let words =
                    graph.microsoft("GatherBlockQuantized", &[&values, ids, &scales], attributes);
                let whole = graph.integers("whole_words", &[0, 0, -1]);
                graph.reshape(&words, &whole)
            }
        };
        if scale != 1.0 {
            let scale = graph.scalar("scale", scale);
            words = graph.mul(&words, &scale);
        }
        if let Some(positions) = positions {
            words = graph.add(&words, positions);
        }
        match self.model.normalizes_embeddings {
            true => self
                .layers
                .normalize(&words, &Names::embedding_norm(self.half)),
            false => Ok(words),
        }
    }

    /// Looks up table rows for hundreds of ids. The operator that gathers and dequantizes blocks in one takes 15 times
    /// as long: 1.2 ms instead of 0.07 for 650 of 32000 rows.
    pub fn look_up_many(&mut self, table: &Table, ids: &Value) -> Result<Value> {
        let width = self.model.hidden as i64;
        let rows = self.rows(table)?;
        let graph = &mut self.layers.graph;
        let (Rows::Fp32(values) | Rows::OneScale(values, _) | Rows::Blocks(values, ..)) = &rows;
        let gathered = graph.gather(values, ids);
        Ok(match rows {
            Rows::Fp32(_) => gathered,
            Rows::OneScale(_, step) => dequantize(graph, &gathered, "output.step", step),
            Rows::Blocks(_, scales, _) => {
                let whole = graph.integers("whole_rows", &[-1, width]);
                let integers = dequantize(graph, &gathered, "unit", 1.0);
                let scales = graph.gather(&scales, ids);
                let rows = graph.mul(&integers, &scales);
                graph.reshape(&rows, &whole)
            }
        })
    }

    /// A table's rows as constants. In models that start empty, a zero row is added at the end.
    fn rows(&mut self, table: &Table) -> Result<Rows> {
        let width = self.model.hidden;
        let weight = self
            .layers
            .weights
            .take_whole(&table.name, &[table.rows, width])?;
        let rows = table.rows + usize::from(self.model.starts_empty);
        let Some((mut blocks, size)) = self.blocks(&weight.values) else {
            let mut values = weight.values.clone();
            values.resize(rows * width, 0.0);
            return Ok(Rows::Fp32(self.layers.graph.floats(
                &table.name,
                &[rows, width],
                &values,
            )));
        };
        let graph = &mut self.layers.graph;
        blocks.values.resize(rows * width, 0);
        if let Some(first) = blocks
            .scales
            .first()
            .filter(|it| blocks.scales.iter().all(|scale| scale == *it))
        {
            let values = graph.shifted_bytes(&table.name, &[rows, width], &blocks.values);
            return Ok(Rows::OneScale(values, *first));
        }
        blocks.scales.resize(rows * width / size, 0.0);
        // The shape for a product with all rows, so that both share the same bytes in memory.
        let values = graph.shifted_bytes(&table.name, &[rows, width / size, size], &blocks.values);
        let name = format!("{}.scales", table.name);
        let scales = graph.floats(&name, &[rows, width / size, 1], &blocks.scales);
        Ok(Rows::Blocks(values, scales, size))
    }

    /// Products between `vectors` and all table rows, plus `bias`. The table's bytes equal its lookup's, and are stored
    /// once.
    pub fn multiply_by_all(
        &mut self,
        table: &Table,
        vectors: &Value,
        bias: &Value,
    ) -> Result<Value> {
        let width = self.model.hidden;
        let weight = self
            .layers
            .weights
            .take_whole(&table.name, &[table.rows, width])?;
        let name = format!("{}.output", table.name);
        let Some((blocks, size)) = self.blocks(&weight.values) else {
            let matrix = self
                .layers
                .graph
                .floats(&name, &weight.shape, &weight.values);
            let inputs = [vectors, &matrix, bias];
            return Ok(self.layers.graph.row_products(&inputs));
        };
        let shape = [table.rows, width / size, size];
        let values = self
            .layers
            .graph
            .shifted_bytes(&name, &shape, &blocks.values);
        let scales = self.layers.graph.floats(
            &format!("{name}.scales"),
            &[blocks.scales.len()],
            &blocks.scales,
        );
        Ok(self
            .layers
            .multiply_in_blocks(vectors, [&values, &scales, bias], shape))
    }

    /// Logit bias.
    pub fn output_bias(&mut self) -> Result<Value> {
        let rows = self.model.tables.output.rows;
        let values = match &self.model.tables.bias {
            Some(name) => self
                .layers
                .weights
                .take_whole(name, &[1, rows])?
                .values
                .clone(),
            None => vec![0.0; rows],
        };
        Ok(self.layers.graph.floats("output.bias", &[rows], &values))
    }

    /// Position vectors, by number; `None` if the model has none.
    pub fn positions_table(&mut self) -> Result<Option<Value>> {
        let width = self.model.hidden;
        let (rows, values) = match self.model.positions {
            Positions::Sinusoidal(sinusoids) => (sinusoids.rows(), sinusoids.table(width)),
            Positions::Learned { length, unused } => {
                let name = Names::positions(self.half);
                let weight = self.layers.weights.take(&name, &[length + unused, width])?;
                (length, weight.values[unused * width..].to_vec())
            }
            Positions::Distances(_) => return Ok(None),
        };
        Ok(Some(self.layers.graph.floats(
            "positions",
            &[rows, width],
            &values,
        )))
    }

    /// Quantizes a table's rows in blocks of the returned size; `None` if they stay in fp32.
    fn blocks(&self, values: &[f32]) -> Option<(quantize::Rows, usize)> {
        let size = largest_block(self.model.hidden)
            .filter(|_| self.layers.precision != Precision::Fp32)?;
        Some((quantize::rows(values, size), size))
    }
}

/// Converts a table's bytes to floats.
fn dequantize(graph: &mut GraphBuilder, bytes: &Value, name: &str, step: f32) -> Value {
    let (step, shift) = (
        graph.scalar(name, step),
        graph.shifted_bytes("shift", &[], &[0]),
    );
    graph.node("DequantizeLinear", &[bytes, &step, &shift], vec![])
}

/// Block size for the decoder's linear layers: the most exact for `int8-blocks`, the fastest otherwise.
pub fn decoder_block(precision: Precision, hidden: usize) -> usize {
    match precision {
        Precision::Int8Blocks => BLOCK,
        Precision::Int8 | Precision::Fp32 => largest_block(hidden).unwrap_or(BLOCK),
    }
}

/// Fastest block size for vectors with `width` values.
fn largest_block(width: usize) -> Option<usize> {
    let fits = |size: &usize| width.is_multiple_of(*size);
    let fastest = BLOCKS
        .into_iter()
        .find(|size| fits(size) && width / size >= MIN_BLOCKS);
    fastest.or_else(|| BLOCKS.into_iter().rfind(fits))
}
