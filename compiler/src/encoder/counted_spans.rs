//! GLiNER2's head: scores of spans for labels that are in front of the text, after the token of a schema. That token tells
//! how many instances the schema has in the text; without one, there are no entities.
//!
//! A label's vector passes a recurrent layer with a step per instance, of which entities are the first one, and further
//! layers. Spans have GLiNER's layers (`spans.rs`).

use kivu_engine::program::ABSENT;

use super::{
    span_layers::{SpanLayers, apply_two, numbered, numbers_of_markers, span_logits},
    word_scores::{joined, layer, linear},
};
use crate::{
    layers::Layers,
    onnx::{GraphBuilder, Value, data_type, float, integer},
    quantize::transpose,
};
use kivu::error::{Error, Result};

/// Prefix for the layers on labels.
const LABELS: &str = "count_embed";
/// The layers on the schema's token.
const COUNTS: &str = "count_pred";
/// Logits of these layers: numbers of instances from 0 on.
const MAX_INSTANCES: usize = 20;
/// Attention heads and layers of the transformer over labels, which no setting changes.
pub(super) const TRANSFORMER_HEADS: usize = 4;
const TRANSFORMER_LAYERS: usize = 2;
/// Added to variances in the transformer, as PyTorch does by default.
const EPSILON: f32 = 1e-5;
/// Experts, which no setting changes.
const EXPERTS: usize = 4;
/// Constants that all forms have.
const OWN: usize = 22;
/// All constants, by form.
const WITH_JOINED: usize = OWN + 4;
const WITH_TRANSFORMER: usize = OWN + 2 + 12 * TRANSFORMER_LAYERS + 6;
const WITH_EXPERTS: usize = OWN + 4 + 4 * EXPERTS;
/// Inputs in front of the constants.
const INPUTS: usize = 5;

/// Spans that are scored after a count.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedSpans {
    /// Maximum number of words in a span.
    pub(super) longest: usize,
    /// Token id in front of the schema.
    pub(super) schema: u32,
    pub(super) mixing: Mixing,
}

/// Layers after the recurrent step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixing {
    /// Two layers on state and label.
    Joined,
    /// A transformer over labels.
    Attention,
    /// Experts with a router.
    Experts,
}

impl CountedSpans {
    /// Writes logits by word, label and word count. `sizes` are the vectors' width and the maximum number of tokens.
    pub(super) fn write(
        self,
        layers: &mut Layers<'_>,
        sizes: [usize; 2],
        inputs: [&Value; 4],
        marker: &Value,
    ) -> Result<Value> {
        match self.mixing {
            Mixing::Joined => {
                self.call::<WITH_JOINED, { WITH_JOINED + INPUTS }>(layers, sizes, inputs, marker)
            }
            Mixing::Attention => {
                self.call::<WITH_TRANSFORMER, { WITH_TRANSFORMER + INPUTS }>(layers, sizes, inputs, marker)
            }
            Mixing::Experts => {
                self.call::<WITH_EXPERTS, { WITH_EXPERTS + INPUTS }>(layers, sizes, inputs, marker)
            }
        }
    }

    fn call<const CONSTANTS: usize, const ALL: usize>(
        self,
        layers: &mut Layers<'_>,
        [width, max_tokens]: [usize; 2],
        [tokens, ids, vectors, words]: [&Value; 4],
        marker: &Value,
    ) -> Result<Value> {
        let constants = self.constants(layers, width)?;
        let constants: Vec<&Value> = constants.iter().collect();
        let own = [tokens, ids, vectors, words, marker];
        if own.len() + constants.len() != ALL || constants.len() != CONSTANTS {
            return Err(Error::model(format!(
                "expected {CONSTANTS} constants, but found {}",
                constants.len()
            )));
        }
        let inputs: [&Value; ALL] = joined(&own, &constants);
        // The native engine knows the layers by this name.
        let name = match self.mixing {
            Mixing::Joined => "JoinedSpans",
            Mixing::Attention => "AttendedSpans",
            Mixing::Experts => "ExpertSpans",
        };
        Ok(layers.graph.function(name, inputs, |graph, inputs| {
            let own: [&Value; INPUTS] = joined(&inputs[..INPUTS], &[]);
            let constants: [&Value; CONSTANTS] = joined(&[], &inputs[INPUTS..]);
            self.logits(graph, max_tokens, own, &constants)
        }))
    }

