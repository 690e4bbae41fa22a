//! Attention for long texts, in query blocks, so that a whole text's scores are never in memory together.

use super::{MASKED, Rotary, Rotation};
use crate::onnx::{GraphBuilder, Value, data_type, float, functions, integer, integers};

/// Maximum number of queries in a block.
///
/// With 12 heads, a block's scores take 50 MB at 8,192 tokens. Texts up to this length have one block; at 512 tokens,
/// four blocks measured faster than the whole text, since their scores remain in the cache.
const QUERIES: i64 = 128;

/// Added to the score of a token outside the window: far below any score, but above padding's, so that their sum is
/// finite.
const OUT_OF_REACH: f32 = -1e30;

/// An attention window: the tokens that a token attends to, apart from itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionWindow {
    /// Tokens before it; `None` for all.
    pub before: Option<usize>,
    /// Tokens after it; `None` for all.
    pub after: Option<usize>,
}

/// How the distance between two tokens affects their attention score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Without effect.
    Ignored,
    /// Subtracts the distance times a per-head slope (symmetric ALiBi).
    Alibi,
}

/// Attention with several heads.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves the same number of query heads.
    pub key_heads: usize,
    /// Head width.
    pub width: usize,
    /// Factor for query-key products.
    pub scale: f32,
    /// Scores are limited to this, with a hyperbolic tangent.
    pub cap: Option<f32>,
    pub window: AttentionWindow,
    pub distance: Distance,
}

/// Query blocks of a text: as even as possible; the last is padded with the last token.
pub struct Blocks {
    /// Block count, as a scalar.
    count: Value,
    /// Queries per block.
    size: Value,
    /// Token count.
    pub length: Value,
    /// Token indices for all blocks.
    tokens: Value,
    /// Query positions, including the last block's padding, as floats from 0.
    pub positions: Value,
}

impl AttentionWindow {
    pub const ALL: Self = Self {
        before: None,
        after: None,
    };

    /// All tokens before it.
    pub const BEFORE: Self = Self {
        before: None,
        after: Some(0),
    };

    /// A window over the last `count` tokens, including the token itself.
    pub fn last(count: usize) -> Self {
        Self {
            before: Some(count.saturating_sub(1)),
            after: Some(0),
        }
    }

    /// The same number of tokens on both sides.
    pub fn within(distance: usize) -> Self {
        Self {
            before: Some(distance),
            after: Some(distance),
        }
    }
}

impl Blocks {
    /// Creates the blocks for texts with these ids.
    pub fn new(graph: &mut GraphBuilder, ids: &Value) -> Self {
        let length = functions::length(graph, ids);
        let mut constant = |name: &str, value: i64| graph.integers(name, &[value]);
        let (zero, one) = (constant("zero", 0), constant("one", 1));
        let (most, rest) = (
            constant("queries", QUERIES),
            constant("queries_rest", QUERIES - 1),
        );
        let zero_float = graph.floats("zero_float", &[], &[0.0]);
        let one_float = graph.floats("one_float", &[], &[1.0]);
        let mut node = |operator: &str, inputs: &[&Value]| graph.node(operator, inputs, vec![]);
        let count = node("Add", &[&length, &rest]);
        let count = node("Div", &[&count, &most]);
        // Length divided by block count, rounded up.
        let size = node("Add", &[&length, &count]);
        let size = node("Sub", &[&size, &one]);
        let size = node("Div", &[&size, &count]);
        let total = node("Mul", &[&count, &size]);
        let count = node("Squeeze", &[&count, &zero]);
        let total = node("Squeeze", &[&total, &zero]);
        let total = graph.cast(&total, data_type::FLOAT);
        let positions = graph.node("Range", &[&zero_float, &total, &one_float], vec![]);
        let tokens = graph.cast(&positions, data_type::INT64);
        let last = graph.node("Sub", &[&length, &one], vec![]);
        let tokens = graph.node("Min", &[&tokens, &last], vec![]);
        Self {
            count,
            size,
            length,
            tokens,
            positions,
        }
    }

