//! GLiNER's head: scores for each word of a text and each label in front of it.
//!
//! Words and labels are selected from a text's tokens. Words pass bidirectional LSTM layers. In a head that scores
//! spans, each word then has one part for spans that begin with it, and one for spans that end with it; a
//! span's score for a label is the product of the parts' positive sum and the label's vector. Heads that score words are
//! in `word_scores.rs`, and heads that score whole texts in `text_scores.rs`; GLiNER2's layers on labels are in
//! `counted_labels.rs`.

use crate::{
    kernel::{COLUMNS, Kernel, LANES, Lanes, MAX_ROWS, Rows},
    linear::dense,
    math::{activate, sigmoid},
    program::{ABSENT, Activation, Dense, LabelLayers, Lstm, Scorer, SpanHead, SpanScorer},
};

/// Buffers for one text. Other texts reuse them.
#[derive(Debug, Default)]
pub struct Spans {
    /// A row per word.
    pub words: Vec<f32>,
    /// Number of tokens that begin words.
    pub tokens: usize,
    /// A row per label.
    pub labels: Vec<f32>,
    /// A row per schema token, in heads that read them.
    pub schemas: Vec<f32>,
    /// Each label's kind, and the index of its schema.
    pub kinds: Vec<(LabelKind, usize)>,
    /// Number of instances per label, in heads that count them.
    pub instances: Vec<usize>,
    /// A score per class label, and 0 for others.
    pub classes: Vec<f32>,
    pub hidden: Vec<f32>,
    pub outputs: Vec<f32>,
    pub starts: Vec<f32>,
    pub ends: Vec<f32>,
    /// A label's factors per column, in panels of 32 labels.
    pub panels: Vec<f32>,
    pub biases: Vec<f32>,
}

/// The use of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// Spans anywhere in the text.
    Entity,
    /// Spans in each instance of its schema.
    Field,
    /// The text.
    Class,
}

impl SpanHead {
    /// Writes a text's scores by word and label.
    #[inline(always)]
    pub fn score<K: Kernel>(&self, kernel: K, buffers: &mut Spans, out: &mut Vec<f32>) {
        let Spans {
            words,
            hidden,
            outputs,
            ..
        } = buffers;
        for layer in &self.layers {
            layer.recur(kernel, words, hidden, outputs);
            std::mem::swap(words, outputs);
        }
        match &self.scorer {
            Scorer::Spans(scorer) => scorer.score(kernel, self.width, buffers, out),
            Scorer::Words(scorer) => scorer.score(kernel, self.width, buffers, out),
            Scorer::Texts(scorer) => scorer.score(kernel, self.width, buffers, out),
            Scorer::Labels(layers) => score_labels(kernel, layers, self.width, buffers, out),
        }
    }
}

impl SpanScorer {
    /// Writes a text's scores by first word, label and word count.
    #[inline(always)]
    fn score<K: Kernel>(&self, kernel: K, width: usize, buffers: &mut Spans, out: &mut Vec<f32>) {
        let (count, has_spans) = match &self.labels {
            LabelLayers::Plain(layers) => {
                let Spans {
                    labels,
                    hidden,
                    outputs,
                    ..
                } = &mut *buffers;
                two_layers(kernel, layers, labels, hidden, outputs);
                (buffers.labels.len() / width, true)
            }
            LabelLayers::Counted(layers) => {
                let instances = layers.write(kernel, width, buffers);
                (instances.max(1) * buffers.kinds.len(), instances > 0)
            }
        };
        if has_spans {
            self.score_rows(kernel, width, buffers, out);
        } else {
            out.clear();
            out.resize(buffers.words.len() / width * count * self.longest, ABSENT);
        }
        if matches!(self.labels, LabelLayers::Counted(_)) {
            self.complete(buffers, count, out);
        }
    }

    /// Replaces the scores of missing instances and of class labels, in `count` rows of spans per word.
    fn complete(&self, buffers: &Spans, count: usize, out: &mut [f32]) {
        let Spans {
            kinds,
            instances,
            classes,
            ..
        } = buffers;
        for word in out.chunks_exact_mut((count * self.longest).max(1)) {
            let labels = kinds.iter().zip(instances).zip(classes).cycle();
            for (row, (scores, label)) in
                word.chunks_exact_mut(self.longest).zip(labels).enumerate()
            {
                let (((kind, _), instances), class) = label;
                match kind {
                    LabelKind::Class => scores.fill(*class),
                    _ if row / kinds.len() >= *instances => scores.fill(ABSENT),
                    _ => {}
                }
            }
        }
    }

