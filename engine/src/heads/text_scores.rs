//! GLiClass's head: a text's score for each label, which is in front of the text or behind it.
//!
//! All tokens that are pooled begin the same word, so that the text is the only word. The text's vector and the labels'
//! vectors pass two layers each. A score is their dot product, or the result of further layers.

use super::spans::{Spans, apply, positive, two_layers_with_gelu};
use crate::{
    kernel::{Kernel, LANES},
    program::{PairLayers, PairScorer, TextScorer},
};

/// Added to a vector's length before it is divided by it, as in the package `gliclass`.
const EPSILON: f32 = 1e-8;

impl TextScorer {
    /// Writes a text's scores by label.
    #[inline(always)]
    pub fn score<K: Kernel>(
        &self,
        kernel: K,
        width: usize,
        buffers: &mut Spans,
        out: &mut Vec<f32>,
    ) {
        let Spans {
            words,
            tokens,
            labels,
            hidden,
            outputs,
            ..
        } = buffers;
        if self.is_mean {
            let count = (*tokens).max(1) as f32;
            words.iter_mut().for_each(|value| *value /= count);
        }
        for (layers, rows) in [(&self.text, &mut *words), (&self.label, &mut *labels)] {
            two_layers_with_gelu(kernel, layers, rows, hidden, outputs);
            std::mem::swap(rows, outputs);
            if self.scale.is_some() {
                rows.chunks_exact_mut(width).for_each(normalize);
            }
        }
        match &self.pairs {
            PairScorer::Dot => {
                out.clear();
                for text in words.chunks_exact(width) {
                    out.extend(labels.chunks_exact(width).map(|label| dot(text, label)));
                }
            }
            PairScorer::Products(scorer) => scorer.score(kernel, width, buffers, out),
            PairScorer::Layers(layers) => layers.score(kernel, buffers, out),
        }
        if let Some(scale) = self.scale {
            out.iter_mut().for_each(|score| *score *= scale);
        }
    }
}

impl PairLayers {
    /// Writes texts' scores by label.
    #[inline(always)]
    fn score<K: Kernel>(&self, kernel: K, buffers: &mut Spans, out: &mut Vec<f32>) {
        let Spans {
            words,
            labels,
            hidden,
            outputs,
            starts,
            ends,
            biases,
            ..
        } = buffers;
        apply(kernel, &self.text, words, starts);
        apply(kernel, &self.label, labels, ends);
        let wide = self.text.outputs;
        out.clear();
        for text in starts.chunks_exact(wide) {
            hidden.clear();
            for label in ends.chunks_exact(wide) {
                hidden.extend(text.iter().zip(label).map(|(text, label)| text + label));
            }
            hidden.iter_mut().for_each(positive);
            apply(kernel, &self.middle, hidden, outputs);
            outputs.iter_mut().for_each(positive);
            apply(kernel, &self.last, outputs, biases);
            out.extend(
                biases
                    .chunks_exact(self.last.outputs)
                    .map(|scores| scores[0]),
            );
        }
    }
}

#[inline(always)]
fn normalize(row: &mut [f32]) {
    let length = dot(row, row).sqrt() + EPSILON;
    row.iter_mut().for_each(|value| *value /= length);
}

