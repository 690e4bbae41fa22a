//! Attention within one text, one head at a time. The full score matrix is never in memory: queries are processed in
//! groups of eight, or of up to twelve in short texts.

use std::ops::Range;

use crate::{
    distances::{DistanceTerms, HeadVectors, QUERIES},
    kernel::{COLUMNS, Kernel, LANES, Lanes, MAX_ROWS, Rows, RowsMut},
    math::{activate, exp, largest, sum},
    numbers::Numbers,
    program::{Activation, Attention, AttentionWindow, DistanceBias},
};

/// One head of one text. Other heads reuse the buffers.
#[derive(Debug, Default)]
pub struct Head {
    /// Width of a query, key or value.
    pub size: usize,
    /// One query per row.
    pub queries: Numbers,
    /// One key per row.
    pub keys: Numbers,
    /// One value per row, [`Head::value_stride`] numbers each.
    pub values: Numbers,
    /// Transposed keys, in panels of 32 keys.
    panels: Numbers,
    scores: Numbers,
    terms: DistanceTerms,
}

/// A head's scale, limit, window and position bias.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    scale: f32,
    cap: Option<f32>,
    sink: Option<f32>,
    window: AttentionWindow,
    bias: Bias<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Bias<'a> {
    None,
    /// The distance times this is subtracted.
    Slope(f32),
    /// One value per distance, and the index for distance zero.
    Values(&'a [f32], usize),
    /// Products with vectors for the distance.
    Vectors(HeadVectors<'a>),
}

impl<'a> Scores<'a> {
    /// The settings for one head.
    pub fn new(attention: &'a Attention, head: usize) -> Self {
        let bias = match &attention.bias {
            DistanceBias::None => Bias::None,
            DistanceBias::Slopes(slopes) => Bias::Slope(slopes[head]),
            DistanceBias::Values { values, farthest } => {
                let count = 2 * farthest + 1;
                Bias::Values(&values[head * count..(head + 1) * count], *farthest)
            }
            DistanceBias::Vectors(vectors) => Bias::Vectors(HeadVectors::new(vectors, head)),
        };
        Self {
            scale: attention.scale,
            cap: attention.cap,
            sink: attention.sinks.as_ref().map(|sinks| sinks[head]),
            window: attention.window,
            bias,
        }
    }

    /// Applies position bias and window to a query's scores for the keys from `first_key` on.
    #[inline(always)]
    fn adjust(&self, query: usize, first_key: usize, scores: &mut [f32]) {
        match self.bias {
            // Vectors' terms are added before.
            Bias::None | Bias::Vectors(_) => {}
            Bias::Slope(slope) => {
                for (score, key) in scores.iter_mut().zip(first_key..) {
                    *score -= slope * key.abs_diff(query) as f32;
                }
            }
            Bias::Values(values, center) => {
                for (score, value) in scores.iter_mut().zip(&values[center + first_key - query..]) {
                    *score += value;
                }
            }
        }
        let count = scores.len();
        let least = query
            .saturating_sub(self.window.before)
            .saturating_sub(first_key)
            .min(count);
        scores[..least].fill(f32::MIN);
        let end = query
            .saturating_add(self.window.after)
            .saturating_add(1)
            .saturating_sub(first_key)
            .min(count);
        scores[end..].fill(f32::MIN);
    }

    /// Queries per group. A short text's are one group, unless it would compute more than it needs or the terms of vectors
    /// depend on the size.
    fn group(&self, queries: usize) -> usize {
        let is_free = self.window == AttentionWindow::ALL && !matches!(self.bias, Bias::Vectors(_));
        if is_free && queries <= MAX_ROWS {
            MAX_ROWS
        } else {
            QUERIES
        }
    }

    fn depends_on_positions(&self) -> bool {
        self.window != AttentionWindow::ALL
            || matches!(self.bias, Bias::Slope(_) | Bias::Values(..))
    }
}

impl Head {
    /// Length of a value row: the head size, padded to whole product columns.
    pub fn value_stride(size: usize) -> usize {
        size.next_multiple_of(COLUMNS)
    }

    /// Buffer size for a text with `tokens` tokens, as a count of numbers.
    pub fn numbers(size: usize, tokens: usize, bias: &DistanceBias) -> usize {
        let padded = tokens.next_multiple_of(COLUMNS);
        let rows = if tokens <= MAX_ROWS {
            MAX_ROWS
        } else {
            QUERIES
        };
        let terms = match bias {
            DistanceBias::Vectors(_) => DistanceTerms::numbers(tokens),
            DistanceBias::None | DistanceBias::Slopes(_) | DistanceBias::Values { .. } => 0,
        };
        tokens * (2 * size + Self::value_stride(size)) + padded * (size + rows) + terms
    }

    /// Writes each query's context, `size` numbers long, to `out`: values, weighted by softmax(scale × query · key),
    /// with a position bias if the model has one. Query positions start at 0. Contexts without keys are zeros.
    #[inline(always)]
    pub fn attend<K: Kernel>(&mut self, kernel: K, settings: &Scores<'_>, out: &mut [f32]) {
        if self.keys.is_empty() {
            return out.fill(0.0);
        }
        let size = self.size;
        let (keys, stride) = (self.keys.len() / size, Self::value_stride(size));
        let rows = std::mem::take(&mut self.keys);
        self.transpose_keys(kernel, Rows::new(&rows, size), keys, settings.scale);
        self.keys = rows;
        let group = settings.group(self.queries.len() / size);
        let groups = self
            .queries
            .chunks(group * size)
            .zip(out.chunks_mut(group * size));
        for ((queries, out), first_query) in groups.zip((0_usize..).step_by(group)) {
            let rows = queries.len() / size;
            // Key panels inside the window of any query in the group.
            let from = first_query.saturating_sub(settings.window.before) / COLUMNS * COLUMNS;
            let to = (first_query + rows)
                .saturating_add(settings.window.after)
                .min(keys);
            let padded = (to - from).next_multiple_of(COLUMNS);
            self.scores
                .resize(self.scores.len().max(rows * padded), 0.0);
            let scores = &mut self.scores[..rows * padded];
            score(
                kernel,
                settings,
                Rows::new(queries, size),
                first_query,
                from..to,
                &self.panels,
                scores,
            );
            if let Bias::Vectors(vectors) = settings.bias {
                // Such models have no windows: a group has a score for each key.
                self.terms.add(
                    kernel,
                    vectors,
                    Rows::new(&self.queries, size),
                    first_query..first_query + rows,
                    Rows::new(&self.keys, size),
                    RowsMut::new(scores, padded),
                );
            }
            let mut inverse = [0.0; MAX_ROWS];
            // Whole lanes beyond the last key would add nothing.
            let used = (to - from).div_ceil(LANES);
            softmax(
                kernel,
                RowsMut::new(scores, padded),
                used,
                settings.sink,
                &mut inverse[..rows],
            );
            let mut sums: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
            for first in (0..size).step_by(COLUMNS) {
                let values = Rows::new(&self.values[from * stride + first..], stride);
                kernel.product(
                    to - from,
                    Rows::new(scores, padded),
                    values,
                    &mut sums[..rows],
                );
                for ((sums, inverse), out) in
                    sums.iter().zip(&inverse).zip(out.chunks_exact_mut(size))
                {
                    let out = &mut out[first..];
                    let factor = kernel.splat(*inverse);
                    let (whole, rest) = out.as_chunks_mut();
                    for (out, sums) in whole.iter_mut().zip(sums) {
                        kernel.store(kernel.mul(kernel.load(sums), factor), out);
                    }
                    if whole.len() < sums.len() {
                        for (out, sum) in rest.iter_mut().zip(sums[whole.len()]) {
                            *out = sum * *inverse;
                        }
                    }
                }
            }
        }
    }

    /// Scales keys and transposes them in groups of 32.
    #[inline(always)]
    fn transpose_keys<K: Kernel>(&mut self, kernel: K, keys: Rows<'_>, count: usize, scale: f32) {
        let (size, scales) = (self.size, kernel.splat(scale));
        let whole = size - size % LANES;
        self.panels
            .resize(count.next_multiple_of(COLUMNS) * size, 0.0);
        for first in (0..count).step_by(LANES) {
            let rows = &keys.values[first * keys.stride..];
            let row_count = (count - first).min(LANES);
            let panel = &mut self.panels[first / COLUMNS * COLUMNS * size..][..COLUMNS * size];
            let column = first % COLUMNS;
            for start in (0..whole).step_by(LANES) {
                let mut square = [kernel.splat(0.0); LANES];
                for (row, lanes) in square[..row_count].iter_mut().enumerate() {
                    let Some(values) = rows[row * keys.stride + start..].first_chunk() else {
                        continue;
                    };
                    *lanes = kernel.mul(kernel.load(values), scales);
                }
                for (lanes, row) in kernel.transpose(square).iter().zip(start..) {
                    let Some(out) = panel[row * COLUMNS + column..].first_chunk_mut() else {
                        continue;
                    };
                    kernel.store(*lanes, out);
                }
            }
            for row in 0..row_count {
                for (at, value) in rows[row * keys.stride..][..size]
                    .iter()
                    .enumerate()
                    .skip(whole)
                {
                    panel[at * COLUMNS + column + row] = value * scale;
                }
            }
        }
    }
}

/// Query-key products for a key range that begins with a panel; the first query is at position `first_query`. Scores
/// beyond the last key are `f32::MIN`.
#[inline(always)]
fn score<K: Kernel>(
    kernel: K,
    settings: &Scores<'_>,
    queries: Rows<'_>,
    first_query: usize,
    keys: Range<usize>,
    panels: &[f32],
    scores: &mut [f32],
) {
    let size = queries.stride;
    let rows = queries.values.len() / size;
    let padded = keys.len().next_multiple_of(COLUMNS);
    let depends_on_positions = settings.depends_on_positions();
    let mut joined: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
    let panels = panels[keys.start * size..].chunks_exact(COLUMNS * size);
    for (panel, first) in panels.zip((0..padded).step_by(COLUMNS)) {
        let columns = Rows::new(panel, COLUMNS);
        let is_alone = padded == COLUMNS;
        let sums = if is_alone {
            scores.as_chunks_mut().0.as_chunks_mut().0
        } else {
            &mut joined[..rows]
        };
        kernel.product(size, queries, columns, sums);
        for (sums, query) in sums.iter_mut().zip(first_query..) {
            if let Some(cap) = settings.cap {
                sums.iter_mut().for_each(|lanes| limit(kernel, cap, lanes));
            }
            let sums = sums.as_flattened_mut();
            let count = keys.len() - first;
            if depends_on_positions {
                settings.adjust(query, keys.start + first, &mut sums[..count.min(COLUMNS)]);
            }
            if count < COLUMNS {
                for (column, score) in sums.iter_mut().enumerate() {
                    *score = if column < count { *score } else { f32::MIN };
                }
            }
        }
        if !is_alone {
            let sums = &joined[..rows];
            for (sums, scores) in sums.iter().zip(scores.chunks_exact_mut(padded)) {
                scores[first..first + COLUMNS].copy_from_slice(sums.as_flattened());
            }
        }
    }
}

/// Replaces scores by `cap × tanh(score / cap)`.
#[inline(always)]
fn limit<K: Kernel>(kernel: K, cap: f32, scores: &mut Lanes) {
    let shares = kernel.mul(kernel.load(scores), kernel.splat(1.0 / cap));
    let limited = kernel.mul(
        activate(kernel, Activation::Tanh, shares),
        kernel.splat(cap),
    );
    kernel.store(limited, scores);
}

/// Replaces the first `used` lanes of each row's scores by `exp(score - largest)`, and writes the sums' reciprocals. A sink
/// is one more score in the sums.
///
/// Rows pass each step together: steps of one row wait for each other.
#[inline(always)]
fn softmax<K: Kernel>(
    kernel: K,
    scores: RowsMut<'_>,
    used: usize,
    sink: Option<f32>,
    inverse: &mut [f32],
) {
    let RowsMut {
        values: scores,
        stride,
    } = scores;
    let (mut maxima, mut totals) = ([0.0; MAX_ROWS], [kernel.splat(0.0); MAX_ROWS]);
    for (maximum, scores) in maxima.iter_mut().zip(scores.chunks_exact(stride)) {
        let mut most = kernel.splat(f32::MIN);
        for lanes in &scores.as_chunks().0[..used] {
            most = kernel.max(kernel.load(lanes), most);
        }
        let most = largest(kernel, most);
        *maximum = sink.map_or(most, |sink| most.max(sink));
    }
    for ((total, maximum), scores) in totals
        .iter_mut()
        .zip(&maxima)
        .zip(scores.chunks_exact_mut(stride))
    {
        let most = kernel.splat(*maximum);
        if let Some(sink) = sink {
            let mut lanes = [0.0; LANES];
            kernel.store(exp(kernel, kernel.splat(sink - *maximum)), &mut lanes);
            lanes[1..].fill(0.0);
            *total = kernel.load(&lanes);
        }
        for lanes in &mut scores.as_chunks_mut().0[..used] {
            let power = exp(kernel, kernel.sub(kernel.load(lanes), most));
            *total = kernel.add(*total, power);
            kernel.store(power, lanes);
        }
    }
    for (inverse, total) in inverse.iter_mut().zip(&totals) {
        *inverse = 1.0 / sum(kernel, *total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{InstructionSet, KernelFn};

    struct Call<'a>(&'a mut Head, Scores<'a>, usize);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let mut out = vec![0.0; self.2];
            self.0.attend(kernel, &self.1, &mut out);
            out
        }
    }

    /// Lengths and sizes around panel and query-group boundaries; head buffers are reused.
    #[test]
    fn contexts_are_those_of_the_definition() {
        let values: Vec<f32> = (0..199).map(|at| (at as f32 * 0.7).sin()).collect();
        let windows = [
            AttentionWindow::ALL,
            AttentionWindow {
                before: 3,
                after: 3,
            },
            AttentionWindow {
                before: usize::MAX,
                after: 0,
            },
            AttentionWindow {
                before: 40,
                after: 5,
            },
        ];
        let mut head = Head::default();
        for (size, length) in [
            (32, 70),
            (8, 33),
            (64, 32),
            (8, 1),
            (40, 9),
            (16, 0),
            (32, 12),
            (24, 17),
            (32, 13),
        ] {
            fill(&mut head, size, length);
            let scale = 1.0 / (size as f32).sqrt();
            for window in windows {
                let cases = [
                    (Bias::None, None, None),
                    (Bias::Slope(0.25), None, None),
                    (Bias::Values(&values, 99), None, None),
                    (Bias::None, Some(3.0), None),
                    (Bias::None, None, Some(0.5)),
                    (Bias::None, None, Some(60.0)),
                ];
                for (bias, cap, sink) in cases {
                    let settings = Scores {
                        scale,
                        cap,
                        sink,
                        window,
                        bias,
                    };
                    let expected = definition(&head, &settings);
                    for instructions in InstructionSet::available() {
                        let out = instructions.call(Call(&mut head, settings, length * size));
                        for (found, expected) in out.iter().zip(&expected) {
                            assert!(
                                (f64::from(*found) - expected).abs() < 1e-5,
                                "{instructions}, {size}, {length}, {settings:?}: {found}, {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    fn fill(head: &mut Head, size: usize, length: usize) {
        let number =
            |seed: usize, at: usize| ((at * 7919 + seed * 104_729) % 1000) as f32 / 250.0 - 2.0;
        head.size = size;
        head.queries = (0..length * size).map(|at| number(1, at)).collect();
        head.keys = (0..length * size).map(|at| number(2, at)).collect();
        head.values = (0..length * Head::value_stride(size))
            .map(|at| number(3, at))
            .collect();
    }

    /// Attention in `f64`.
    fn definition(head: &Head, settings: &Scores<'_>) -> Vec<f64> {
        let size = head.size;
        let mut out = Vec::new();
        for (query, vector) in head.queries.chunks_exact(size).enumerate() {
            let weight = |(key, other): (usize, &[f32])| {
                let AttentionWindow { before, after } = settings.window;
                if query.saturating_sub(key) > before || key.saturating_sub(query) > after {
                    return 0.0;
                }
                let product: f64 = vector
                    .iter()
                    .zip(other)
                    .map(|(a, b)| f64::from(a * b))
                    .sum();
                let bias = match settings.bias {
                    Bias::None => 0.0,
                    Bias::Slope(slope) => -slope * key.abs_diff(query) as f32,
                    Bias::Values(values, center) => values[center + key - query],
                    Bias::Vectors(_) => unreachable!("its terms have a test of their own"),
                };
                let score = product * f64::from(settings.scale);
                let score = settings.cap.map_or(score, |cap| {
                    let cap = f64::from(cap);
                    cap * (score / cap).tanh()
                });
                (score + f64::from(bias)).exp()
            };
            let weights: Vec<f64> = head
                .keys
                .chunks_exact(size)
                .enumerate()
                .map(weight)
                .collect();
            let sink = settings.sink.map(|sink| f64::from(sink).exp());
            let total = weights.iter().sum::<f64>() + sink.unwrap_or(0.0);
            let values: Vec<&[f32]> = head.values.chunks_exact(Head::value_stride(size)).collect();
            out.extend((0..size).map(|column| {
                let parts = values
                    .iter()
                    .zip(&weights)
                    .map(|(row, weight)| f64::from(row[column]) * weight);
                parts.sum::<f64>() / total
            }));
        }
        out
    }
}
