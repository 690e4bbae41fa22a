//! GLiNER2's layers on label vectors.
//!
//! The token in front of a schema's name tells how many instances the text has. A recurrent layer has a step per instance,
//! whose state is the label's vector at first; entities are the first instance. Its state passes further layers, in which
//! a schema's labels may attend to each other.

use std::ops::Range;

use super::spans::{LabelKind, Spans, apply, positive, tanh, two_layers, two_layers_with_gelu};
use crate::{
    kernel::{Kernel, LANES},
    math::{exp, normalize, sigmoid},
    program::{CountedLabels, Experts, LabelTransformer, LabelTransformerLayer, Mixing, Norm},
};

impl CountedLabels {
    /// Writes a row per label for each instance into `outputs`, and zeros for instances that a label does not have. Returns
    /// the maximum number of instances.
    #[inline(always)]
    pub fn write<K: Kernel>(&self, kernel: K, width: usize, buffers: &mut Spans) -> usize {
        let Spans {
            labels,
            schemas,
            kinds,
            instances,
            classes,
            hidden,
            outputs,
            starts,
            ends,
            ..
        } = buffers;
        two_layers(kernel, &self.classes, labels, hidden, outputs);
        let scores = outputs.chunks_exact(self.classes[1].outputs);
        classes.clear();
        classes.extend(scores.map(|scores| scores[0]));
        two_layers(kernel, &self.counts, schemas, hidden, outputs);
        let counts: Vec<usize> = outputs
            .chunks_exact(self.counts[1].outputs)
            .map(likeliest)
            .collect();
        instances.clear();
        instances.extend(kinds.iter().map(|(kind, schema)| {
            let count = counts
                .get(*schema)
                .copied()
                .unwrap_or(0)
                .min(self.steps.len() / (3 * width));
            match kind {
                LabelKind::Entity => count.min(1),
                LabelKind::Field => count,
                LabelKind::Class => 0,
            }
        }));
        let most = instances.iter().copied().max().unwrap_or(0);
        outputs.clear();
        outputs.resize(most * labels.len(), 0.0);
        for places in schema_ranges(kinds) {
            let rows = &labels[places.start * width..places.end * width];
            let count = instances[places.start];
            ends.clear();
            ends.extend_from_slice(rows);
            for (instance, input) in self.steps.chunks_exact(3 * width).take(count).enumerate() {
                apply(kernel, &self.gates, ends, hidden);
                starts.clear();
                for (gates, state) in hidden
                    .chunks_exact_mut(3 * width)
                    .zip(ends.chunks_exact(width))
                {
                    step(kernel, input, gates, state, starts);
                }
                std::mem::swap(starts, ends);
                let mut mixed = Vec::new();
                self.mix(kernel, width, ends, rows, hidden, &mut mixed);
                outputs[instance * labels.len() + places.start * width..][..mixed.len()]
                    .copy_from_slice(&mixed);
            }
        }
        most
    }

    /// Writes a row per state and label.
    #[inline(always)]
    fn mix<K: Kernel>(
        &self,
        kernel: K,
        width: usize,
        states: &[f32],
        labels: &[f32],
        hidden: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        match &self.mixing {
            Mixing::Joined(layers) => {
                let rows = joined(states, labels, [width, width]);
                two_layers(kernel, layers, &rows, hidden, out);
            }
            Mixing::Attention(transformer) => {
                let sums: Vec<f32> = states
                    .iter()
                    .zip(labels)
                    .map(|(state, label)| state + label)
                    .collect();
                transformer.write(kernel, width, &sums, hidden, out);
            }
            Mixing::Experts(experts) => experts.write(kernel, width, states, hidden, out),
        }
    }
}

/// Index of the largest logit, the first one if several are equal.
fn likeliest(logits: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, larger)
}

/// The labels of each schema, which follow each other.
fn schema_ranges(kinds: &[(LabelKind, usize)]) -> Vec<Range<usize>> {
    let mut start = 0;
    let ranges = kinds
        .chunk_by(|left, right| left.1 == right.1)
        .map(|labels| {
            let range = start..start + labels.len();
            start = range.end;
            range
        });
    ranges.collect()
}