    /// Constants, in the order in which the native engine reads them.
    fn constants(self, layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
        let longest = layers.graph.integers("longest_span", &[self.longest as i64]);
        let schema = layers.graph.integers("schema_token", &[i64::from(self.schema)]);
        let [c0, c1] = layer(layers, &format!("{COUNTS}.0"), [width, 2 * width])?;
        let [c2, c3] = layer(layers, &format!("{COUNTS}.2"), [2 * width, MAX_INSTANCES])?;
        let [step, g0, g1] = recurrent_step(layers, width)?;
        let SpanLayers { last: [l0, l1], start, end } =
            SpanLayers::read(layers, "span_rep.span_rep_layer", width)?;
        let mut all = vec![longest, schema, c0, c1, c2, c3, step, g0, g1, l0, l1];
        all.extend(start.into_iter().chain(end));
        all.extend(match self.mixing {
            Mixing::Joined => joined_layers(layers, width)?,
            Mixing::Attention => transformer_layers(layers, width)?,
            Mixing::Experts => expert_layers(layers, width)?,
        });
        Ok(all)
    }

    fn logits(
        self,
        graph: &mut GraphBuilder,
        max_tokens: usize,
        [tokens, ids, vectors, words, marker]: [&Value; INPUTS],
        constants: &[&Value],
    ) -> Value {
        let (own, others) = constants.split_at(OWN);
        let [_, schema, c0, c1, c2, c3, step, g0, g1, spans @ ..]: [&Value; OWN] = joined(own, &[]);
        let numbers = numbers_of_markers(graph, ids, marker);
        let (labels, indexes) = numbered(graph, tokens, &numbers, max_tokens);
        let state = recur(graph, &labels, [step, g0, g1]);
        let queries = match self.mixing {
            Mixing::Joined => mix_joined(graph, [&state, &labels], joined(others, &[])),
            Mixing::Attention => {
                let one = graph.integers("one", &[1]);
                let count = graph.node("ReduceMax", &[&numbers, &one], vec![integer("keepdims", 1)]);
                let is_label = graph.node("Less", &[&indexes, &count], vec![]);
                let is_label = graph.cast(&is_label, data_type::INT32);
                mix_labels(graph, [&state, &labels], &is_label, others)
            }
            Mixing::Experts => mix_experts(graph, &state, others),
        };
        let logits = span_logits(graph, [&queries, vectors, words], spans, [self.longest, max_tokens]);
        let [one, last] =
            [("axis_1", 1), ("last_axis", -1)].map(|(name, axis)| graph.integers(name, &[axis]));
        let is_schema = graph.node("Equal", &[ids, schema], vec![]);
        let is_schema = graph.cast(&is_schema, data_type::FLOAT);
        let is_schema = graph.node("Unsqueeze", &[&is_schema, &one], vec![]);
        let schema = graph.node("MatMul", &[&is_schema, tokens], vec![]);
        let counts = apply_two(graph, &schema, [c0, c1, c2, c3]);
        let count = graph.node("ArgMax", &[&counts], vec![integer("axis", -1), integer("keepdims", 1)]);
        let has_instances = graph.cast(&count, data_type::BOOL);
        let has_instances = graph.node("Unsqueeze", &[&has_instances, &last], vec![]);
        let absent = graph.floats("absent_logit", &[], &[ABSENT]);
        graph.node("Where", &[&has_instances, &logits, &absent], vec![])
    }
}

/// The first step's own contribution to the gates, and the layer from state to gates.
fn recurrent_step(layers: &mut Layers<'_>, width: usize) -> Result<[Value; 3]> {
    let name = |part: &str| format!("{LABELS}.gru.{part}_l0");
    let inputs = layers.weights.take_whole(&name("weight_ih"), &[3 * width, width])?;
    let input_bias = layers.weights.take_whole(&name("bias_ih"), &[3 * width])?;
    let positions =
        layers.weights.take_whole(&format!("{LABELS}.pos_embedding.weight"), &[MAX_INSTANCES, width])?;
    let first = &positions.values[..width];
    let product = |row: &[f32]| -> f64 {
        row.iter().zip(first).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum()
    };
    let rows = inputs.values.chunks_exact(width).zip(&input_bias.values);
    let step: Vec<f32> = rows.map(|(row, bias)| (product(row) + f64::from(*bias)) as f32).collect();
    let states = layers.weights.take_whole(&name("weight_hh"), &[3 * width, width])?;
    let bias = layers.weights.take_whole(&name("bias_hh"), &[3 * width])?;
    let graph = &mut layers.graph;
    Ok([
        graph.floats(&name("step"), &[3 * width], &step),
        graph.floats(&name("weight_hh"), &[width, 3 * width], &transpose(&states.values, width)),
        graph.floats(&name("bias_hh"), &[3 * width], &bias.values),
    ])
}

