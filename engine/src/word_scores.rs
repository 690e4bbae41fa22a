//! GLiNER's head for words: each word's scores as the first, the last and any word of an entity, for each label.
//!
//! A word's second vector times a label's, number by number, is multiplied by a matrix; both first vectors have been
//! multiplied by matrices of their own. The sum's positive values are the last layer's input.

use crate::{
    kernel::{COLUMNS, Kernel},
    program::{WORD_SCORES, WordScorer},
    spans::{Spans, apply, positive},
};

/// Words whose products with a label are computed together: few enough for the cache.
const BLOCK: usize = 48;

impl WordScorer {
    /// Writes a text's scores by word, label and kind.
    #[inline(always)]
    pub(crate) fn score<K: Kernel>(&self, kernel: K, width: usize, buffers: &mut Spans, out: &mut Vec<f32>) {
        let Spans { words, labels, hidden, outputs, starts, ends, panels, biases } = buffers;
        let [first, contribution, second] = &self.words;
        let wide = contribution.outputs;
        apply(kernel, first, words, width, outputs);
        apply(kernel, contribution, outputs, width, starts);
        apply(kernel, second, words, width, ends);
        let [first, contribution, second] = &self.labels;
        apply(kernel, first, labels, width, outputs);
        apply(kernel, contribution, outputs, width, panels);
        apply(kernel, second, labels, width, outputs);
        let count = labels.len() / width;
        out.clear();
        out.resize(words.len() / width * count * WORD_SCORES, 0.0);
        let blocks = starts.chunks(BLOCK * wide).zip(ends.chunks(BLOCK * width));
        let scores = out.chunks_mut((BLOCK * count * WORD_SCORES).max(1));
        for ((starts, factors), out) in blocks.zip(scores) {
            let labels = panels.chunks_exact(wide).zip(outputs.chunks_exact(width)).enumerate();
            for (label, (contribution, label_factors)) in labels {
                words.clear();
                for word in factors.chunks_exact(width) {
                    words.extend(word.iter().zip(label_factors).map(|(word, label)| word * label));
                }
                apply(kernel, &self.products, words, width, hidden);
                for (sums, word) in hidden.chunks_exact_mut(wide).zip(starts.chunks_exact(wide)) {
                    for ((sum, word), label) in sums.iter_mut().zip(word).zip(contribution) {
                        *sum += word + label;
                        positive(sum);
                    }
                }
                apply(kernel, &self.scores, hidden, wide, biases);
                let rows = out.chunks_exact_mut(count * WORD_SCORES);
                for (scores, out) in biases.chunks_exact(COLUMNS).zip(rows) {
                    out[label * WORD_SCORES..][..WORD_SCORES].copy_from_slice(&scores[..WORD_SCORES]);
                }
            }
        }
    }
}
