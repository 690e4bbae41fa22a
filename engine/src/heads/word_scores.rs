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
        heads::plain::{
            applied, assert_close, exact, layer, numbers, positives, products, sum, without_bias,
        },
        kernel::{InstructionSet, KernelFn},
        program::WORD_SCORES,
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

    #[test]
    fn scores_are_those_of_plain_loops() {
        let scorer = WordScorer {
            count: WORD_SCORES,
            words: [
                layer(WIDTH, WIDTH, 1),
                layer(WIDTH, WIDE, 20),
                layer(WIDTH, WIDTH, 3),
            ],
            labels: [
                layer(WIDTH, WIDTH, 40),
                without_bias(layer(WIDTH, WIDE, 5)),
                layer(WIDTH, WIDTH, 6),
            ],
            products: without_bias(layer(WIDTH, WIDE, 70)),
            scores: layer(WIDE, COLUMNS, 8),
        };
        // More words than a block.
        for (words, labels) in [(1, 1), (BLOCK + 3, 3), (0, 2), (5, 0)] {
            let rows = [numbers(words * WIDTH, 90), numbers(labels * WIDTH, 100)];
            let found = InstructionSet::available().map(|instructions| {
                instructions.call(Call(&scorer, rows.each_ref().map(Vec::as_slice)))
            });
            let found: Vec<Vec<f32>> = found.collect();
            let mut expected = Vec::new();
            for word in rows[0].chunks_exact(WIDTH).map(exact) {
                for label in rows[1].chunks_exact(WIDTH).map(exact) {
                    let [word_layers, label_layers] = [&scorer.words, &scorer.labels];
                    let of_word = applied(&word_layers[1], &applied(&word_layers[0], &word));
                    let of_label = applied(&label_layers[1], &applied(&label_layers[0], &label));
                    let factors = applied(&word_layers[2], &word);
                    let products = products(&factors, &applied(&label_layers[2], &label));
                    let sums = sum(&applied(&scorer.products, &products), &of_word);
                    let sums = positives(sum(&sums, &of_label));
                    expected.extend(&applied(&scorer.scores, &sums)[..WORD_SCORES]);
                }
            }
            assert_close(&found, &expected);
        }
    }
}
