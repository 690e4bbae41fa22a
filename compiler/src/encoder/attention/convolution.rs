//! DeBERTa's convolution over neighbouring tokens.

use super::distances::Convolution;
use crate::onnx::{Value, functions, layers::Layers};
use kivu::Result;

const WEIGHT: &str = "encoder.conv.conv.weight";
const BIAS: &str = "encoder.conv.conv.bias";

/// Convolves the embeddings and adds the result to the first layer's output: a linear layer over each token's row and its
/// neighbours' rows.
pub fn convolve(
    layers: &mut Layers<'_>,
    convolution: &Convolution,
    [embedded, output, mask]: [&Value; 3],
) -> Result<Value> {
    let Convolution {
        width,
        groups,
        activation,
    } = *convolution;
    let (hidden, of_group) = (layers.hidden, layers.hidden / groups);
    let weight = layers.weights.take(WEIGHT, &[hidden, of_group, width])?;
    let mut matrix = vec![0.0; width * hidden * hidden];
    for (to, weight) in weight.values.chunks_exact(of_group * width).enumerate() {
        let first = to / of_group * of_group;
        for (from, weight) in weight.chunks_exact(width).enumerate() {
            for (place, weight) in weight.iter().enumerate() {
                matrix[(place * hidden + first + from) * hidden + to] = *weight;
            }
        }
    }
    let matrix = layers.graph.floats(
        &format!("{WEIGHT}.neighbours"),
        &[width * hidden, hidden],
        &matrix,
    );
    let bias = layers.constant(BIAS, &[hidden])?;
    let count = layers.graph.integers("neighbours", &[width as i64]);
    let joined = layers.graph.function(
        "Neighbours",
        [embedded, mask, &count],
        |graph, [tokens, mask, _]| functions::neighbours(graph, [tokens, mask], width),
    );
    let product = layers.graph.matmul(&joined, &matrix);
    let convolved = layers.graph.add(&product, &bias);
    let convolved = layers.activate(activation, &convolved);
    layers.add_and_norm(&convolved, output, "encoder.conv.LayerNorm")
}