/// Sums products in 16 lanes. Rows have a multiple of as many values.
#[inline(always)]
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (left, right) in left
        .as_chunks::<LANES>()
        .0
        .iter()
        .zip(right.as_chunks::<LANES>().0)
    {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        heads::plain::{
            applied, assert_close, dot, exact, layer, numbers, positives, products, sum,
            without_bias,
        },
        kernel::{COLUMNS, InstructionSet, KernelFn},
        program::{Dense, WordScorer},
    };

    const WIDTH: usize = 16;
    const HIDDEN: usize = 48;

    struct Call<'a>(&'a TextScorer, [&'a [f32]; 2], usize);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let [words, labels] = self.1.map(<[f32]>::to_vec);
            let mut buffers = Spans {
                words,
                labels,
                tokens: self.2,
                ..Spans::default()
            };
            let mut out = Vec::new();
            self.0.score(kernel, WIDTH, &mut buffers, &mut out);
            out
        }
    }

    fn layers(seed: usize) -> [Dense; 2] {
        [layer(WIDTH, HIDDEN, seed), layer(HIDDEN, WIDTH, seed + 5)]
    }

    fn multiplied() -> PairScorer {
        let own = |seed| layer(WIDTH, WIDTH, seed);
        let wide = |seed| layer(WIDTH, 4 * WIDTH, seed);
        PairScorer::Products(Box::new(WordScorer {
            count: 1,
            words: [own(1), wide(20), own(3)],
            labels: [own(40), without_bias(wide(5)), own(6)],
            products: without_bias(wide(70)),
            scores: layer(4 * WIDTH, COLUMNS, 8),
        }))
    }

    fn side_by_side() -> PairScorer {
        PairScorer::Layers(Box::new(PairLayers {
            text: layer(WIDTH, 64, 11),
            label: without_bias(layer(WIDTH, 64, 12)),
            middle: layer(64, 40, 13),
            last: layer(40, COLUMNS, 14),
        }))
    }

    /// Abramowitz and Stegun's 7.1.26, with an error below 2e-7.
    fn gelu(x: f64) -> f64 {
        let z = x.abs() / 2_f64.sqrt();
        let t = 1.0 / (1.0 + 0.327_591_1 * z);
        let terms = [
            1.061_405_429,
            -1.453_152_027,
            1.421_413_741,
            -0.284_496_736,
            0.254_829_592,
        ];
        let erf = 1.0 - terms.iter().fold(0.0, |sum, term| (sum + term) * t) * (-z * z).exp();
        0.5 * x * (1.0 + erf.copysign(x))
    }

    fn projected(layers: &[Dense; 2], row: &[f64], is_normalized: bool) -> Vec<f64> {
        let hidden: Vec<f64> = applied(&layers[0], row).into_iter().map(gelu).collect();
        let vector = applied(&layers[1], &hidden);
        let length = dot(&vector, vector.iter().copied()).sqrt();
        let divisor = if is_normalized { length } else { 1.0 };
        vector.iter().map(|value| value / divisor).collect()
    }

    fn paired(pairs: &PairScorer, text: &[f64], label: &[f64]) -> f64 {
        match pairs {
            PairScorer::Dot => dot(text, label.iter().copied()),
            PairScorer::Products(scorer) => {
                let factors = applied(&scorer.words[2], text);
                let products = products(&factors, &applied(&scorer.labels[2], label));
                let of_text = applied(&scorer.words[1], &applied(&scorer.words[0], text));
                let of_label = applied(&scorer.labels[1], &applied(&scorer.labels[0], label));
                let sums = sum(
                    &sum(&of_text, &of_label),
                    &applied(&scorer.products, &products),
                );
                applied(&scorer.scores, &positives(sums))[0]
            }
            PairScorer::Layers(layers) => {
                let sums = sum(&applied(&layers.text, text), &applied(&layers.label, label));
                let middle = positives(applied(&layers.middle, &positives(sums)));
                applied(&layers.last, &middle)[0]
            }
        }
    }

    #[test]
    fn scores_are_those_of_plain_loops() {
        for (is_mean, scale, pairs) in [
            (false, None, PairScorer::Dot),
            (true, Some(2.5), PairScorer::Dot),
            (true, None, multiplied()),
            (false, Some(0.5), side_by_side()),
        ] {
            let scorer = TextScorer {
                is_mean,
                text: layers(90),
                label: layers(95),
                scale,
                pairs,
            };
            for labels in [0, 1, 50] {
                let (tokens, text, rows) = (7, numbers(WIDTH, 30), numbers(labels * WIDTH, 31));
                let found = InstructionSet::available().map(|instructions| {
                    instructions.call(Call(&scorer, [text.as_slice(), rows.as_slice()], tokens))
                });
                let found: Vec<Vec<f32>> = found.collect();
                let divisor = if is_mean { tokens as f64 } else { 1.0 };
                let text: Vec<f64> = exact(&text).iter().map(|value| value / divisor).collect();
                let text = projected(&scorer.text, &text, scale.is_some());
                let score = |row: &[f32]| {
                    let label = projected(&scorer.label, &exact(row), scale.is_some());
                    paired(&scorer.pairs, &text, &label) * f64::from(scale.unwrap_or(1.0))
                };
                let expected: Vec<f64> = rows.chunks_exact(WIDTH).map(score).collect();
                assert_close(&found, &expected);
            }
        }
    }
}