/// The state after the first step.
fn recur(graph: &mut GraphBuilder, labels: &Value, [step, weight, bias]: [&Value; 3]) -> Value {
    let gates = linear(graph, labels, [weight, bias]);
    let [reset, update, new] = graph.split(&gates);
    let [of_reset, of_update, of_new] = graph.split(step);
    let [reset, update] = [(&reset, &of_reset), (&update, &of_update)].map(|(gate, input)| {
        let sum = graph.node("Add", &[gate, input], vec![]);
        graph.node("Sigmoid", &[&sum], vec![])
    });
    let new = graph.node("Mul", &[&reset, &new], vec![]);
    let new = graph.node("Add", &[&new, &of_new], vec![]);
    let new = graph.node("Tanh", &[&new], vec![]);
    let kept = graph.node("Sub", &[labels, &new], vec![]);
    let kept = graph.node("Mul", &[&update, &kept], vec![]);
    graph.node("Add", &[&new, &kept], vec![])
}

fn joined_layers(layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
    let [w0, b0] = layer(layers, &format!("{LABELS}.projector.0"), [2 * width, 4 * width])?;
    let [w1, b1] = layer(layers, &format!("{LABELS}.projector.2"), [4 * width, width])?;
    Ok(vec![w0, b0, w1, b1])
}

fn mix_joined(graph: &mut GraphBuilder, rows: [&Value; 2], constants: [&Value; 4]) -> Value {
    let rows = graph.node("Concat", &rows, vec![integer("axis", 2)]);
    apply_two(graph, &rows, constants)
}

fn transformer_layers(layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
    let name = format!("{LABELS}.transformer");
    let inner = rows(layers, &format!("{name}.in_projector.weight"));
    let mut all = Vec::from(layer(layers, &format!("{name}.in_projector"), [width, inner])?);
    for place in 0..TRANSFORMER_LAYERS {
        let name = format!("{name}.transformer.layers.{place}");
        let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.self_attn.in_proj_{part}"));
        let values = transpose(&layers.weights.take_whole(&weight, &[3 * inner, inner])?.values, inner);
        let biases = layers.weights.take_whole(&bias, &[3 * inner])?;
        all.push(layers.graph.floats(&weight, &[inner, 3 * inner], &values));
        all.push(layers.graph.floats(&bias, &[3 * inner], &biases.values));
        all.extend(layer(layers, &format!("{name}.self_attn.out_proj"), [inner, inner])?);
        all.extend(norm(layers, &format!("{name}.norm1"), inner)?);
        all.extend(layer(layers, &format!("{name}.linear1"), [inner, 2 * inner])?);
        all.extend(layer(layers, &format!("{name}.linear2"), [2 * inner, inner])?);
        all.extend(norm(layers, &format!("{name}.norm2"), inner)?);
    }
    for (place, inputs) in [(0, inner + width), (2, width), (4, width)] {
        all.extend(layer(layers, &format!("{name}.out_projector.{place}"), [inputs, width])?);
    }
    Ok(all)
}

/// A transformer over labels.
fn mix_labels(
    graph: &mut GraphBuilder,
    [state, labels]: [&Value; 2],
    is_label: &Value,
    constants: &[&Value],
) -> Value {
    let (input, others) = constants.split_at(2);
    let (by_layer, output) = others.split_at(12 * TRANSFORMER_LAYERS);
    let sums = graph.node("Add", &[state, labels], vec![]);
    let mut rows = linear(graph, &sums, joined(input, &[]));
    for constants in by_layer.chunks_exact(12) {
        let [qkv0, qkv1, out0, out1, n0, n1, u0, u1, d0, d1, n2, n3]: [&Value; 12] = joined(constants, &[]);
        let all = linear(graph, &rows, [qkv0, qkv1]);
        let [queries, keys, values] = graph.split(&all);
        let heads = vec![integer("num_heads", TRANSFORMER_HEADS as i64)];
        let inputs = [&queries, &keys, &values, &Value::none(), is_label];
        let attended = graph.microsoft("MultiHeadAttention", &inputs, heads);
        let attended = linear(graph, &attended, [out0, out1]);
        rows = add_and_normalize(graph, [&rows, &attended], [n0, n1]);
        let changed = apply_two(graph, &rows, [u0, u1, d0, d1]);
        rows = add_and_normalize(graph, [&rows, &changed], [n2, n3]);
    }
    let rows = graph.node("Concat", &[&rows, &sums], vec![integer("axis", 2)]);
    let [w0, b0, w1, b1, w2, b2] = joined(output, &[]);
    let rows = apply_two(graph, &rows, [w0, b0, w1, b1]);
    let rows = graph.node("Relu", &[&rows], vec![]);
    linear(graph, &rows, [w2, b2])
}