/// Appends the state after a step. `gates` are the state's contributions to reset, update and new state.
#[inline(always)]
fn step<K: Kernel>(kernel: K, input: &[f32], gates: &mut [f32], state: &[f32], out: &mut Vec<f32>) {
    let width = state.len();
    let (sigmoids, new) = gates.split_at_mut(2 * width);
    let (of_sigmoids, of_new) = input.split_at(2 * width);
    sigmoids
        .iter_mut()
        .zip(of_sigmoids)
        .for_each(|(gate, input)| *gate += input);
    for lanes in sigmoids.as_chunks_mut::<LANES>().0 {
        kernel.store(sigmoid(kernel, kernel.load(lanes)), lanes);
    }
    let (reset, update) = sigmoids.split_at(width);
    for ((new, reset), input) in new.iter_mut().zip(reset).zip(of_new) {
        *new = *new * reset + input;
    }
    tanh(kernel, new);
    let kept = update.iter().zip(state).zip(new.iter());
    out.extend(kept.map(|((update, state), new)| (1.0 - update) * new + update * state));
}

impl LabelTransformer {
    /// Writes a row per row.
    #[inline(always)]
    fn write<K: Kernel>(
        &self,
        kernel: K,
        width: usize,
        rows: &[f32],
        hidden: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let inner = self.input.outputs;
        let mut values = Vec::new();
        apply(kernel, &self.input, rows, &mut values);
        for layer in &self.layers {
            layer.apply(kernel, self.heads, &mut values, hidden, out);
        }
        let rows = joined(&values, rows, [inner, width]);
        let [layers @ .., last] = &self.output;
        two_layers(kernel, layers, &rows, hidden, &mut values);
        values.iter_mut().for_each(positive);
        apply(kernel, last, &values, out);
    }
}

impl LabelTransformerLayer {
    /// Replaces rows.
    #[inline(always)]
    fn apply<K: Kernel>(
        &self,
        kernel: K,
        heads: usize,
        rows: &mut [f32],
        hidden: &mut Vec<f32>,
        outputs: &mut Vec<f32>,
    ) {
        apply(kernel, &self.projection, rows, hidden);
        let attended = attend(kernel, heads, self.projection.inputs(), hidden);
        apply(kernel, &self.output, &attended, outputs);
        add_and_normalize(kernel, rows, outputs, &self.norms[0]);
        two_layers(kernel, &self.feed_forward, rows, hidden, outputs);
        add_and_normalize(kernel, rows, outputs, &self.norms[1]);
    }
}

/// Attention of each row to all rows, which have queries, keys and values, one after the other.
#[inline(always)]
fn attend<K: Kernel>(kernel: K, heads: usize, width: usize, rows: &[f32]) -> Vec<f32> {
    let (count, size) = (rows.len() / (3 * width), width / heads);
    let scale = 1.0 / (size as f32).sqrt();
    let mut attended = vec![0.0; count * width];
    let mut scores = vec![0.0; count.next_multiple_of(LANES)];
    for (row, out) in rows
        .chunks_exact(3 * width)
        .zip(attended.chunks_exact_mut(width))
    {
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            let query = &row[head * size..][..size];
            for (score, row) in scores.iter_mut().zip(rows.chunks_exact(3 * width)) {
                let key = &row[width + head * size..][..size];
                let products = query.iter().zip(key);
                *score =
                    scale * products.fold(0.0_f32, |sum, (query, key)| query.mul_add(*key, sum));
            }
            softmax(kernel, &mut scores, count);
            for (score, row) in scores.iter().zip(rows.chunks_exact(3 * width)) {
                let values = &row[2 * width + head * size..][..size];
                out.iter_mut()
                    .zip(values)
                    .for_each(|(out, value)| *out = score.mul_add(*value, *out));
            }
        }
    }
    attended
}

