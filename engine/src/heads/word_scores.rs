//! GLiNER's head for words: each word's scores as the first, the last and any word of an entity, for each label.
//!
//! A word's second vector times a label's, number by number, is multiplied by a matrix; both first vectors have been
//! multiplied by matrices of their own. The sum's positive values are the last layer's input.

use super::spans::{Spans, apply, positive};
use crate::{
    kernel::{COLUMNS, Kernel},
    program::WordScorer,
};

/// Words whose products with a label are computed together: few enough for the cache.
const BLOCK: usize = 48;

impl WordScorer {
    /// Writes a text's scores by word, label and kind.
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
            labels,
            hidden,
            outputs,
            starts,
            ends,
            panels,
            biases,
            ..
        } = buffers;
        let [first, contribution, second] = &self.words;
        let (wide, kinds) = (contribution.outputs, self.count);
        apply(kernel, first, words, outputs);
        apply(kernel, contribution, outputs, starts);
        apply(kernel, second, words, ends);
        let [first, contribution, second] = &self.labels;
        apply(kernel, first, labels, outputs);
        apply(kernel, contribution, outputs, panels);
        apply(kernel, second, labels, outputs);
        let count = labels.len() / width;
        out.clear();
        out.resize(words.len() / width * count * kinds, 0.0);
        let blocks = starts.chunks(BLOCK * wide).zip(ends.chunks(BLOCK * width));
        let scores = out.chunks_mut((BLOCK * count * kinds).max(1));
        for ((starts, factors), out) in blocks.zip(scores) {
            let labels = panels
                .chunks_exact(wide)
                .zip(outputs.chunks_exact(width))
                .enumerate();
            for (label, (contribution, label_factors)) in labels {
                words.clear();
                for word in factors.chunks_exact(width) {
                    words.extend(
                        word.iter()
                            .zip(label_factors)
                            .map(|(word, label)| word * label),
                    );
                }
                apply(kernel, &self.products, words, hidden);
                for (sums, word) in hidden.chunks_exact_mut(wide).zip(starts.chunks_exact(wide)) {
                    for ((sum, word), label) in sums.iter_mut().zip(word).zip(contribution) {
                        *sum += word + label;
                        positive(sum);
                    }
                }
                apply(kernel, &self.scores, hidden, biases);
                let rows = out.chunks_exact_mut(count * kinds);
                for (scores, out) in biases.chunks_exact(COLUMNS).zip(rows) {
                    out[label * kinds..][..kinds].copy_from_slice(&scores[..kinds]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::{InstructionSet, KernelFn},
        program::{Dense, WORD_SCORES},
    };

    const WIDTH: usize = 16;
    const WIDE: usize = 4 * WIDTH;

    struct Call<'a>(&'a WordScorer, [&'a [f32]; 2]);

    impl KernelFn for Call<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<f32> {
            let [words, labels] = self.1.map(<[f32]>::to_vec);
            let (mut buffers, mut out) = (
                Spans {
                    words,
                    labels,
                    ..Spans::default()
                },
                Vec::new(),
            );
            self.0.score(kernel, WIDTH, &mut buffers, &mut out);
            out
        }
    }

    /// Numbers from -0.5 to 0.5.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|at| ((at + seed) * 7919 % 1000) as f32 / 1000.0 - 0.5)
            .collect()
    }

    fn layer(inputs: usize, outputs: usize, seed: usize, has_bias: bool) -> Dense {
        let bias = has_bias.then(|| numbers(outputs, seed + 1).into());
        Dense {
            outputs,
            panel: outputs,
            weights: numbers(inputs * outputs, seed).into(),
            bias,
        }
    }

    fn apply(layer: &Dense, input: &[f64]) -> Vec<f64> {
        let output = |column: usize| {
            let weights = layer.weights.in_32_bits()[column..]
                .iter()
                .step_by(layer.outputs);
            let sum: f64 = input
                .iter()
                .zip(weights)
                .map(|(input, weight)| input * f64::from(*weight))
                .sum();
            sum + layer
                .bias
                .as_ref()
                .map_or(0.0, |bias| f64::from(bias[column]))
        };
        (0..layer.outputs).map(output).collect()
    }

    #[test]
    fn scores_are_those_of_plain_loops() {
        let scorer = WordScorer {
            count: WORD_SCORES,
            words: [
                layer(WIDTH, WIDTH, 1, true),
                layer(WIDTH, WIDE, 20, true),
                layer(WIDTH, WIDTH, 3, true),
            ],
            labels: [
                layer(WIDTH, WIDTH, 40, true),
                layer(WIDTH, WIDE, 5, false),
                layer(WIDTH, WIDTH, 6, true),
            ],
            products: layer(WIDTH, WIDE, 70, false),
            scores: layer(WIDE, COLUMNS, 8, true),
        };
        // More words than a block.
        for (words, labels) in [(1, 1), (BLOCK + 3, 3), (0, 2), (5, 0)] {
            let rows = [numbers(words * WIDTH, 90), numbers(labels * WIDTH, 100)];
            let found = InstructionSet::available().map(|instructions| {
                instructions.call(Call(&scorer, rows.each_ref().map(Vec::as_slice)))
            });
            let found: Vec<Vec<f32>> = found.collect();
            let exact = |row: &[f32]| row.iter().copied().map(f64::from).collect::<Vec<f64>>();
            let mut expected = Vec::new();
            for word in rows[0].chunks_exact(WIDTH).map(exact) {
                for label in rows[1].chunks_exact(WIDTH).map(exact) {
                    let [word_layers, label_layers] = [&scorer.words, &scorer.labels];
                    let of_word = apply(&word_layers[1], &apply(&word_layers[0], &word));
                    let of_label = apply(&label_layers[1], &apply(&label_layers[0], &label));
                    let factors = apply(&word_layers[2], &word);
                    let products: Vec<f64> = factors
                        .iter()
                        .zip(apply(&label_layers[2], &label))
                        .map(|(word, label)| word * label)
                        .collect();
                    let sums = apply(&scorer.products, &products);
                    let sums = sums.iter().zip(of_word).zip(of_label);
                    let sums: Vec<f64> = sums
                        .map(|((sum, word), label)| (sum + word + label).max(0.0))
                        .collect();
                    expected.extend(&apply(&scorer.scores, &sums)[..WORD_SCORES]);
                }
            }
            for found in &found {
                assert_eq!(found.len(), expected.len());
                let differences = found
                    .iter()
                    .zip(&expected)
                    .map(|(found, expected)| f64::from(*found) - expected);
                assert!(
                    differences.map(f64::abs).fold(0.0, f64::max) < 1e-4,
                    "{words} words"
                );
            }
            assert!(
                found.windows(2).all(|pair| pair[0] == pair[1]),
                "{words} words"
            );
        }
    }
}
