//! GLiNER2's head: scores of spans for labels that are in front of the text, in schemas. The token in front of a schema's
//! name tells how many instances the schema has in the text; without one, it has no spans.
//!
//! A label's vector passes a recurrent layer with a step per instance, of which entities are the first one, and further
//! layers. Spans have GLiNER's layers (`spans.rs`). Labels of classifications have a score for the text, in place of spans'.

use kivu_engine::program::{ABSENT, SchemaTokens};

use super::{
    span_layers::{apply_two, counted, numbered, numbers_of_markers, span_layers, span_logits},
    word_scores::{layer, linear, listed, named_layer, rows},
};
use crate::{
    onnx::{GraphBuilder, Value, data_type, float, functions, integer, layers::Layers},
    quantize::transpose,
};
use kivu::Result;

/// Prefix for the layers on labels.
const LABELS: &str = "count_embed";
/// The layers on the schema's token.
const COUNTS: &str = "count_pred";
/// Logits of these layers: numbers of instances from 0 on.
const MAX_INSTANCES: usize = 20;
/// Attention heads and layers of the transformer over labels, which no setting changes.
pub const TRANSFORMER_HEADS: usize = 4;
const TRANSFORMER_LAYERS: usize = 2;
/// Added to variances in the transformer, as PyTorch does by default.
const EPSILON: f32 = 1e-5;
/// Experts, which no setting changes.
const EXPERTS: usize = 4;
/// Constants that all forms have.
const OWN: usize = 26;
/// Inputs in front of the constants.
const INPUTS: usize = 5;

/// Spans that are scored after a count.
#[derive(Clone, Copy, Debug)]
pub struct CountedSpans {
    /// Maximum number of words in a span.
    pub longest: usize,
    /// Tokens around labels of structures, relations and classifications.
    pub tokens: SchemaTokens,
    pub mixing: Mixing,
}

/// Layers after the recurrent step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// Two layers on state and label.
    Joined,
    /// A transformer over labels.
    Attention,
    /// Experts with a router.
    Experts,
}

impl CountedSpans {
    /// Writes logits by word, label and word count, with all labels once per instance. `sizes` are the vectors' width and the
    /// maximum number of tokens.
    pub fn write(
        self,
        layers: &mut Layers<'_>,
        sizes: [usize; 2],
        [tokens, ids, vectors, words]: [&Value; 4],
        marker: &Value,
    ) -> Result<Value> {
        let constants = self.constants(layers, sizes[0])?;
        let own: [&Value; INPUTS] = [tokens, ids, vectors, words, marker];
        let inputs: Vec<&Value> = own.into_iter().chain(&constants).collect();
        // The native engine knows the layers by this name.
        let name = match self.mixing {
            Mixing::Joined => "JoinedSpans",
            Mixing::Attention => "AttendedSpans",
            Mixing::Experts => "ExpertSpans",
        };
        Ok(layers.graph.function_of(name, &inputs, |graph, inputs| {
            let (own, constants) = inputs.split_at(INPUTS);
            self.logits(graph, sizes, listed(own), constants)
        }))
    }

