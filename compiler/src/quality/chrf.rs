//! chrF2, as `sacrebleu` computes it: character n-grams up to six characters, without whitespace, with recall counting
//! four times as much as precision.

use std::collections::HashMap;

/// Longest n-grams.
const ORDER: usize = 6;
/// Weight of recall: the square of chrF2's beta.
const RECALL: f64 = 4.0;

/// Counts over all texts of a corpus.
#[derive(Clone, Debug, Default)]
pub struct Chrf {
    /// Per n-gram length: n-grams in the texts, in the references, and in both.
    counts: [[usize; 3]; ORDER],
}

impl Chrf {
    /// Adds a text and its reference.
    pub fn add(&mut self, text: &str, reference: &str) {
        let [text, reference] = [text, reference].map(characters);
        for (length, counts) in (1..).zip(&mut self.counts) {
            let [text, reference] = [&text, &reference].map(|text| ngrams(text, length));
            let total = |ngrams: &HashMap<&[char], usize>| ngrams.values().sum::<usize>();
            let common = text
                .iter()
                .map(|(ngram, count)| reference.get(ngram).map_or(0, |found| *count.min(found)));
            // n-grams of a text whose reference is too short for any do not count.
            counts[0] += if reference.is_empty() {
                0
            } else {
                total(&text)
            };
            counts[1] += total(&reference);
            counts[2] += common.sum::<usize>();
        }
    }

    /// The score, from 0 to 100.
    pub fn score(&self) -> f64 {
        // Lengths that texts or references do not have are left out of the means.
        let known = self
            .counts
            .iter()
            .filter(|[text, reference, _]| *text > 0 && *reference > 0);
        let (mut precision, mut recall, mut lengths) = (0.0, 0.0, 0.0);
        for [text, reference, common] in known {
            precision += *common as f64 / *text as f64;
            recall += *common as f64 / *reference as f64;
            lengths += 1.0;
        }
        if precision + recall == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precision / lengths, recall / lengths);
        100.0 * (1.0 + RECALL) * precision * recall / (RECALL * precision + recall)
    }
}

/// Characters without whitespace, which in Python includes four separators that Rust does not count.
fn characters(text: &str) -> Vec<char> {
    text.chars()
        .filter(|c| !c.is_whitespace() && !('\u{1c}'..='\u{1f}').contains(c))
        .collect()
}

fn ngrams(text: &[char], length: usize) -> HashMap<&[char], usize> {
    let mut found = HashMap::new();
    text.windows(length)
        .for_each(|ngram| *found.entry(ngram).or_default() += 1);
    found
}