/// Replaces the first `count` values, whose number is a multiple of [`LANES`].
#[inline(always)]
fn softmax<K: Kernel>(kernel: K, values: &mut [f32], count: usize) {
    let largest = values[..count].iter().copied().fold(f32::MIN, f32::max);
    values.iter_mut().for_each(|value| *value -= largest);
    for lanes in values.as_chunks_mut::<LANES>().0 {
        kernel.store(exp(kernel, kernel.load(lanes)), lanes);
    }
    let total: f32 = values[..count].iter().sum();
    values[..count].iter_mut().for_each(|value| *value /= total);
}

#[inline(always)]
fn add_and_normalize<K: Kernel>(kernel: K, rows: &mut [f32], added: &[f32], norm: &Norm) {
    rows.iter_mut()
        .zip(added)
        .for_each(|(sum, added)| *sum += added);
    for row in rows.chunks_exact_mut(norm.gain.len() * LANES) {
        normalize(kernel, row.as_chunks_mut::<LANES>().0, norm);
    }
}

impl Experts {
    /// Writes a row per row.
    #[inline(always)]
    fn write<K: Kernel>(
        &self,
        kernel: K,
        width: usize,
        rows: &[f32],
        hidden: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let (mut logits, mut weights) = (
            Vec::new(),
            vec![0.0; self.experts.len().next_multiple_of(LANES)],
        );
        two_layers_with_gelu(kernel, &self.router, rows, hidden, &mut logits);
        out.clear();
        out.resize(rows.len(), 0.0);
        let mut results = Vec::new();
        let by_expert: Vec<Vec<f32>> = self
            .experts
            .iter()
            .map(|layers| {
                two_layers_with_gelu(kernel, layers, rows, hidden, &mut results);
                std::mem::take(&mut results)
            })
            .collect();
        let logits = logits.chunks_exact(self.router[1].outputs);
        for ((row, logits), out) in logits.enumerate().zip(out.chunks_exact_mut(width)) {
            let count = self.experts.len();
            weights[..count].copy_from_slice(&logits[..count]);
            softmax(kernel, &mut weights, count);
            for (weight, rows) in weights.iter().zip(&by_expert) {
                let values = &rows[row * width..][..width];
                out.iter_mut()
                    .zip(values)
                    .for_each(|(out, value)| *out = weight.mul_add(*value, *out));
            }
        }
    }
}

