//! The graph of an encoder, in the form that measured fastest on ONNX Runtime's CPU kernels: queries, keys and
//! values from one multiplication, attention as one fused operator, biases inside the quantised multiplications,
//! residuals inside the layer normalisations.

use super::config::{EncoderConfig, Facts, Head, Positions, WORDS};
use crate::{
    build::{
        layers::{BLOCK, Layers, MASKED},
        onnx::{
            GraphBuilder, Value, float, integer,
            proto::{Dimension, ModelProto, data_type},
        },
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// The output of an encoder's graph: one vector a token.
pub const OUTPUT: &str = "last_hidden_state";
/// The output of a classifier's graph: one value a label.
pub const LOGITS: &str = "logits";

/// Writes the graph of an encoder, from token ids to [`OUTPUT`], or to [`LOGITS`] where it has a head.
///
/// A head reads the first token only, and so does the last layer then: the others' vectors would be thrown away.
pub fn graph(config: &EncoderConfig, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let Facts { hidden, .. } = config.facts;
    let graph = GraphBuilder::default();
    let layers = Layers { graph, weights, precision, block: BLOCK, hidden, epsilon: config.epsilon };
    let mut writer = Writer { config, layers };
    let ids = writer.layers.graph.input("input_ids", &["batch", "sequence"]);
    let mask = writer.layers.graph.input("attention_mask", &["batch", "sequence"]);
    let mask = writer.layers.cast(&mask, data_type::INT32);
    let mut hidden = writer.embeddings(&ids)?;
    for layer in 0..config.layers {
        let reads_first_only = config.head.is_some() && layer + 1 == config.layers;
        let attending = if reads_first_only { writer.layers.first_token(&hidden) } else { hidden.clone() };
        hidden = writer.layer(layer, &attending, &hidden, &mask)?;
    }
    if let Some(head) = &config.head {
        hidden = writer.head(head, &hidden)?;
    }
    Ok(finish(writer.layers.graph, &hidden, &config.facts, config.head.as_ref()))
}

/// The finished graph, which gives `output`: the logits of the head's labels, or a vector a token.
pub(in crate::build) fn finish(
    mut graph: GraphBuilder,
    output: &Value,
    facts: &Facts,
    head: Option<&Head>,
) -> ModelProto {
    let axis = |name: &str| Dimension::DimParam(name.into());
    let width = |width: usize| Dimension::DimValue(width as i64);
    match head {
        Some(head) => graph.output(output, LOGITS, [axis("batch"), width(head.labels.len())]),
        None => graph.output(output, OUTPUT, [axis("batch"), axis("sequence"), width(facts.hidden)]),
    }
    graph.finish(&facts.architecture)
}

struct Writer<'a> {
    config: &'a EncoderConfig,
    layers: Layers<'a>,
}

impl Writer<'_> {
    fn embeddings(&mut self, ids: &Value) -> Result<Value> {
        let hidden = self.config.facts.hidden;
        let words = self.layers.weights.take(WORDS, &[self.config.vocabulary, hidden])?;
        let mut sum = self.layers.look_up(WORDS, words, ids);
        let types = match self.config.types {
            0 => None,
            rows => {
                Some(self.layers.weights.take("embeddings.token_type_embeddings.weight", &[rows, hidden])?)
            }
        };
        let name = "embeddings.position_embeddings.weight";
        let mut positions = self.layers.weights.take(name, &[self.config.position_rows(), hidden])?.clone();
        match types {
            Some(table) if self.config.types > 1 => {
                let table = self.layers.graph.floats("token_types", &table.shape, &table.values);
                let type_ids = self.layers.graph.input("token_type_ids", &["batch", "sequence"]);
                let types = self.layers.graph.node("Gather", &[&table, &type_ids], vec![]);
                sum = self.layers.graph.node("Add", &[&sum, &types], vec![]);
            }
            // A single type is added to every token alike, and so to every position.
            Some(table) => {
                for row in positions.values.chunks_exact_mut(hidden) {
                    row.iter_mut().zip(&table.values).for_each(|(position, shared)| *position += shared);
                }
            }
            None => {}
        }
        let table = self.layers.graph.floats("positions", &positions.shape, &positions.values);
        let positions = self.positions(ids, &table);
        sum = self.layers.graph.node("Add", &[&sum, &positions], vec![]);
        self.layers.normalise(&sum, "embeddings.LayerNorm")
    }

    fn positions(&mut self, ids: &Value, table: &Value) -> Value {
        match self.config.positions {
            Positions::FromZero => {
                let (zero, length) = (self.layers.graph.integers("zero", &[0]), self.layers.length(ids));
                self.layers.graph.node("Slice", &[table, &zero, &length, &zero], vec![])
            }
            Positions::AfterPadding(padding) => {
                let (padding, one) = (
                    self.layers.graph.integers("padding", &[padding]),
                    self.layers.graph.integers("one", &[1]),
                );
                let is_padding = self.layers.graph.node("Equal", &[ids, &padding], vec![]);
                let counts = self.layers.graph.node("Not", &[&is_padding], vec![]);
                let counts = self.layers.cast(&counts, data_type::INT64);
                let sum = self.layers.graph.node("CumSum", &[&counts, &one], vec![]);
                let sum = self.layers.graph.node("Mul", &[&sum, &counts], vec![]);
                let positions = self.layers.graph.node("Add", &[&sum, &padding], vec![]);
                self.layers.graph.node("Gather", &[table, &positions], vec![])
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
            let projected = self.layers.linear(&names, input, hidden, hidden)?;
            self.layers.graph.split(&projected)
        } else {
            let projected = self.layers.linear(&[at(names.key), at(names.value)], input, hidden, hidden)?;
            let [key, value] = self.layers.graph.split(&projected);
            [self.layers.linear(&[at(names.query)], attending, hidden, hidden)?, key, value]
        };
        let context = self.layers.graph.microsoft(
            "MultiHeadAttention",
            &[&query, &key, &value, &Value::none(), mask],
            vec![integer("num_heads", heads as i64), float("mask_filter_value", MASKED)],
        );
        let attended = self.layers.linear(&[at(names.attention_output)], &context, hidden, hidden)?;
        let attended = self.layers.add_and_norm(&attended, attending, &at(names.attention_norm))?;
        let raised = self.layers.linear(&[at(names.up)], &attended, hidden, intermediate)?;
        let raised = self.layers.activate(self.config.activation, &raised);
        let lowered = self.layers.linear(&[at(names.down)], &raised, intermediate, hidden)?;
        self.layers.add_and_norm(&lowered, &attended, &at(names.output_norm))
    }

    /// The logits of labels from the first token's vector, in fp32 whatever the precision: a head is small, and
    /// what is lost in it is lost to the answer.
    fn head(&mut self, head: &Head, first_token: &Value) -> Result<Value> {
        let hidden = self.config.facts.hidden;
        let (dense, is_of_body, activation) = self.config.names.dense;
        let one = self.layers.graph.integers("one", &[1]);
        let first_token = self.layers.graph.node("Squeeze", &[first_token, &one], vec![]);
        let dense =
            if is_of_body { format!("{}{dense}", self.layers.weights.prefix()) } else { dense.to_owned() };
        let pooled = self.layers.plain_linear(&dense, &first_token, hidden, hidden)?;
        let pooled = self.layers.graph.node(activation, &[&pooled], vec![]);
        self.layers.plain_linear(self.config.names.labels, &pooled, hidden, head.labels.len())
    }
}
