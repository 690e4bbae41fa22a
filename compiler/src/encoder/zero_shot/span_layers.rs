//! Layers on spans that GLiNER's and GLiNER2's heads share, and the selection of words and labels among tokens.

use super::word_scores::{divided, layer, linear, listed};
use crate::onnx::{GraphBuilder, Value, data_type, layers::Layers};
use kivu::Result;

/// Constants of the span layers called `name`, in the order in which the native engine reads them: the last layer; the
/// layers on the vectors of words that begin spans, and on both together; the same for words that end spans, without the
/// bias of the layer on both.
pub fn span_layers(layers: &mut Layers<'_>, name: &str, width: usize) -> Result<Vec<Value>> {
    let wide = 4 * width;
    let [last, last_bias] = ["weight", "bias"].map(|part| format!("{name}.out_project.3.{part}"));
    let weight = layers.weights.take_whole(&last, &[width, wide])?;
    let bias = layers.weights.take_whole(&last_bias, &[width])?;
    let mut all = vec![
        layers.graph.floats(&last, &[width, wide], &weight.values),
        layers.graph.floats(&last_bias, &[width, 1], &bias.values),
    ];
    let first = format!("{name}.out_project.0");
    let ([start, end], bias) = divided(layers, &first, ["start", "end"], [width, wide])?;
    all.extend(two_layers(layers, &format!("{name}.project_start"), width)?);
    all.extend([start, bias]);
    all.extend(two_layers(layers, &format!("{name}.project_end"), width)?);
    all.push(end);
    Ok(all)
}

/// Logits of the spans that begin with each word, by label and word count, from label vectors after their layers,
/// word vectors and word numbers.
pub fn span_logits(
    graph: &mut GraphBuilder,
    [labels, vectors, words]: [&Value; 3],
    constants: &[&Value],
    [longest, max_tokens]: [usize; 2],
) -> Value {
    let [l0, l1, s0, s1, s2, s3, s4, s5, e0, e1, e2, e3, e4] = listed(constants);
    let [labels, biases] = [l0, l1].map(|factor| {
        let product = graph.matmul(labels, factor);
        graph.transpose(&product, &[0, 2, 1])
    });
    let mut sides = [[s0, s1, s2, s3, s4], [e0, e1, e2, e3, e4]].map(|[w0, b0, w1, b1, half]| {
        let part = apply_two(graph, vectors, [w0, b0, w1, b1]);
        let part = graph.relu(&part);
        graph.matmul(&part, half)
    });
    sides[0] = graph.add(&sides[0], s5);
    let [starts, ends] = sides;
    let indexes = indexes(graph, words, max_tokens);
    let last_axis = graph.last_axis();
    let last = graph.reduce_keeping("ReduceMax", &[&indexes]);
    let mut of_lengths = Vec::new();
    for length in 0..longest {
        let offset = graph.integers(&format!("span_{length}"), &[length as i64]);
        let ends_at = graph.add(&indexes, &offset);
        let ends_at = graph.min(&ends_at, &last);
        let ends = graph.gather_along(&ends, &ends_at, 1);
        let spans = graph.add(&starts, &ends);
        let spans = graph.relu(&spans);
        let products = graph.matmul(&spans, &labels);
        let logits = graph.add(&products, &biases);
        of_lengths.push(graph.unsqueeze(&logits, &last_axis));
    }
    graph.concat(&of_lengths.iter().collect::<Vec<_>>(), 3)
}

/// For each marker token, its label's number, from 1 on; 0 for all other tokens.
pub fn numbers_of_markers(graph: &mut GraphBuilder, ids: &Value, marker: &Value) -> Value {
    let is_marker = graph.equal(ids, marker);
    let is_marker = graph.cast(&is_marker, data_type::INT64);
    let counted = counted(graph, &is_marker);
    graph.mul(&counted, &is_marker)
}

/// For each token, the number of tokens up to it for which `is_marker` is 1.
pub fn counted(graph: &mut GraphBuilder, is_marker: &Value) -> Value {
    let one = graph.one();
    graph.cumsum(is_marker, &one)
}

/// The indexes from 0 on of tokens that are numbered from 1 on.
fn indexes(graph: &mut GraphBuilder, numbers: &Value, max_tokens: usize) -> Value {
    let counting: Vec<i64> = (0..max_tokens as i64).collect();
    let zero = graph.zero();
    let counting = graph.integers("span_indexes", &counting);
    let flat = graph.integers("flat_list", &[-1]);
    let count = graph.reduce_keeping("ReduceMax", &[numbers]);
    let count = graph.reshape(&count, &flat);
    graph.slice(&counting, &zero, &count, &zero)
}

/// Selects the vectors of tokens numbered from 1 on, zeros where no token in a text has the number; also returns
/// the indexes from 0 on.
pub fn numbered(
    graph: &mut GraphBuilder,
    tokens: &Value,
    numbers: &Value,
    max_tokens: usize,
) -> (Value, Value) {
    let one = graph.one();
    let indexes = indexes(graph, numbers, max_tokens);
    let expected = graph.add(&indexes, &one);
    let expected = graph.unsqueeze(&expected, &one);
    let numbers = graph.unsqueeze(numbers, &one);
    let is_token = graph.equal(&numbers, &expected);
    let is_token = graph.float(&is_token);
    (graph.matmul(&is_token, tokens), indexes)
}

/// The weights and biases of two layers; the first is four times as wide.
pub fn two_layers(layers: &mut Layers<'_>, name: &str, width: usize) -> Result<[Value; 4]> {
    let [w0, b0] = layer(layers, &format!("{name}.0"), [width, 4 * width])?;
    let [w1, b1] = layer(layers, &format!("{name}.3"), [4 * width, width])?;
    Ok([w0, b0, w1, b1])
}

pub fn apply_two(graph: &mut GraphBuilder, input: &Value, [w0, b0, w1, b1]: [&Value; 4]) -> Value {
    let wide = linear(graph, input, [w0, b0]);
    let wide = graph.relu(&wide);
    linear(graph, &wide, [w1, b1])
}
