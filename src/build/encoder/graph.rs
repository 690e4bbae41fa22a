//! The graph of an encoder, in the form that measured fastest on ONNX Runtime's CPU kernels: queries, keys and
//! values from one multiplication, attention as one fused operator, biases inside the quantised multiplications,
//! residuals inside the layer normalisations.

use super::config::{Activation, EncoderConfig, Head, Positions, WORDS};
use crate::{
    build::{
        onnx::{
            GraphBuilder, Value, float, integer,
            proto::{Dimension, ModelProto, data_type},
        },
        quantise,
        weights::{Weight, Weights},
    },
    error::{Error, Result},
    repository::manifest::Precision,
};

/// The output of an encoder's graph: one vector a token.
pub const OUTPUT: &str = "last_hidden_state";
/// The output of a classifier's graph: one value a label.
pub const LOGITS: &str = "logits";

/// The weights that share a scale where they are quantised in blocks.
const BLOCK: usize = 32;
/// `MatMulNBits`' accuracy level at which activations are quantised too.
const INT8_ACTIVATIONS: i64 = 4;

/// What attention scores get where there is padding; `torch.finfo(torch.float32).min`, as in `transformers`.
const MASKED: f32 = f32::MIN;

/// Writes the graph of an encoder, from token ids to [`OUTPUT`], or to [`LOGITS`] where it has a head.
///
/// A head reads the first token only, and so does the last layer then: the others' vectors would be thrown away.
pub fn graph(config: &EncoderConfig, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let mut writer = Writer { config, weights, precision, graph: GraphBuilder::default() };
    let ids = writer.graph.input("input_ids", &["batch", "sequence"]);
    let mask = writer.graph.input("attention_mask", &["batch", "sequence"]);
    let mask = writer.cast(&mask, data_type::INT32);
    let mut hidden = writer.embeddings(&ids)?;
    for layer in 0..config.layers {
        let reads_first_only = config.head.is_some() && layer + 1 == config.layers;
        let attending = if reads_first_only { writer.first_token(&hidden) } else { hidden.clone() };
        hidden = writer.layer(layer, &attending, &hidden, &mask)?;
    }
    if let Some(head) = &config.head {
        let logits = writer.head(head, &hidden)?;
        let labels = Dimension::DimValue(head.labels.len() as i64);
        writer.graph.output(&logits, LOGITS, [Dimension::DimParam("batch".into()), labels]);
        return Ok(writer.graph.finish(&config.facts.architecture));
    }
    let axes = [
        Dimension::DimParam("batch".into()),
        Dimension::DimParam("sequence".into()),
        Dimension::DimValue(config.facts.hidden as i64),
    ];
    writer.graph.output(&hidden, OUTPUT, axes);
    Ok(writer.graph.finish(&config.facts.architecture))
}

struct Writer<'a> {
    config: &'a EncoderConfig,
    weights: &'a Weights,
    precision: Precision,
    graph: GraphBuilder,
}