fn add_and_normalize(graph: &mut GraphBuilder, rows: [&Value; 2], [gain, bias]: [&Value; 2]) -> Value {
    let sum = graph.node("Add", &rows, vec![]);
    let attributes = vec![integer("axis", -1), float("epsilon", EPSILON)];
    graph.node("LayerNormalization", &[&sum, gain, bias], attributes)
}

fn expert_layers(layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
    let mut all = Vec::from(layer(layers, &format!("{LABELS}.router.0"), [width, width])?);
    all.extend(layer(layers, &format!("{LABELS}.router.2"), [width, EXPERTS])?);
    let wide = 2 * width;
    // Stored with a row per input, unlike other layers.
    let shapes = [("w1", [width, wide]), ("b1", [1, wide]), ("w2", [wide, width]), ("b2", [1, width])];
    for expert in 0..EXPERTS {
        for (part, [height, width]) in shapes {
            let name = format!("{LABELS}.{part}");
            let (size, is_bias) = (height * width, height == 1);
            let shape = if is_bias { vec![EXPERTS, width] } else { vec![EXPERTS, height, width] };
            let values = &layers.weights.take_whole(&name, &shape)?.values[expert * size..][..size];
            all.push(layers.graph.floats(&format!("{name}.{expert}"), &shape[1..], values));
        }
    }
    Ok(all)
}

/// A sum of experts.
fn mix_experts(graph: &mut GraphBuilder, state: &Value, constants: &[&Value]) -> Value {
    let (router, experts) = constants.split_at(4);
    let logits = gelu_layers(graph, state, joined(router, &[]));
    let weights = graph.node("Softmax", &[&logits], vec![integer("axis", -1)]);
    let weights: [Value; EXPERTS] = graph.split(&weights);
    let mut sum: Option<Value> = None;
    for (constants, weight) in experts.chunks_exact(4).zip(&weights) {
        let rows = gelu_layers(graph, state, joined(constants, &[]));
        let rows = graph.node("Mul", &[&rows, weight], vec![]);
        sum = Some(match sum {
            None => rows,
            Some(sum) => graph.node("Add", &[&sum, &rows], vec![]),
        });
    }
    sum.unwrap_or_else(|| state.clone())
}

/// Scores of labels, with the axes of span logits: two layers on the vectors of the tokens in front of labels.
pub(super) fn label_logits(graph: &mut GraphBuilder, labels: &Value, constants: [&Value; 4]) -> Value {
    let one = graph.integers("axis_1", &[1]);
    let logits = apply_two(graph, labels, constants);
    graph.node("Unsqueeze", &[&logits, &one], vec![])
}

/// The layers that score labels.
pub(super) fn label_layers(layers: &mut Layers<'_>, width: usize) -> Result<[Value; 4]> {
    let [w0, b0] = layer(layers, "classifier.0", [width, 2 * width])?;
    let [w1, b1] = layer(layers, "classifier.2", [2 * width, 1])?;
    Ok([w0, b0, w1, b1])
}

fn gelu_layers(graph: &mut GraphBuilder, rows: &Value, [w0, b0, w1, b1]: [&Value; 4]) -> Value {
    let wide = linear(graph, rows, [w0, b0]);
    let wide = graph.microsoft("Gelu", &[&wide], vec![]);
    linear(graph, &wide, [w1, b1])
}

fn norm(layers: &mut Layers<'_>, name: &str, width: usize) -> Result<[Value; 2]> {
    let [gain, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
    let gains = layers.weights.take_whole(&gain, &[width])?;
    let biases = layers.weights.take_whole(&bias, &[width])?;
    Ok([
        layers.graph.floats(&gain, &[width], &gains.values),
        layers.graph.floats(&bias, &[width], &biases.values),
    ])
}

/// A weight's first axis; 0 without the weight.
fn rows(layers: &Layers<'_>, name: &str) -> usize {
    layers.weights.tensors.get(name).and_then(|weight| weight.shape.first().copied()).unwrap_or(0)
}