    /// Constants, in the order in which the native engine reads them.
    fn constants(self, layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
        let longest = layers
            .graph
            .integers("longest_span", &[self.longest as i64]);
        let SchemaTokens {
            schema,
            fields: [field, end],
            class,
        } = self.tokens;
        let tokens = layers
            .graph
            .integers("schema_tokens", &[schema, field, end, class].map(i64::from));
        let [c0, c1] = layer(layers, &format!("{COUNTS}.0"), [width, 2 * width])?;
        let [c2, c3] = layer(layers, &format!("{COUNTS}.2"), [2 * width, MAX_INSTANCES])?;
        let [steps, g0, g1] = recurrent_layer(layers, width)?;
        let [k0, k1, k2, k3] = label_layers(layers, width)?;
        let mut all = vec![
            longest, tokens, c0, c1, c2, c3, steps, g0, g1, k0, k1, k2, k3,
        ];
        all.extend(span_layers(layers, "span_rep.span_rep_layer", width)?);
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
        [width, max_tokens]: [usize; 2],
        [tokens, ids, vectors, words, marker]: [&Value; INPUTS],
        constants: &[&Value],
    ) -> Value {
        let (own, others) = constants.split_at(OWN);
        let [_, _, c0, c1, c2, c3, steps, g0, g1, k0, k1, k2, k3] = listed(own);
        let spans = &own[13..];
        let (labels, features) =
            self.labels(graph, max_tokens, [tokens, ids, marker], [c0, c1, c2, c3]);
        let LabelFeatures {
            instances,
            is_class,
            schemas,
        } = features;
        let one = graph.one();
        let count = graph.reduce("ReduceMax", &[&instances]);
        let count = graph.cast(&count, data_type::INT64);
        let count = graph.max(&count, &one);
        let states = recur(graph, [&labels, &count], width, [steps, g0, g1]);
        let queries = match self.mixing {
            Mixing::Joined => mix_joined(graph, [&states, &labels], listed(others)),
            Mixing::Attention => mix_labels(graph, [&states, &labels, &schemas], width, others),
            Mixing::Experts => mix_experts(graph, &states, others),
        };
        let by_label = graph.integers("by_label", &[0, -1, width as i64]);
        let queries = graph.reshape(&queries, &by_label);
        let logits = span_logits(
            graph,
            [&queries, vectors, words],
            spans,
            [self.longest, max_tokens],
        );
        // A column for each label in each instance, in all rows.
        let column = graph.integers("column", &[0, 1, -1, 1]);
        let counting: Vec<f32> = (0..MAX_INSTANCES).map(|instance| instance as f32).collect();
        let counting = graph.floats("instance_indexes", &[1, MAX_INSTANCES, 1, 1], &counting);
        let zero = graph.zero();
        let counting = graph.slice(&counting, &zero, &count, &one);
        let instances = graph.unsqueeze(&instances, &one);
        let is_present = graph.node("Less", &[&counting, &instances], vec![]);
        let is_present = graph.reshape(&is_present, &column);
        let absent = graph.scalar("absent_logit", ABSENT);
        let logits = graph.choose(&is_present, &logits, &absent);
        let classes = apply_two(graph, &labels, [k0, k1, k2, k3]);
        let repeated = graph.concat(&[&one, &count, &one, &one], 0);
        let [is_class, classes] = [&is_class, &classes].map(|value| {
            let value = graph.unsqueeze(value, &one);
            let value = graph.expand(&value, &repeated);
            graph.reshape(&value, &column)
        });
        let is_class = graph.cast(&is_class, data_type::BOOL);
        graph.choose(&is_class, &classes, &logits)
    }

    /// Label vectors, and what is known of each label.
    fn labels(
        self,
        graph: &mut GraphBuilder,
        max_tokens: usize,
        [tokens, ids, marker]: [&Value; 3],
        counts: [&Value; 4],
    ) -> (Value, LabelFeatures) {
        let SchemaTokens {
            schema,
            fields: [field, end],
            class,
        } = self.tokens;
        let [schema, field, end, class] = [
            ("schema", schema),
            ("field", field),
            ("relation_end", end),
            ("class", class),
        ]
        .map(|(name, id)| graph.integers(&format!("{name}_token"), &[i64::from(id)]));
        let mut is = |token: &Value| {
            let found = graph.equal(ids, token);
            graph.cast(&found, data_type::INT64)
        };
        let [is_entity, is_class, is_schema] = [marker, &class, &schema].map(&mut is);
        let ends = [&field, &end].map(&mut is);
        let is_field = graph.node("Add", &ends.each_ref(), vec![]);
        let is_span = graph.add(&is_entity, &is_field);
        let is_label = graph.add(&is_span, &is_class);
        let numbers = counted(graph, &is_label);
        let numbers = graph.mul(&numbers, &is_label);
        let (labels, _) = numbered(graph, tokens, &numbers, max_tokens);
        // Each token's schema, from 1 on, and the schema's likeliest number of instances.
        let schemas = counted(graph, &is_schema);
        let places = numbers_of_markers(graph, ids, &schema);
        let (vectors, indexes) = numbered(graph, tokens, &places, max_tokens);
        let counts = apply_two(graph, &vectors, counts);
        let counts = graph.node(
            "ArgMax",
            &[&counts],
            vec![integer("axis", -1), integer("keepdims", 1)],
        );
        let counts = graph.float(&counts);
        let (one, last) = (graph.one(), graph.last_axis());
        let all = graph.add(&indexes, &one);
        let schemas = graph.unsqueeze(&schemas, &last);
        let is_own = graph.equal(&schemas, &all);
        let is_own = graph.float(&is_own);
        let counts = graph.matmul(&is_own, &counts);
        let [is_entity, is_field, is_class] = [is_entity, is_field, is_class].map(|flag| {
            let flag = graph.unsqueeze(&flag, &last);
            graph.float(&flag)
        });
        // Entities are one instance.
        let once = graph.min(&counts, &is_entity);
        let counts = graph.mul(&counts, &is_field);
        let counts = graph.add(&counts, &once);
        let schemas = graph.float(&schemas);
        let features = graph.concat(&[&counts, &is_class, &schemas], 2);
        let (features, _) = numbered(graph, &features, &numbers, max_tokens);
        let [instances, is_class, schemas] = graph.split(&features);
        (
            labels,
            LabelFeatures {
                instances,
                is_class,
                schemas,
            },
        )
    }
}