    /// Attention between all tokens; `mask` is 1 for tokens and 0 for padding, and `sinks` has a logit per head that takes
    /// part in the softmax.
    pub fn attend(
        &self,
        graph: &mut GraphBuilder,
        attention: &Attention,
        [queries, keys, values]: [&Value; 3],
        mask: &Value,
        sinks: Option<&Value>,
    ) -> Value {
        let [keys, values] = [keys, values].map(|value| by_head(graph, attention, value));
        let (zero, one, two) = (
            graph.integers("zero", &[0]),
            graph.integers("one", &[1]),
            graph.integers("two", &[2]),
        );
        let AttentionWindow { before, after } = attention.window;
        let mut limit = |distance: Option<usize>| {
            distance
                .map(|distance| graph.integers(&format!("distance_{distance}"), &[distance as i64]))
        };
        let limits = [limit(before), limit(after)];
        let bias = DistanceBias::new(graph, attention);
        let queries = graph.node("Gather", &[queries, &self.tokens], vec![integer("axis", 1)]);

        let blocks = graph.repeat(&self.count, |graph, index| {
            let mut node = |operator: &str, inputs: &[&Value]| graph.node(operator, inputs, vec![]);
            let start = node("Mul", &[index, &self.size]);
            let end = node("Add", &[&start, &self.size]);
            let query = node("Slice", &[&queries, &start, &end, &one]);
            // The first key in the first query's window, and the one after the last key in the last query's window.
            let from = limits[0].as_ref().map(|before| {
                let from = node("Sub", &[&start, before]);
                node("Max", &[&from, &zero])
            });
            let to = limits[1].as_ref().map(|after| {
                let to = node("Add", &[&end, after]);
                node("Min", &[&to, &self.length])
            });
            let is_part = from.is_some() || to.is_some();
            let from = from.unwrap_or_else(|| zero.clone());
            let to = to.unwrap_or_else(|| self.length.clone());
            let mut part = |value: &Value, axis: &Value| match is_part {
                true => node("Slice", &[value, &from, &to, axis]),
                false => value.clone(),
            };
            let (keys, values, mask) = (part(&keys, &two), part(&values, &two), part(mask, &one));
            // Positive for tokens after the query.
            let distances = bias.as_ref().map(|_| {
                let own = node("Slice", &[&self.positions, &start, &end, &zero]);
                let own = node("Unsqueeze", &[&own, &one]);
                let others = node("Slice", &[&self.positions, &from, &to, &zero]);
                node("Sub", &[&others, &own])
            });
            let bias = bias
                .as_ref()
                .zip(distances)
                .map(|(bias, distances)| bias.of(graph, &distances));
            if attention.cap.is_some() || sinks.is_some() {
                return attend_in_steps(
                    graph,
                    attention,
                    [&query, &keys, &values, &mask],
                    [bias.as_ref(), sinks],
                );
            }
            let mut inputs = vec![query, keys, values, Value::none(), mask];
            inputs.extend(bias);
            let attributes = vec![
                integer("num_heads", attention.heads as i64),
                float("mask_filter_value", MASKED),
                float("scale", attention.scale),
            ];
            graph.microsoft(
                "MultiHeadAttention",
                &inputs.iter().collect::<Vec<_>>(),
                attributes,
            )
        });
        let flat = graph.integers(
            &format!("flat_blocks_{}", attention.heads * attention.width),
            &[0, -1, (attention.heads * attention.width) as i64],
        );
        let blocks = graph.node(
            "Transpose",
            &[&blocks],
            vec![integers("perm", &[1, 0, 2, 3])],
        );
        let tokens = graph.node("Reshape", &[&blocks, &flat], vec![]);
        graph.node("Slice", &[&tokens, &zero, &self.length, &one], vec![])
    }
}

/// How distances affect scores, as graph constants.
struct DistanceBias {
    /// The limits before and after a token.
    window: [Option<Value>; 2],
    /// ALiBi slopes, below 0.
    slopes: Option<Value>,
    out_of_reach: Value,
    /// Text and head axes.
    outer: Value,
}