/// Each row of `left` with the same row of `right` behind it.
fn joined(left: &[f32], right: &[f32], [left_width, right_width]: [usize; 2]) -> Vec<f32> {
    let rows = left
        .chunks_exact(left_width)
        .zip(right.chunks_exact(right_width));
    rows.flat_map(|(left, right)| left.iter().chain(right).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        heads::plain::{applied, assert_close, dot, exact, layer, numbers, positives, sum},
        kernel::{COLUMNS, InstructionSet, KernelFn},
        program::Dense,
    };

    const WIDTH: usize = 32;
    const INNER: usize = 64;
    const HEADS: usize = 4;

    struct Call<'a>(&'a CountedLabels, &'a [f32], (&'a [f32], LabelKind));

    impl KernelFn for Call<'_> {
        type Output = (usize, Spans);

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> (usize, Spans) {
            let (schemas, (labels, kind)) = (self.1.to_vec(), self.2);
            // The last label has a schema of its own.
            let count = labels.len() / WIDTH;
            let kinds = (0..count)
                .map(|label| (kind, usize::from(label > 0 && label + 1 == count)))
                .collect();
            let mut buffers = Spans {
                schemas,
                labels: labels.to_vec(),
                kinds,
                ..Spans::default()
            };
            (self.0.write(kernel, WIDTH, &mut buffers), buffers)
        }
    }

    fn norm(seed: usize) -> Norm {
        let lanes = |seed| numbers(INNER, seed).as_chunks::<LANES>().0.to_vec().into();
        Norm {
            centers: true,
            scales: true,
            gain: lanes(seed),
            bias: lanes(seed + 1),
            epsilon: 1e-5,
        }
    }

    fn transformer() -> Mixing {
        let layers = (0..2).map(|place| LabelTransformerLayer {
            projection: layer(INNER, 3 * INNER, 10 + place),
            output: layer(INNER, INNER, 20 + place),
            norms: [norm(30 + place), norm(40 + place)],
            feed_forward: [
                layer(INNER, 2 * INNER, 50 + place),
                layer(2 * INNER, INNER, 60 + place),
            ],
        });
        Mixing::Attention(Box::new(LabelTransformer {
            heads: HEADS,
            input: layer(WIDTH, INNER, 70),
            layers: layers.collect(),
            output: [
                layer(INNER + WIDTH, WIDTH, 71),
                layer(WIDTH, WIDTH, 72),
                layer(WIDTH, WIDTH, 73),
            ],
        }))
    }

    fn labels(mixing: Mixing) -> CountedLabels {
        CountedLabels {
            counts: [layer(WIDTH, 2 * WIDTH, 1), layer(2 * WIDTH, 20, 2)],
            steps: numbers(20 * 3 * WIDTH, 3).into(),
            gates: layer(WIDTH, 3 * WIDTH, 4),
            mixing,
            classes: [layer(WIDTH, 2 * WIDTH, 5), layer(2 * WIDTH, COLUMNS, 6)],
        }
    }

    type Rows = Vec<Vec<f64>>;

    fn normalized(norm: &Norm, row: &[f64]) -> Vec<f64> {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let parts = norm
            .gain
            .as_flattened()
            .iter()
            .zip(norm.bias.as_flattened());
        let scaled = row
            .iter()
            .map(|value| (value - mean) / (variance + f64::from(norm.epsilon)).sqrt());
        scaled
            .zip(parts)
            .map(|(value, (gain, bias))| value * f64::from(*gain) + f64::from(*bias))
            .collect()
    }

    fn weights(scores: &[f64]) -> Vec<f64> {
        let powers: Vec<f64> = scores.iter().map(|score| score.exp()).collect();
        powers
            .iter()
            .map(|power| power / powers.iter().sum::<f64>())
            .collect()
    }

    fn attended(layer: &LabelTransformerLayer, rows: &Rows) -> Rows {
        let all: Rows = rows
            .iter()
            .map(|row| applied(&layer.projection, row))
            .collect();
        let size = INNER / HEADS;
        let part = |row: &[f64], kind: usize, head: usize| {
            row[kind * INNER + head * size..][..size].to_vec()
        };
        let attend = |row: &Vec<f64>| -> Vec<f64> {
            let heads = (0..HEADS).flat_map(|head| {
                let query = part(row, 0, head);
                let scores: Vec<f64> = all
                    .iter()
                    .map(|row| dot(&query, part(row, 1, head)) / (size as f64).sqrt())
                    .collect();
                let values = all.iter().zip(weights(&scores));
                values.fold(vec![0.0; size], |total, (row, weight)| {
                    let value: Vec<f64> = part(row, 2, head)
                        .iter()
                        .map(|value| value * weight)
                        .collect();
                    sum(&total, &value)
                })
            });
            heads.collect()
        };
        let rows = rows.iter().zip(&all).map(|(row, projected)| {
            let row = normalized(
                &layer.norms[0],
                &sum(row, &applied(&layer.output, &attend(projected))),
            );
            let [first, second] = &layer.feed_forward;
            normalized(
                &layer.norms[1],
                &sum(&row, &applied(second, &positives(applied(first, &row)))),
            )
        });
        rows.collect()
    }

    fn mixed(mixing: &Mixing, states: &Rows, labels: &Rows) -> Rows {
        match mixing {
            Mixing::Joined([first, second]) => {
                let rows = states
                    .iter()
                    .zip(labels)
                    .map(|(state, label)| [&state[..], label].concat());
                rows.map(|row| applied(second, &positives(applied(first, &row))))
                    .collect()
            }
            Mixing::Attention(transformer) => {
                let sums: Rows = states
                    .iter()
                    .zip(labels)
                    .map(|(state, label)| sum(state, label))
                    .collect();
                let rows = sums
                    .iter()
                    .map(|row| applied(&transformer.input, row))
                    .collect();
                let rows = transformer
                    .layers
                    .iter()
                    .fold(rows, |rows, layer| attended(layer, &rows));
                let [first, second, third] = &transformer.output;
                let output = |(row, sum): (&Vec<f64>, &Vec<f64>)| {
                    let row = positives(applied(first, &[&row[..], sum].concat()));
                    applied(third, &positives(applied(second, &row)))
                };
                rows.iter().zip(&sums).map(output).collect()
            }
            // GELU is compared by GLiClass's head.
            Mixing::Experts(_) => unreachable!("experts have no plain form here"),
        }
    }

    fn sigmoid(value: f64) -> f64 {
        1.0 / (1.0 + (-value).exp())
    }

    /// The states after a step.
    fn stepped(labels: &CountedLabels, instance: usize, states: &Rows) -> Rows {
        let step = |row: &Vec<f64>| -> Vec<f64> {
            let gates = applied(&labels.gates, row);
            let input = |at: usize| f64::from(labels.steps[instance * 3 * WIDTH + at]);
            let value = |at: usize| {
                let reset = sigmoid(gates[at] + input(at));
                let update = sigmoid(gates[WIDTH + at] + input(WIDTH + at));
                let new = (reset * gates[2 * WIDTH + at] + input(2 * WIDTH + at)).tanh();
                (1.0 - update) * new + update * row[at]
            };
            (0..WIDTH).map(value).collect()
        };
        states.iter().map(step).collect()
    }

    /// Counts whose likeliest number is `count`.
    fn with_count(labels: CountedLabels, count: usize) -> CountedLabels {
        let mut bias = vec![0.0; 20];
        bias[count] = 100.0;
        let [first, second] = labels.counts;
        CountedLabels {
            counts: [
                first,
                Dense {
                    bias: Some(bias.into()),
                    ..second
                },
            ],
            ..labels
        }
    }

    #[test]
    fn rows_are_those_of_plain_loops() {
        let joined = Mixing::Joined([layer(2 * WIDTH, 4 * WIDTH, 80), layer(4 * WIDTH, WIDTH, 81)]);
        for labels in [labels(joined), labels(transformer())].map(|labels| with_count(labels, 3)) {
            for (count, kind) in [
                (2, LabelKind::Field),
                (4, LabelKind::Field),
                (21, LabelKind::Entity),
            ] {
                let (schemas, values) = (numbers(2 * WIDTH, 90), numbers(count * WIDTH, 91));
                let found: Vec<(usize, Spans)> = InstructionSet::available()
                    .map(|instructions| instructions.call(Call(&labels, &schemas, (&values, kind))))
                    .collect();
                let rows: Rows = values.chunks_exact(WIDTH).map(exact).collect();
                let instances = if kind == LabelKind::Field { 3 } else { 1 };
                let (own, last) = rows.split_at(count - 1);
                let mut states = [own.to_vec(), last.to_vec()];
                let mut expected = Vec::new();
                for instance in 0..instances {
                    for (states, rows) in states.iter_mut().zip([own, last]) {
                        *states = stepped(&labels, instance, states);
                        expected.extend(mixed(&labels.mixing, states, &rows.to_vec()).concat());
                    }
                }
                let outputs: Vec<_> = found.iter().map(|(_, spans)| &spans.outputs).collect();
                assert_close(&outputs, &expected);
                for (most, spans) in &found {
                    assert_eq!(*most, instances);
                    assert_eq!(spans.instances, vec![instances; count]);
                }
            }
        }
    }

    #[test]
    fn a_text_without_instances_has_no_rows() {
        let none = with_count(labels(transformer()), 0);
        let schema = numbers(WIDTH, 90);
        for instructions in InstructionSet::available() {
            let (most, buffers) =
                instructions.call(Call(&none, &schema, (&schema, LabelKind::Field)));
            assert_eq!((most, buffers.outputs.len()), (0, 0));
            // Labels of texts have scores without instances.
            let (most, buffers) =
                instructions.call(Call(&none, &schema, (&schema, LabelKind::Class)));
            assert_eq!((most, buffers.classes.len()), (0, 1));
            let [first, second] = &none.classes;
            let expected = applied(second, &positives(applied(first, &exact(&schema))));
            assert_close(&[&buffers.classes], &expected[..1]);
        }
    }
}