/// Label features: one row per text, with one number per label.
struct LabelFeatures {
    /// Number of instances.
    instances: Value,
    /// 1 for labels of classifications.
    is_class: Value,
    /// The number of the label's schema, from 1 on.
    schemas: Value,
}

/// Each step's own contribution to the gates, and the layer from state to gates.
fn recurrent_layer(layers: &mut Layers<'_>, width: usize) -> Result<[Value; 3]> {
    let name = |part: &str| format!("{LABELS}.gru.{part}_l0");
    let inputs = layers
        .weights
        .take_whole(&name("weight_ih"), &[3 * width, width])?;
    let input_bias = layers.weights.take_whole(&name("bias_ih"), &[3 * width])?;
    let positions = layers.weights.take_whole(
        &format!("{LABELS}.pos_embedding.weight"),
        &[MAX_INSTANCES, width],
    )?;
    let product = |row: &[f32], position: &[f32]| -> f64 {
        row.iter()
            .zip(position)
            .map(|(left, right)| f64::from(*left) * f64::from(*right))
            .sum()
    };
    let step = |position: &[f32]| -> Vec<f32> {
        let rows = inputs.values.chunks_exact(width).zip(&input_bias.values);
        rows.map(|(row, bias)| (product(row, position) + f64::from(*bias)) as f32)
            .collect()
    };
    let steps: Vec<f32> = positions
        .values
        .chunks_exact(width)
        .flat_map(step)
        .collect();
    let states = layers
        .weights
        .take_whole(&name("weight_hh"), &[3 * width, width])?;
    let bias = layers.weights.take_whole(&name("bias_hh"), &[3 * width])?;
    let graph = &mut layers.graph;
    Ok([
        graph.floats(&name("steps"), &[MAX_INSTANCES, 3 * width], &steps),
        graph.floats(
            &name("weight_hh"),
            &[width, 3 * width],
            &transpose(&states.values, width),
        ),
        graph.floats(&name("bias_hh"), &[3 * width], &bias.values),
    ])
}

/// The states after each of `count` steps, by text, step and label.
fn recur(
    graph: &mut GraphBuilder,
    [labels, count]: [&Value; 2],
    width: usize,
    [steps, weight, bias]: [&Value; 3],
) -> Value {
    let [zero, one] =
        [("zero", 0), ("one", 1)].map(|(name, number)| graph.integers(name, &[number]));
    // The operator's gates are update, reset and new state, and it adds one row of inputs per step.
    let reordered = |graph: &mut GraphBuilder, value: &Value| {
        let [reset, update, new] = graph.split(value);
        graph.concat(&[&update, &reset, &new], -1)
    };
    let [inputs, states] = [steps, weight].map(|layer| {
        let layer = reordered(graph, layer);
        let layer = graph.transpose(&layer, &[1, 0]);
        graph.unsqueeze(&layer, &zero)
    });
    let bias = reordered(graph, bias);
    let without = graph.sub(&bias, &bias);
    let biases = graph.concat(&[&without, &bias], 0);
    let biases = graph.unsqueeze(&biases, &zero);
    let mut single = vec![0.0; MAX_INSTANCES * MAX_INSTANCES];
    single
        .iter_mut()
        .step_by(MAX_INSTANCES + 1)
        .for_each(|value| *value = 1.0);
    let single = graph.floats("single_steps", &[MAX_INSTANCES, 1, MAX_INSTANCES], &single);
    let single = graph.slice(&single, &zero, count, &zero);
    let shape = graph.shape(labels);
    let flat = graph.integers("flat_rows", &[-1, width as i64]);
    let first = graph.reshape(labels, &flat);
    let rows = graph.shape(&first);
    let rows = graph.node("Slice", &[&rows, &zero, &one], vec![]);
    let repeated = graph.concat(&[&one, &rows, &one], 0);
    let single = graph.expand(&single, &repeated);
    let first = graph.unsqueeze(&first, &zero);
    let inputs = [&single, &inputs, &states, &biases, &Value::none(), &first];
    let attributes = vec![
        integer("hidden_size", width as i64),
        integer("linear_before_reset", 1),
    ];
    let found = graph.node("GRU", &inputs, attributes);
    let shape = graph.concat(&[count, &shape], 0);
    let found = graph.reshape(&found, &shape);
    graph.transpose(&found, &[1, 0, 2, 3])
}

