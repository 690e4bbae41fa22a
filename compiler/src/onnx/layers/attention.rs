//! Attention that depends on positions, with the operators of ONNX Runtime; the native engine has its own.

use super::{MASKED, Rotary, Rotation};
use crate::onnx::{GraphBuilder, Value, float, functions};

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

/// Position-dependent attention for texts with these ids; rotates queries and keys first. `mask` is 1 for tokens and 0
/// for padding, and `sinks` has a logit per head that takes part in the softmax.
pub fn attend_by_position(
    graph: &mut GraphBuilder,
    attention: &Attention,
    rotary: Option<&Rotary>,
    [queries, keys, values, mask, ids]: [&Value; 5],
    sinks: Option<&Value>,
) -> Value {
    let length = functions::length(graph, ids);
    let (zero, first, step) = (
        graph.zero(),
        graph.scalar("zero_float", 0.0),
        graph.scalar("one_float", 1.0),
    );
    let count = graph.squeeze(&length, &zero);
    let count = graph.float(&count);
    let positions = graph.node("Range", &[&first, &count, &step], vec![]);
    let (mut queries, mut keys) = (queries.clone(), keys.clone());
    if let Some(rotary) = rotary {
        let rotation = Rotation::new(graph, rotary, [&length, &positions]);
        queries = rotation.apply_to_queries(graph, &queries, attention.heads);
        keys = rotation.apply(graph, &keys, attention.key_heads);
    }
    let [keys, values] = [&keys, values].map(|value| for_each_head(graph, attention, value));
    let bias = distance_bias(graph, attention, &positions);
    if attention.cap.is_some() || sinks.is_some() {
        let parts = [&queries, &keys, &values, mask];
        return attend_in_steps(graph, attention, parts, [bias.as_ref(), sinks]);
    }
    let none = Value::none();
    let mut inputs = vec![&queries, &keys, &values, &none, mask];
    inputs.extend(&bias);
    let mut attributes = super::attention(attention.heads);
    attributes.push(float("scale", attention.scale));
    graph.microsoft("MultiHeadAttention", &inputs, attributes)
}

/// What distances add to scores: a row per query and a column per key. `None` if they have no effect.
fn distance_bias(
    graph: &mut GraphBuilder,
    attention: &Attention,
    positions: &Value,
) -> Option<Value> {
    let AttentionWindow { before, after } = attention.window;
    let has_slopes = attention.distance == Distance::Alibi;
    if !has_slopes && before.is_none() && after.is_none() {
        return None;
    }
    let (one, outer) = (graph.one(), graph.integers("zero_one", &[0, 1]));
    let own = graph.unsqueeze(positions, &one);
    // Positive for tokens after the query.
    let distances = graph.sub(positions, &own);
    let distances = graph.unsqueeze(&distances, &outer);
    let opposite = graph.node("Neg", &[&distances], vec![]);
    let mut terms = Vec::new();
    for (limit, distances) in [(before, &opposite), (after, &distances)] {
        let Some(limit) = limit else { continue };
        let limit = graph.scalar(&format!("float_{limit}"), limit as f32);
        let out_of_reach = graph.scalar("out_of_reach", OUT_OF_REACH);
        let is_far = graph.greater(distances, &limit);
        let is_far = graph.float(&is_far);
        terms.push(graph.mul(&is_far, &out_of_reach));
    }
    if has_slopes {
        let slopes: Vec<f32> = alibi_slopes(attention.heads)
            .iter()
            .map(|slope| -slope)
            .collect();
        let slopes = graph.floats("alibi_slopes", &[1, attention.heads, 1, 1], &slopes);
        let steps = graph.abs(&distances);
        terms.push(graph.mul(&steps, &slopes));
    }
    let add = |left: Value, right: Value| graph.add(&left, &right);
    terms.into_iter().reduce(add)
}

/// Attention with limited scores or with sinks, which ONNX Runtime's operator does not have.
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
    let scale = scale / cap.unwrap_or(1.0);
    let scale = graph.scalar(&format!("scale_{scale}"), scale);
    let [one, masked] =
        [("one_float", 1.0), ("masked", MASKED)].map(|(name, value)| graph.scalar(name, value));
    let by_head = by_head(graph, heads, width);
    let flat = flat(graph, heads * width);
    let axes = graph.integers("score_axes", &[1, 2]);
    let [queries, keys, values] = [
        (queries, [0, 2, 1, 3]),
        (keys, [0, 2, 3, 1]),
        (values, [0, 2, 1, 3]),
    ]
    .map(|(value, order)| {
        let value = graph.reshape(value, &by_head);
        graph.transpose(&value, &order)
    });
    let scores = graph.matmul(&queries, &keys);
    let mut scores = graph.mul(&scores, &scale);
    if let Some(cap) = cap {
        let cap = graph.scalar("cap", cap);
        scores = graph.tanh(&scores);
        scores = graph.mul(&scores, &cap);
    }
    if let Some(bias) = bias {
        scores = graph.add(&scores, bias);
    }
    let mask = graph.float(mask);
    let padding = graph.sub(&one, &mask);
    let padding = graph.mul(&padding, &masked);
    let padding = graph.unsqueeze(&padding, &axes);
    let mut scores = graph.add(&scores, &padding);
    if let Some(sinks) = sinks {
        let by_head = graph.integers(&format!("sinks_{heads}"), &[1, heads as i64, 1, 1]);
        let sinks = graph.reshape(sinks, &by_head);
        // A column of zeros gives them the scores' other axes.
        let first = graph.zero();
        let first = graph.gather_along(&scores, &first, -1);
        let zeros = graph.sub(&first, &first);
        let sinks = graph.add(&zeros, &sinks);
        scores = graph.concat(&[&scores, &sinks], -1);
    }
    let mut weights = graph.softmax(&scores);
    if sinks.is_some() {
        let [zero, end, axis] = [("zero", 0), ("before_last", -1), ("last_axis", -1)]
            .map(|(name, value)| graph.integers(name, &[value]));
        weights = graph.slice(&weights, &zero, &end, &axis);
    }
    let context = graph.matmul(&weights, &values);
    let context = graph.transpose(&context, &[0, 2, 1, 3]);
    graph.reshape(&context, &flat)
}

/// Keys or values with a part for each query head.
fn for_each_head(graph: &mut GraphBuilder, attention: &Attention, tokens: &Value) -> Value {
    let Attention {
        heads,
        key_heads,
        width,
        ..
    } = *attention;
    if heads == key_heads {
        return tokens.clone();
    }
    let by_head = by_head(graph, key_heads, width);
    let flat = flat(graph, heads * width);
    let rows: Vec<i64> = (0..heads)
        .map(|head| (head * key_heads / heads) as i64)
        .collect();
    let rows = graph.integers(&format!("key_heads_{heads}_{key_heads}"), &rows);
    let tokens = graph.reshape(tokens, &by_head);
    let tokens = graph.gather_along(&tokens, &rows, 2);
    graph.reshape(&tokens, &flat)
}

/// The shape of token vectors in parts per head.
pub fn by_head(graph: &mut GraphBuilder, heads: usize, width: usize) -> Value {
    let shape = [0, 0, heads as i64, width as i64];
    graph.integers(&format!("heads_{heads}_{width}"), &shape)
}

/// The shape of token vectors.
pub fn flat(graph: &mut GraphBuilder, width: usize) -> Value {
    graph.integers(&format!("flat_{width}"), &[0, 0, width as i64])
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