impl Writer<'_> {
    fn embeddings(&mut self, ids: &Value) -> Result<Value> {
        let hidden = self.config.facts.hidden;
        let words = self.weights.take(WORDS, &[self.config.vocabulary, hidden])?;
        let mut sum = self.look_up(WORDS, words, ids);
        let types = match self.config.types {
            0 => None,
            rows => Some(self.weights.take("embeddings.token_type_embeddings.weight", &[rows, hidden])?),
        };
        let name = "embeddings.position_embeddings.weight";
        let mut positions = self.weights.take(name, &[self.config.position_rows(), hidden])?.clone();
        match types {
            Some(table) if self.config.types > 1 => {
                let table = self.graph.floats("token_types", &table.shape, &table.values);
                let type_ids = self.graph.input("token_type_ids", &["batch", "sequence"]);
                let types = self.graph.node("Gather", &[&table, &type_ids], vec![]);
                sum = self.graph.node("Add", &[&sum, &types], vec![]);
            }
            // A single type is added to every token alike, and so to every position.
            Some(table) => {
                for row in positions.values.chunks_exact_mut(hidden) {
                    row.iter_mut().zip(&table.values).for_each(|(position, shared)| *position += shared);
                }
            }
            None => {}
        }
        let table = self.graph.floats("positions", &positions.shape, &positions.values);
        let positions = self.positions(ids, &table);
        sum = self.graph.node("Add", &[&sum, &positions], vec![]);
        let [gain, bias] = self.norm("embeddings.LayerNorm")?;
        let attributes = vec![integer("axis", -1), float("epsilon", self.config.epsilon)];
        Ok(self.graph.node("LayerNormalization", &[&sum, &gain, &bias], attributes))
    }

    /// The rows of an embedding table, in int8 with one scale a row where weights are quantised.
    fn look_up(&mut self, name: &str, table: &Weight, ids: &Value) -> Value {
        if self.precision == Precision::Fp32 {
            let table = self.graph.floats(name, &table.shape, &table.values);
            return self.graph.node("Gather", &[&table, ids], vec![]);
        }
        let rows = quantise::rows(&table.values, table.shape[1]);
        let values = self.graph.bytes(&format!("{name}.int8"), &table.shape, &rows.values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[table.shape[0], 1], &rows.scales);
        let values = self.graph.node("Gather", &[&values, ids], vec![]);
        let values = self.cast(&values, data_type::FLOAT);
        let scales = self.graph.node("Gather", &[&scales, ids], vec![]);
        self.graph.node("Mul", &[&values, &scales], vec![])
    }

    fn positions(&mut self, ids: &Value, table: &Value) -> Value {
        match self.config.positions {
            Positions::FromZero => {
                let (zero, one, two) = (
                    self.graph.integers("zero", &[0]),
                    self.graph.integers("one", &[1]),
                    self.graph.integers("two", &[2]),
                );
                let shape = self.graph.node("Shape", &[ids], vec![]);
                let length = self.graph.node("Slice", &[&shape, &one, &two], vec![]);
                self.graph.node("Slice", &[table, &zero, &length, &zero], vec![])
            }
            Positions::AfterPadding(padding) => {
                let (padding, one) =
                    (self.graph.integers("padding", &[padding]), self.graph.integers("one", &[1]));
                let is_padding = self.graph.node("Equal", &[ids, &padding], vec![]);
                let counts = self.graph.node("Not", &[&is_padding], vec![]);
                let counts = self.cast(&counts, data_type::INT64);
                let sum = self.graph.node("CumSum", &[&counts, &one], vec![]);
                let sum = self.graph.node("Mul", &[&sum, &counts], vec![]);
                let positions = self.graph.node("Add", &[&sum, &padding], vec![]);
                self.graph.node("Gather", &[table, &positions], vec![])
            }
        }
    }

    /// One layer: the tokens of `attending` attend to those of `input`, which are the same but for the last
    /// layer under a head.
    fn layer(&mut self, layer: usize, attending: &Value, input: &Value, mask: &Value) -> Result<Value> {
        let EncoderConfig { heads, intermediate, names, .. } = *self.config;
        let hidden = self.config.facts.hidden;
        let at = |name: &str| format!("{}{layer}.{name}", names.layer);
        let [query, key, value] = if attending == input {
            let names = [at(names.query), at(names.key), at(names.value)];
            let projected = self.linear(&names, input, hidden, hidden)?;
            self.graph.split(&projected)
        } else {
            let projected = self.linear(&[at(names.key), at(names.value)], input, hidden, hidden)?;
            let [key, value] = self.graph.split(&projected);
            [self.linear(&[at(names.query)], attending, hidden, hidden)?, key, value]
        };
        let context = self.graph.microsoft(
            "MultiHeadAttention",
            &[&query, &key, &value, &Value::none(), mask],
            vec![integer("num_heads", heads as i64), float("mask_filter_value", MASKED)],
        );
        let attended = self.linear(&[at(names.attention_output)], &context, hidden, hidden)?;
        let attended = self.add_and_norm(&attended, attending, &at(names.attention_norm))?;
        let raised = self.linear(&[at(names.up)], &attended, hidden, intermediate)?;
        let raised = match self.config.activation {
            Activation::Gelu => self.graph.microsoft("Gelu", &[&raised], vec![]),
            Activation::GeluTanh => self.graph.microsoft("FastGelu", &[&raised], vec![]),
            Activation::Relu => self.graph.node("Relu", &[&raised], vec![]),
        };
        let lowered = self.linear(&[at(names.down)], &raised, intermediate, hidden)?;
        self.add_and_norm(&lowered, &attended, &at(names.output_norm))
    }

    fn first_token(&mut self, hidden: &Value) -> Value {
        let (zero, one) = (self.graph.integers("zero", &[0]), self.graph.integers("one", &[1]));
        self.graph.node("Slice", &[hidden, &zero, &one, &one], vec![])
    }

    /// The logits of labels from the first token's vector, in fp32 whatever the precision: a head is small, and
    /// what is lost in it is lost to the answer.
    fn head(&mut self, head: &Head, first_token: &Value) -> Result<Value> {
        let hidden = self.config.facts.hidden;
        let (dense, is_of_body, activation) = self.config.names.dense;
        let one = self.graph.integers("one", &[1]);
        let first_token = self.graph.node("Squeeze", &[first_token, &one], vec![]);
        let dense = if is_of_body { format!("{}{dense}", self.weights.prefix()) } else { dense.to_owned() };
        let pooled = self.plain_linear(&dense, &first_token, hidden, hidden)?;
        let pooled = self.graph.node(activation, &[&pooled], vec![]);
        self.plain_linear(self.config.names.labels, &pooled, hidden, head.labels.len())
    }

    /// A linear layer in fp32, by its whole name.
    fn plain_linear(&mut self, name: &str, input: &Value, inputs: usize, outputs: usize) -> Result<Value> {
        let weight = self.weights.take_whole(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.weights.take_whole(&format!("{name}.bias"), &[outputs])?;
        let weight = quantise::transpose(&weight.values, inputs);
        let weight = self.graph.floats(&format!("{name}.weight"), &[inputs, outputs], &weight);
        let bias = self.graph.floats(&format!("{name}.bias"), &bias.shape, &bias.values);
        let product = self.graph.node("MatMul", &[input, &weight], vec![]);
        Ok(self.graph.node("Add", &[&product, &bias], vec![]))
    }

    /// The linear layers of the given names side by side, each from `inputs` to `outputs` values.
    fn linear(&mut self, names: &[String], input: &Value, inputs: usize, outputs: usize) -> Result<Value> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weight
                .extend_from_slice(&self.weights.take(&format!("{name}.weight"), &[outputs, inputs])?.values);
            bias.extend_from_slice(&self.weights.take(&format!("{name}.bias"), &[outputs])?.values);
        }
        let (name, outputs) = (&names[0], bias.len());
        let bias = self.graph.floats(&format!("{name}.bias"), &[outputs], &bias);
        if self.precision == Precision::Fp32 {
            let weight = quantise::transpose(&weight, inputs);
            let weight = self.graph.floats(name, &[inputs, outputs], &weight);
            let product = self.graph.node("MatMul", &[input, &weight], vec![]);
            return Ok(self.graph.node("Add", &[&product, &bias], vec![]));
        }
        if self.precision == Precision::Int8Blocks && inputs.is_multiple_of(BLOCK) {
            return Ok(self.in_blocks(name, input, &weight, &bias, [inputs, outputs]));
        }
        // One row of a linear layer's weight makes one output channel.
        let rows = quantise::rows(&weight, inputs);
        let values = quantise::transpose(&rows.values, inputs);
        let values = self.graph.bytes(&format!("{name}.int8"), &[inputs, outputs], &values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[outputs], &rows.scales);
        Ok(self.graph.microsoft(
            "DynamicQuantizeMatMul",
            &[input, &values, &scales, &Value::none(), &bias],
            vec![],
        ))
    }

    /// A linear layer whose weights have a scale for each block of [`BLOCK`] along a row.
    fn in_blocks(
        &mut self,
        name: &str,
        input: &Value,
        weight: &[f32],
        bias: &Value,
        [inputs, outputs]: [usize; 2],
    ) -> Value {
        let blocks = quantise::rows(weight, BLOCK);
        let shape = [outputs, inputs / BLOCK, BLOCK];
        let values = self.graph.shifted_bytes(&format!("{name}.blocks"), &shape, &blocks.values);
        let scales = self.graph.floats(&format!("{name}.scales"), &[blocks.scales.len()], &blocks.scales);
        let attributes = vec![
            integer("K", inputs as i64),
            integer("N", outputs as i64),
            integer("bits", 8),
            integer("block_size", BLOCK as i64),
            integer("accuracy_level", INT8_ACTIVATIONS),
        ];
        let none = Value::none();
        self.graph.microsoft("MatMulNBits", &[input, &values, &scales, &none, &none, bias], attributes)
    }

    fn add_and_norm(&mut self, value: &Value, residual: &Value, name: &str) -> Result<Value> {
        let [gain, bias] = self.norm(name)?;
        let attributes = vec![float("epsilon", self.config.epsilon)];
        Ok(self.graph.microsoft("SkipLayerNormalization", &[value, residual, &gain, &bias], attributes))
    }

    fn norm(&mut self, name: &str) -> Result<[Value; 2]> {
        let mut constant = |part: &str| {
            let name = format!("{name}.{part}");
            let weight = self.weights.take(&name, &[self.config.facts.hidden])?;
            Ok::<_, Error>(self.graph.floats(&name, &weight.shape, &weight.values))
        };
        Ok([constant("weight")?, constant("bias")?])
    }

    fn cast(&mut self, value: &Value, to: i32) -> Value {
        self.graph.node("Cast", &[value], vec![integer("to", i64::from(to))])
    }
}
