//! Distance buckets: each head has a value per bucket, added to its attention scores.

use super::Layers;
use crate::onnx::{Value, functions};
use kivu::Result;

/// How distances share values: near ones have one each, farther ones share them in logarithmic steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Bucket count for tokens before a token, including itself, or for tokens after it.
    pub side: usize,
    /// From here on, all distances have the same bucket.
    pub farthest: usize,
}

/// A model's values by bucket and head.
#[derive(Clone, Copy)]
pub struct BucketValues<'a> {
    /// The weight's name.
    pub table: &'a str,
    pub heads: usize,
    /// Maximum number of tokens.
    pub positions: usize,
}

impl Buckets {
    /// Bucket for a distance in one direction.
    pub fn on_side(self, steps: usize) -> usize {
        let exact = self.side / 2;
        if steps < exact {
            return steps;
        }
        let (near, far) = (exact as f32, self.farthest as f32);
        let step = (steps as f32 / near).ln() / (far / near).ln() * (self.side - exact) as f32;
        (exact + step as usize).min(self.side - 1)
    }

    /// Bucket for a distance in either direction; distances are negative for tokens before.
    fn of(self, distance: i64) -> usize {
        let side = if distance > 0 { self.side } else { 0 };
        side + self.on_side(distance.unsigned_abs() as usize)
    }

    /// Values added to attention scores for texts with these ids, by head; the first axis has the length 1.
    pub fn bias(
        self,
        layers: &mut Layers<'_>,
        ids: &Value,
        values: BucketValues<'_>,
    ) -> Result<Value> {
        let BucketValues {
            table,
            heads,
            positions,
        } = values;
        let rows = &layers.weights.take(table, &[2 * self.side, heads])?.values;
        let farthest = positions as i64 - 1;
        let distances = || -farthest..=farthest;
        let values: Vec<f32> = (0..heads)
            .flat_map(|head| {
                distances().map(move |distance| rows[self.of(distance) * heads + head])
            })
            .collect();
        let values = layers.graph.floats(
            "distance_values",
            &[1, heads, values.len() / heads],
            &values,
        );
        Ok(layers
            .graph
            .function("DistanceValues", [&values, ids], |graph, [values, ids]| {
                functions::distance_values(graph, [values, ids], positions)
            }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_begin_at_the_distances_of_transformers() {
        let buckets = Buckets {
            side: 16,
            farthest: 128,
        };
        let begins: Vec<i64> = (1..512)
            .filter(|steps| buckets.of(-*steps) != buckets.of(1 - *steps))
            .collect();
        assert_eq!(begins, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert!((1..512).all(|steps| buckets.of(steps) == buckets.of(-steps) + 16));
        assert_eq!(buckets.of(0), 0);
        // As in a decoder, whose tokens attend only to earlier tokens.
        let buckets = Buckets {
            side: 32,
            farthest: 128,
        };
        let begins: Vec<usize> = (17..512)
            .filter(|steps| buckets.on_side(*steps) != buckets.on_side(steps - 1))
            .collect();
        assert_eq!(
            begins,
            [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
        );
    }
}