    /// Writes scores for rows of label vectors after their layers, which are in `outputs`.
    #[inline(always)]
    fn score_rows<K: Kernel>(
        &self,
        kernel: K,
        width: usize,
        buffers: &mut Spans,
        out: &mut Vec<f32>,
    ) {
        let count = buffers.outputs.len() / width;
        let Spans {
            words,
            hidden,
            outputs,
            starts,
            ends,
            panels,
            biases,
            ..
        } = buffers;
        let [columns, bias] = &self.factors;
        apply(kernel, bias, outputs, biases);
        apply(kernel, columns, outputs, hidden);
        let wide = columns.outputs;
        pack(hidden, wide, panels);
        for (side, part) in self.sides.iter().zip([&mut *starts, &mut *ends]) {
            let [layers @ .., last] = side;
            two_layers(kernel, layers, words, hidden, outputs);
            outputs.iter_mut().for_each(positive);
            apply(kernel, last, outputs, part);
        }
        out.clear();
        out.resize(words.len() / width * count * self.longest, 0.0);
        let rows = out.chunks_exact_mut((count * self.longest).max(1));
        for (word, (start, out)) in starts.chunks_exact(wide).zip(rows).enumerate() {
            hidden.clear();
            for end in ends.chunks_exact(wide).skip(word).take(self.longest) {
                hidden.extend(start.iter().zip(end).map(|(start, end)| start + end));
            }
            hidden.iter_mut().for_each(positive);
            self.score_word(kernel, Rows::new(hidden, wide), panels, biases, out);
        }
    }

    /// Writes the scores of the spans that begin with a word, from their parts' positive sums.
    #[inline(always)]
    fn score_word<K: Kernel>(
        &self,
        kernel: K,
        spans: Rows<'_>,
        panels: &[f32],
        biases: &[f32],
        out: &mut [f32],
    ) {
        let wide = spans.stride;
        let mut sums: [[Lanes; 2]; MAX_ROWS] = [[[0.0; LANES]; 2]; MAX_ROWS];
        let rows = spans.values.chunks(MAX_ROWS * wide);
        for (rows, first_length) in rows.zip((0..).step_by(MAX_ROWS)) {
            let sums = &mut sums[..rows.len() / wide];
            let labels = panels
                .chunks_exact(COLUMNS * wide)
                .zip((0..).step_by(COLUMNS));
            for (panel, first_label) in labels {
                let columns = Rows::new(panel, COLUMNS);
                kernel.product(wide, Rows::new(rows, wide), columns, sums);
                let labels = biases.iter().enumerate().skip(first_label).take(COLUMNS);
                for (label, bias) in labels {
                    for (length, sums) in sums.iter().enumerate() {
                        let product = sums.as_flattened()[label - first_label];
                        out[label * self.longest + first_length + length] = product + bias;
                    }
                }
            }
        }
    }
}

impl Lstm {
    /// Writes each word's vector: both directions' states, one after the other.
    #[inline(always)]
    fn recur<K: Kernel>(&self, kernel: K, words: &[f32], gates: &mut Vec<f32>, out: &mut Vec<f32>) {
        let width = self.gates.outputs / 4;
        let (half, count) = (width / 2, words.len() / width);
        // For each word, both directions' gates: input, output, forget, cell.
        apply(kernel, &self.gates, words, gates);
        out.clear();
        out.resize(count * width, 0.0);
        let padded = half.next_multiple_of(LANES);
        let (mut state, mut cells, mut sums) =
            (vec![0.0; half], vec![0.0; half], vec![0.0; 4 * padded]);
        for direction in 0..2 {
            state.fill(0.0);
            cells.fill(0.0);
            for step in 0..count {
                let word = if direction == 0 {
                    step
                } else {
                    count - 1 - step
                };
                let gates = &gates[(2 * word + direction) * 4 * half..][..4 * half];
                self.step(kernel, direction, gates, &mut state, &mut cells, &mut sums);
                out[word * width + direction * half..][..half].copy_from_slice(&state);
            }
        }
    }