impl DistanceBias {
    /// None if distances have no effect.
    fn new(graph: &mut GraphBuilder, attention: &Attention) -> Option<Self> {
        let AttentionWindow { before, after } = attention.window;
        let has_slopes = attention.distance == Distance::Alibi;
        if !has_slopes && before.is_none() && after.is_none() {
            return None;
        }
        let slopes = has_slopes.then(|| {
            let slopes: Vec<f32> = alibi_slopes(attention.heads)
                .iter()
                .map(|slope| -slope)
                .collect();
            graph.floats("alibi_slopes", &[1, attention.heads, 1, 1], &slopes)
        });
        let mut limit = |distance: Option<usize>| {
            distance
                .map(|distance| graph.floats(&format!("float_{distance}"), &[], &[distance as f32]))
        };
        let window = [limit(before), limit(after)];
        let out_of_reach = graph.floats("out_of_reach", &[], &[OUT_OF_REACH]);
        let outer = graph.integers("zero_one", &[0, 1]);
        Some(Self {
            window,
            slopes,
            out_of_reach,
            outer,
        })
    }

    /// Bias for keys at `distances` from queries.
    fn of(&self, graph: &mut GraphBuilder, distances: &Value) -> Value {
        let far = self.are_far(graph, distances);
        let mut node = |operator: &str, inputs: &[&Value]| graph.node(operator, inputs, vec![]);
        let slope = self.slopes.as_ref().map(|slopes| {
            let distances = node("Abs", &[distances]);
            let distances = node("Unsqueeze", &[&distances, &self.outer]);
            node("Mul", &[&distances, slopes])
        });
        let far = far.map(|far| {
            let far = graph.cast(&far, data_type::FLOAT);
            let far = graph.node("Mul", &[&far, &self.out_of_reach], vec![]);
            graph.node("Unsqueeze", &[&far, &self.outer], vec![])
        });
        match (far, slope) {
            (Some(far), Some(slope)) => graph.node("Add", &[&far, &slope], vec![]),
            (far, slope) => far.or(slope).unwrap_or_else(Value::none),
        }
    }

    /// Whether tokens at `distances` are outside the window; `None` if all are inside.
    fn are_far(&self, graph: &mut GraphBuilder, distances: &Value) -> Option<Value> {
        let mut node = |operator: &str, inputs: &[&Value]| graph.node(operator, inputs, vec![]);
        match &self.window {
            [None, None] => None,
            [Some(before), Some(after)] if before == after => {
                let distances = node("Abs", &[distances]);
                Some(node("Greater", &[&distances, before]))
            }
            [before, after] => {
                let after = after
                    .as_ref()
                    .map(|after| node("Greater", &[distances, after]));
                let before = before.as_ref().map(|before| {
                    let distances = node("Neg", &[distances]);
                    node("Greater", &[&distances, before])
                });
                match (before, after) {
                    (Some(before), Some(after)) => Some(node("Or", &[&before, &after])),
                    (before, after) => before.or(after),
                }
            }
        }
    }
}