fn joined_layers(layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
    let [w0, b0] = layer(
        layers,
        &format!("{LABELS}.projector.0"),
        [2 * width, 4 * width],
    )?;
    let [w1, b1] = layer(layers, &format!("{LABELS}.projector.2"), [4 * width, width])?;
    Ok(vec![w0, b0, w1, b1])
}

fn mix_joined(
    graph: &mut GraphBuilder,
    [states, labels]: [&Value; 2],
    constants: [&Value; 4],
) -> Value {
    let one = graph.one();
    let shape = graph.shape(states);
    let labels = graph.unsqueeze(labels, &one);
    let labels = graph.expand(&labels, &shape);
    let rows = graph.concat(&[states, &labels], -1);
    apply_two(graph, &rows, constants)
}

fn transformer_layers(layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
    let name = format!("{LABELS}.transformer");
    let inner = rows(layers, &format!("{name}.in_projector.weight"));
    let mut all = Vec::from(layer(
        layers,
        &format!("{name}.in_projector"),
        [width, inner],
    )?);
    for place in 0..TRANSFORMER_LAYERS {
        let name = format!("{name}.transformer.layers.{place}");
        all.extend(named_layer(
            layers,
            ["weight", "bias"].map(|part| format!("{name}.self_attn.in_proj_{part}")),
            [inner, 3 * inner],
        )?);
        all.extend(layer(
            layers,
            &format!("{name}.self_attn.out_proj"),
            [inner, inner],
        )?);
        all.extend(norm(layers, &format!("{name}.norm1"), inner)?);
        all.extend(layer(
            layers,
            &format!("{name}.linear1"),
            [inner, 2 * inner],
        )?);
        all.extend(layer(
            layers,
            &format!("{name}.linear2"),
            [2 * inner, inner],
        )?);
        all.extend(norm(layers, &format!("{name}.norm2"), inner)?);
    }
    for (place, inputs) in [(0, inner + width), (2, width), (4, width)] {
        all.extend(layer(
            layers,
            &format!("{name}.out_projector.{place}"),
            [inputs, width],
        )?);
    }
    Ok(all)
}

