//! GLiNER's word head: three logits per word and label, for an entity's first word, its last word, and any word in it. In
//! one of GLiClass's heads, a text has one logit per label by the same layers.
//!
//! A word and a label each have two vectors, from one layer. The first layer on both first vectors and on the product of
//! the second ones is divided into three, so that only the products are computed for each word and label.

use crate::{
    onnx::{GraphBuilder, Value, layers::Layers},
    quantize::transpose,
};
use kivu::{Error, Result};
use kivu_engine::program::WORD_SCORES;

/// A head's weight names and size.
#[derive(Clone, Copy, Debug)]
pub struct WordLayers {
    /// The layers on words, or texts, and on labels.
    projections: [&'static str; 2],
    /// The layers after them.
    out: &'static str,
    /// Logits per word and label.
    count: usize,
}

impl WordLayers {
    /// GLiNER's.
    pub const OF_WORDS: Self = Self {
        projections: ["scorer.proj_token", "scorer.proj_label"],
        out: "scorer.out_mlp",
        count: WORD_SCORES,
    };
    /// GLiClass's.
    pub const OF_TEXTS: Self = Self {
        projections: ["model.scorer.proj_text", "model.scorer.proj_label"],
        out: "model.scorer.out_mlp",
        count: 1,
    };
}

/// Constants in the order in which the native engine reads them: for words the layer of the first vector, its part in
/// the sum, with the sum's bias, and the layer of the second vector; the same for labels, without a bias; the products'
/// part; the last layer.
pub fn constants(
    layers: &mut Layers<'_>,
    WordLayers {
        projections: [of_words, of_labels],
        out,
        count,
    }: WordLayers,
    width: usize,
) -> Result<[Value; 14]> {
    let wide = 4 * width;
    let [w0, w1, w4, w5] = two_vectors(layers, of_words, width)?;
    let [l0, l1, l3, l4] = two_vectors(layers, of_labels, width)?;
    let parts = ["words", "labels", "products"];
    let ([w2, l2, products], w3) = divided(layers, &format!("{out}.0"), parts, [width, wide])?;
    let [s0, s1] = layer(layers, &format!("{out}.3"), [wide, count])?;
    Ok([w0, w1, w2, w3, w4, w5, l0, l1, l2, l3, l4, products, s0, s1])
}

/// Logits by word, label and kind.
pub fn logits(
    graph: &mut GraphBuilder,
    [words, labels]: [&Value; 2],
    constants: [&Value; 14],
) -> Value {
    let [w0, w1, w2, w3, w4, w5, l0, l1, l2, l3, l4, products, s0, s1] = constants;
    let [words_axis, labels_axis] =
        [1, 2].map(|axis| graph.integers(&format!("axis_{axis}"), &[axis]));
    let first = linear(graph, words, [w0, w1]);
    let of_words = linear(graph, &first, [w2, w3]);
    let factors = linear(graph, words, [w4, w5]);
    let first = linear(graph, labels, [l0, l1]);
    let of_labels = graph.matmul(&first, l2);
    let label_factors = linear(graph, labels, [l3, l4]);
    let mut paired = |operator: &str, words: &Value, labels: &Value| {
        let words = graph.unsqueeze(words, &labels_axis);
        let labels = graph.unsqueeze(labels, &words_axis);
        graph.node(operator, &[&words, &labels], vec![])
    };
    let sums = paired("Add", &of_words, &of_labels);
    let pairs = paired("Mul", &factors, &label_factors);
    let pairs = graph.matmul(&pairs, products);
    let sums = graph.add(&pairs, &sums);
    let sums = graph.relu(&sums);
    linear(graph, &sums, [s0, s1])
}

/// Layers for the first and second vector, which the weights store as one layer.
fn two_vectors(layers: &mut Layers<'_>, name: &str, width: usize) -> Result<[Value; 4]> {
    let weight = layers
        .weights
        .take_whole(&format!("{name}.weight"), &[2 * width, width])?;
    let bias = layers
        .weights
        .take_whole(&format!("{name}.bias"), &[2 * width])?;
    let rows = weight
        .values
        .chunks_exact(width * width)
        .zip(bias.values.chunks_exact(width));
    let mut layer = |(place, (weight, bias)): (usize, (&[f32], &[f32]))| {
        let weight = transpose(weight, width);
        let weight =
            layers
                .graph
                .floats(&format!("{name}.weight.{place}"), &[width, width], &weight);
        [
            weight,
            layers
                .graph
                .floats(&format!("{name}.bias.{place}"), &[width], bias),
        ]
    };
    let layers: Vec<Value> = rows.enumerate().flat_map(&mut layer).collect();
    layers
        .try_into()
        .map_err(|_| Error::model(format!("expected two layers in `{name}.weight`")))
}

/// A layer's weight, transposed, and its bias.
pub fn layer(layers: &mut Layers<'_>, name: &str, shape: [usize; 2]) -> Result<[Value; 2]> {
    named_layer(
        layers,
        ["weight", "bias"].map(|part| format!("{name}.{part}")),
        shape,
    )
}

/// The same with the names of both.
pub fn named_layer(
    layers: &mut Layers<'_>,
    [weight, bias]: [String; 2],
    [inputs, outputs]: [usize; 2],
) -> Result<[Value; 2]> {
    let values = transpose(
        &layers
            .weights
            .take_whole(&weight, &[outputs, inputs])?
            .values,
        inputs,
    );
    let biases = layers.weights.take_whole(&bias, &[outputs])?;
    let weight = layers.graph.floats(&weight, &[inputs, outputs], &values);
    Ok([
        weight,
        layers.graph.floats(&bias, &[outputs], &biases.values),
    ])
}

pub fn linear(graph: &mut GraphBuilder, input: &Value, [weight, bias]: [&Value; 2]) -> Value {
    let product = graph.matmul(input, weight);
    graph.add(&product, bias)
}

/// A layer on several vectors of `width` values, as a matrix for each of them and the bias.
pub fn divided<const PARTS: usize>(
    layers: &mut Layers<'_>,
    name: &str,
    parts: [&str; PARTS],
    [width, outputs]: [usize; 2],
) -> Result<([Value; PARTS], Value)> {
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
    let inputs = PARTS * width;
    let weight = layers.weights.take_whole(&weight, &[outputs, inputs])?;
    let values = layers.weights.take_whole(&bias, &[outputs])?;
    let graph = &mut layers.graph;
    let mut from = 0;
    let matrices = parts.map(|part| {
        let rows = weight.values.chunks_exact(inputs);
        let rows = rows.flat_map(|row| &row[from..][..width]).copied();
        let part_weight = transpose(&rows.collect::<Vec<f32>>(), width);
        from += width;
        graph.floats(&format!("{name}.{part}"), &[width, outputs], &part_weight)
    });
    Ok((matrices, graph.floats(&bias, &[outputs], &values.values)))
}

/// A weight's first axis; 0 without the weight.
pub fn rows(layers: &Layers<'_>, name: &str) -> usize {
    let weight = layers.weights.tensors.get(name);
    weight
        .and_then(|weight| weight.shape.first().copied())
        .unwrap_or(0)
}

/// A function's constants as an array.
pub fn listed<'a, const COUNT: usize>(constants: &[&'a Value]) -> [&'a Value; COUNT] {
    std::array::from_fn(|place| constants[place])
}