/// Attention with limited scores or with sinks, which ONNX Runtime's operator does not have; keys and values are by head.
fn attend_in_steps(
    graph: &mut GraphBuilder,
    attention: &Attention,
    [queries, keys, values, mask]: [&Value; 4],
    [bias, sinks]: [Option<&Value>; 2],
) -> Value {
    let Attention {
        heads,
        width,
        scale,
        cap,
        ..
    } = *attention;
    let constants = [
        ("step_scale", scale / cap.unwrap_or(1.0)),
        ("one_float", 1.0),
        ("masked", MASKED),
    ];
    let [scale, one, masked] = constants.map(|(name, value)| graph.floats(name, &[], &[value]));
    let by_head = graph.integers("query_heads", &[0, 0, heads as i64, width as i64]);
    let flat = graph.integers("flat_heads", &[0, 0, (heads * width) as i64]);
    let axes = graph.integers("score_axes", &[1, 2]);
    let transposed = |graph: &mut GraphBuilder, value: &Value, order: &[i64]| {
        graph.node("Transpose", &[value], vec![integers("perm", order)])
    };
    let queries = graph.node("Reshape", &[queries, &by_head], vec![]);
    let queries = transposed(graph, &queries, &[0, 2, 1, 3]);
    let keys = transposed(graph, keys, &[0, 1, 3, 2]);
    let scores = graph.node("MatMul", &[&queries, &keys], vec![]);
    let mut scores = graph.node("Mul", &[&scores, &scale], vec![]);
    if let Some(cap) = cap {
        let cap = graph.floats("cap", &[], &[cap]);
        scores = graph.node("Tanh", &[&scores], vec![]);
        scores = graph.node("Mul", &[&scores, &cap], vec![]);
    }
    if let Some(bias) = bias {
        scores = graph.node("Add", &[&scores, bias], vec![]);
    }
    let mask = graph.cast(mask, data_type::FLOAT);
    let padding = graph.node("Sub", &[&one, &mask], vec![]);
    let padding = graph.node("Mul", &[&padding, &masked], vec![]);
    let padding = graph.node("Unsqueeze", &[&padding, &axes], vec![]);
    let mut scores = graph.node("Add", &[&scores, &padding], vec![]);
    let last = || vec![integer("axis", -1)];
    if let Some(sinks) = sinks {
        let by_head = graph.integers("by_head", &[1, heads as i64, 1, 1]);
        let sinks = graph.node("Reshape", &[sinks, &by_head], vec![]);
        // A column of zeros gives them the scores' other axes.
        let first = graph.integers("zero", &[0]);
        let first = graph.node("Gather", &[&scores, &first], last());
        let zeros = graph.node("Sub", &[&first, &first], vec![]);
        let sinks = graph.node("Add", &[&zeros, &sinks], vec![]);
        scores = graph.node("Concat", &[&scores, &sinks], last());
    }
    let mut weights = graph.node("Softmax", &[&scores], last());
    if sinks.is_some() {
        let [zero, end, axis] = [("zero", 0), ("before_last", -1), ("last_axis", -1)]
            .map(|(name, value)| graph.integers(name, &[value]));
        weights = graph.node("Slice", &[&weights, &zero, &end, &axis], vec![]);
    }
    let context = graph.node("MatMul", &[&weights, values], vec![]);
    let context = transposed(graph, &context, &[0, 2, 1, 3]);
    graph.node("Reshape", &[&context, &flat], vec![])
}

/// Position-dependent attention for texts with these ids; rotates queries and keys first.
pub fn attend_by_position(
    graph: &mut GraphBuilder,
    attention: &Attention,
    rotary: Option<&Rotary>,
    [queries, keys, values, mask, ids]: [&Value; 5],
    sinks: Option<&Value>,
) -> Value {
    let blocks = Blocks::new(graph, ids);
    let (mut queries, mut keys) = (queries.clone(), keys.clone());
    if let Some(rotary) = rotary {
        let rotation = Rotation::new(graph, rotary, [&blocks.length, &blocks.positions]);
        queries = rotation.apply_to_queries(graph, &queries, attention.heads);
        keys = rotation.apply(graph, &keys, attention.key_heads);
    }
    blocks.attend(graph, attention, [&queries, &keys, values], mask, sinks)
}

/// Keys or values by head, one for each query head.
fn by_head(graph: &mut GraphBuilder, attention: &Attention, tokens: &Value) -> Value {
    let Attention {
        heads,
        key_heads,
        width,
        ..
    } = *attention;
    let shape = graph.integers(
        &format!("heads_{key_heads}_{width}"),
        &[0, 0, key_heads as i64, width as i64],
    );
    let tokens = graph.node("Reshape", &[tokens, &shape], vec![]);
    let tokens = graph.node(
        "Transpose",
        &[&tokens],
        vec![integers("perm", &[0, 2, 1, 3])],
    );
    if heads == key_heads {
        return tokens;
    }
    let rows: Vec<i64> = (0..heads)
        .map(|head| (head * key_heads / heads) as i64)
        .collect();
    let rows = graph.integers(&format!("key_heads_{key_heads}"), &rows);
    graph.node("Gather", &[&tokens, &rows], vec![integer("axis", 1)])
}

/// ALiBi slopes: powers of 2 that end at 2^-8. If the head count is not a power of 2, the slopes for the next lower
/// power, then every second slope for the next higher.
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let powers = |count: usize| {
        let ratio = (-8.0 / count as f64).exp2();
        (1..=count).map(move |head| ratio.powi(head as i32) as f32)
    };
    let lower = if heads.is_power_of_two() {
        heads
    } else {
        heads.next_power_of_two() / 2
    };
    powers(lower)
        .chain(powers(2 * lower).step_by(2))
        .take(heads)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_alibi_are_those_of_its_authors() {
        assert_eq!(alibi_slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(
            alibi_slopes(6),
            [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]
        );
    }
}