/// A transformer over each schema's labels, in each instance by itself.
fn mix_labels(
    graph: &mut GraphBuilder,
    [states, labels, schemas]: [&Value; 3],
    width: usize,
    constants: &[&Value],
) -> Value {
    let (input, others) = constants.split_at(2);
    let (by_layer, output) = others.split_at(12 * TRANSFORMER_LAYERS);
    let [one, two] = [("one", 1), ("two", 2)].map(|(name, number)| graph.integers(name, &[number]));
    let shape = graph.shape(states);
    let count = functions::length(graph, states);
    let labels = graph.unsqueeze(labels, &one);
    let sums = graph.add(states, &labels);
    // Instances are like texts.
    let (three, last) = (graph.integers("three", &[3]), graph.last_axis());
    let label_count = graph.node("Slice", &[&shape, &two, &three], vec![]);
    let own_width = graph.integers("own_width", &[width as i64]);
    let flat = graph.concat(&[&last, &label_count, &own_width], 0);
    let sums = graph.reshape(&sums, &flat);
    let others_schemas = graph.transpose(schemas, &[0, 2, 1]);
    let is_other = graph.equal(schemas, &others_schemas);
    let is_other = graph.not(&is_other);
    let is_other = graph.float(&is_other);
    let masked = graph.scalar("other_schemas", ABSENT);
    let bias = graph.mul(&is_other, &masked);
    let bias = graph.unsqueeze(&bias, &one);
    let repeated = graph.concat(&[&one, &count, &one, &one], 0);
    let bias = graph.expand(&bias, &repeated);
    let by_row = graph.concat(&[&last, &one, &label_count, &label_count], 0);
    let bias = graph.reshape(&bias, &by_row);
    let mut rows = linear(graph, &sums, listed(input));
    for constants in by_layer.chunks_exact(12) {
        let [qkv0, qkv1, out0, out1, n0, n1, u0, u1, d0, d1, n2, n3] = listed(constants);
        let all = linear(graph, &rows, [qkv0, qkv1]);
        let [queries, keys, values] = graph.split(&all);
        let heads = vec![integer("num_heads", TRANSFORMER_HEADS as i64)];
        let inputs = [
            &queries,
            &keys,
            &values,
            &Value::none(),
            &Value::none(),
            &bias,
        ];
        let attended = graph.microsoft("MultiHeadAttention", &inputs, heads);
        let attended = linear(graph, &attended, [out0, out1]);
        rows = add_and_normalize(graph, [&rows, &attended], [n0, n1]);
        let changed = apply_two(graph, &rows, [u0, u1, d0, d1]);
        rows = add_and_normalize(graph, [&rows, &changed], [n2, n3]);
    }
    let rows = graph.concat(&[&rows, &sums], 2);
    let [w0, b0, w1, b1, w2, b2] = listed(output);
    let rows = apply_two(graph, &rows, [w0, b0, w1, b1]);
    let rows = graph.relu(&rows);
    let rows = linear(graph, &rows, [w2, b2]);
    graph.reshape(&rows, &shape)
}

fn add_and_normalize(
    graph: &mut GraphBuilder,
    rows: [&Value; 2],
    [gain, bias]: [&Value; 2],
) -> Value {
    let sum = graph.node("Add", &rows, vec![]);
    let attributes = vec![integer("axis", -1), float("epsilon", EPSILON)];
    graph.node("LayerNormalization", &[&sum, gain, bias], attributes)
}

fn expert_layers(layers: &mut Layers<'_>, width: usize) -> Result<Vec<Value>> {
    let mut all = Vec::from(layer(
        layers,
        &format!("{LABELS}.router.0"),
        [width, width],
    )?);
    all.extend(layer(
        layers,
        &format!("{LABELS}.router.2"),
        [width, EXPERTS],
    )?);
    let wide = 2 * width;
    // Stored with a row per input, unlike other layers.
    let shapes = [
        ("w1", [width, wide]),
        ("b1", [1, wide]),
        ("w2", [wide, width]),
        ("b2", [1, width]),
    ];
    for expert in 0..EXPERTS {
        for (part, [height, width]) in shapes {
            let name = format!("{LABELS}.{part}");
            let (size, is_bias) = (height * width, height == 1);
            let shape = if is_bias {
                vec![EXPERTS, width]
            } else {
                vec![EXPERTS, height, width]
            };
            let values = &layers.weights.take_whole(&name, &shape)?.values[expert * size..][..size];
            all.push(
                layers
                    .graph
                    .floats(&format!("{name}.{expert}"), &shape[1..], values),
            );
        }
    }
    Ok(all)
}

/// A sum of experts.
fn mix_experts(graph: &mut GraphBuilder, state: &Value, constants: &[&Value]) -> Value {
    let (router, experts) = constants.split_at(4);
    let logits = gelu_layers(graph, state, listed(router));
    let weights = graph.softmax(&logits);
    let weights: [Value; EXPERTS] = graph.split(&weights);
    let mut sum: Option<Value> = None;
    for (constants, weight) in experts.chunks_exact(4).zip(&weights) {
        let rows = gelu_layers(graph, state, listed(constants));
        let rows = graph.mul(&rows, weight);
        sum = Some(match sum {
            None => rows,
            Some(sum) => graph.add(&sum, &rows),
        });
    }
    sum.unwrap_or_else(|| state.clone())
}

/// Scores of labels, with the axes of span logits: two layers on the vectors of the tokens in front of labels.
pub fn label_logits(graph: &mut GraphBuilder, labels: &Value, constants: [&Value; 4]) -> Value {
    let one = graph.integers("axis_1", &[1]);
    let logits = apply_two(graph, labels, constants);
    graph.unsqueeze(&logits, &one)
}

/// The layers that score labels.
pub fn label_layers(layers: &mut Layers<'_>, width: usize) -> Result<[Value; 4]> {
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