    /// Replaces a direction's state and cells by the next ones.
    #[inline(always)]
    fn step<K: Kernel>(
        &self,
        kernel: K,
        direction: usize,
        gates: &[f32],
        state: &mut [f32],
        cells: &mut [f32],
        sums: &mut [f32],
    ) {
        let (half, padded) = (state.len(), sums.len() / 4);
        let states = &self.states[direction * half * 4 * half..];
        let mut products = [[[0.0; LANES]; 2]];
        for column in (0..4 * half).step_by(COLUMNS) {
            let part = Rows::new(&states[column..], 4 * half);
            kernel.product(half, Rows::new(state, half), part, &mut products);
            let products = products.as_flattened().as_flattened();
            for (at, (product, gate)) in (column..).zip(products.iter().zip(&gates[column..])) {
                sums[at / half * padded + at % half] = product + gate;
            }
        }
        let (sigmoids, candidates) = sums.split_at_mut(3 * padded);
        for lanes in sigmoids.as_chunks_mut::<LANES>().0 {
            kernel.store(sigmoid(kernel, kernel.load(lanes)), lanes);
        }
        tanh(kernel, candidates);
        for (index, cell) in cells.iter_mut().enumerate() {
            *cell = sigmoids[2 * padded + index] * *cell + sigmoids[index] * candidates[index];
        }
        candidates[..half].copy_from_slice(cells);
        tanh(kernel, candidates);
        for (index, state) in state.iter_mut().enumerate() {
            *state = sigmoids[padded + index] * candidates[index];
        }
    }
}

#[inline(always)]
pub fn tanh<K: Kernel>(kernel: K, values: &mut [f32]) {
    for lanes in values.as_chunks_mut::<LANES>().0 {
        kernel.store(
            activate(kernel, Activation::Tanh, kernel.load(lanes)),
            lanes,
        );
    }
}

/// Applies a layer to rows.
#[inline(always)]
pub fn apply<K: Kernel>(kernel: K, layer: &Dense, input: &[f32], out: &mut Vec<f32>) {
    out.resize(input.len() / layer.inputs() * layer.outputs, 0.0);
    dense(kernel, input, layer, out);
}

/// Writes a score per label, for each word.
#[inline(always)]
fn score_labels<K: Kernel>(
    kernel: K,
    layers: &[Dense; 2],
    width: usize,
    buffers: &mut Spans,
    out: &mut Vec<f32>,
) {
    let Spans {
        words,
        labels,
        hidden,
        outputs,
        ..
    } = buffers;
    two_layers(kernel, layers, labels, hidden, outputs);
    out.clear();
    for _ in words.chunks_exact(width) {
        out.extend(
            outputs
                .chunks_exact(layers[1].outputs)
                .map(|scores| scores[0]),
        );
    }
}

/// Applies two layers, with a ReLU between them.
#[inline(always)]
pub fn two_layers<K: Kernel>(
    kernel: K,
    [first, second]: &[Dense; 2],
    input: &[f32],
    hidden: &mut Vec<f32>,
    out: &mut Vec<f32>,
) {
    apply(kernel, first, input, hidden);
    hidden.iter_mut().for_each(positive);
    apply(kernel, second, hidden, out);
}

/// Applies two layers, with GELU between them.
#[inline(always)]
pub fn two_layers_with_gelu<K: Kernel>(
    kernel: K,
    [first, second]: &[Dense; 2],
    input: &[f32],
    hidden: &mut Vec<f32>,
    out: &mut Vec<f32>,
) {
    apply(kernel, first, input, hidden);
    for lanes in hidden.as_chunks_mut::<LANES>().0 {
        kernel.store(
            activate(kernel, Activation::Gelu, kernel.load(lanes)),
            lanes,
        );
    }
    apply(kernel, second, hidden, out);
}

/// The positive part; 0 for NaN and for negative zero.
#[inline(always)]
pub fn positive(value: &mut f32) {
    *value = if *value > 0.0 { *value } else { 0.0 };
}

/// Transposes rows with `width` numbers each, in panels of 32 rows.
#[inline(always)]
pub fn pack(rows: &[f32], width: usize, panels: &mut Vec<f32>) {
    panels.clear();
    panels.resize((rows.len() / width).next_multiple_of(COLUMNS) * width, 0.0);
    for (rows, panel) in rows
        .chunks(COLUMNS * width)
        .zip(panels.chunks_exact_mut(COLUMNS * width))
    {
        for (column, row) in rows.chunks_exact(width).enumerate() {
            for (value, out) in row.iter().zip(panel.as_chunks_mut::<COLUMNS>().0) {
                out[column] = *value;
            }
        }
    }
}
