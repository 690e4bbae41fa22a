//! MPNet's buckets of distances: each head has a value for each bucket, which all layers add to their scores.

use crate::{
    build::{functions, layers::Layers, onnx::Value},
    error::Result,
};

/// The buckets of tokens before a token, and of those after it.
const SIDE: usize = 16;
/// Distances from here on share a bucket with others, further apart in logarithmic steps.
const EXACT: usize = SIDE / 2;
/// From here on, all distances have the same bucket.
const FARTHEST: f32 = 128.0;

/// The bucket of a token at this distance, which is negative for tokens before.
fn bucket(distance: i64) -> usize {
    let side = if distance > 0 { SIDE } else { 0 };
    let steps = distance.unsigned_abs() as usize;
    if steps < EXACT {
        return side + steps;
    }
    let exact = EXACT as f32;
    let step = (steps as f32 / exact).ln() / (FARTHEST / exact).ln() * exact;
    side + (EXACT + step as usize).min(SIDE - 1)
}

/// The values that are added to the scores of texts with these ids, by head; the first axis has the length 1.
pub(super) fn bias(
    layers: &mut Layers<'_>,
    ids: &Value,
    (table, heads, positions): (&str, usize, usize),
) -> Result<Value> {
    let rows = &layers.weights.take(table, &[2 * SIDE, heads])?.values;
    let farthest = positions as i64 - 1;
    let values: Vec<f32> = (0..heads)
        .flat_map(|head| (-farthest..=farthest).map(move |distance| rows[bucket(distance) * heads + head]))
        .collect();
    let values = layers.graph.floats("distance_values", &[1, heads, values.len() / heads], &values);
    Ok(layers.graph.function("DistanceValues", [&values, ids], |graph, [values, ids]| {
        functions::distance_values(graph, [values, ids], positions)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_begin_at_the_distances_of_transformers() {
        let begins: Vec<i64> = (1..512).filter(|steps| bucket(-*steps) != bucket(1 - *steps)).collect();
        assert_eq!(begins, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert!((1..512).all(|steps| bucket(steps) == bucket(-steps) + 16));
        assert_eq!(bucket(0), 0);
    }
}
