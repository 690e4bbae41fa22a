//! What a search does to the scores of a step before it chooses, in the order and with the corners of
//! `transformers`.

use std::collections::BTreeSet;

use super::{
    config::{GenerationConfig, Sampling},
    scores::{largest, log_softmax},
};
use crate::error::Result;

const NEVER: f32 = f32::NEG_INFINITY;

impl GenerationConfig {
    /// Whether more than minus infinity is put in the place of some scores, which therefore have to be logarithms
    /// of probabilities before.
    pub(super) fn reads_scores(&self, text: &[i64], max_length: usize) -> bool {
        self.repetition_penalty != 1.0
            || self.sampling.is_some()
            || self.renormalise
            || self.forced(text, max_length).is_some()
    }

    /// The token that must follow.
    fn forced(&self, text: &[i64], max_length: usize) -> Option<i64> {
        let first = self.forced_first.filter(|_| text.len() == 1);
        self.forced_last.filter(|_| text.len() + 1 == max_length).or(first)
    }

    /// Changes the scores of what may follow `text`, which begins with the decoder's first token and may grow to
    /// `max_length`.
    pub(super) fn process(&self, text: &[i64], max_length: usize, scores: &mut [f32]) -> Result<()> {
        if self.repetition_penalty != 1.0 {
            penalise_repetition(text, self.repetition_penalty, scores);
        }
        if self.no_repeat_ngram_size > 0 {
            forbid(repeated(text, self.no_repeat_ngram_size), scores);
        }
        forbid(self.bad_words.iter().filter_map(|word| completes(text, word)), scores);
        if text.len() < self.min_length {
            forbid(self.ends.iter().copied(), scores);
        }
        if let Some(token) = self.forced(text, max_length) {
            force(token, scores);
        }
        forbid(self.suppressed.iter().copied(), scores);
        if text.len() == 1 + usize::from(self.forced_first.is_some()) {
            forbid(self.suppressed_first.iter().copied(), scores);
        }
        if let Some(sampling) = &self.sampling {
            // A beam must be able to go on where its best token ends it.
            sampling.warp(if self.beams > 1 { self.ends.len() + 1 } else { 1 }, scores);
        }
        // Nothing chosen by its rank alone depends on this.
        if self.renormalise && (self.beams > 1 || self.sampling.is_some()) {
            log_softmax(scores)?;
        }
        Ok(())
    }
}

impl Sampling {
    /// Makes scores those of what is to be drawn from, of which `fewest` stay in any case.
    fn warp(&self, fewest: usize, scores: &mut [f32]) {
        if self.temperature != 1.0 {
            scores.iter_mut().for_each(|score| *score /= self.temperature);
        }
        if self.top_k > 0 {
            keep_likeliest(self.top_k.max(fewest), scores);
        }
        if self.top_p < 1.0 {
            keep_mass(self.top_p, fewest, scores);
        }
    }
}

fn forbid(tokens: impl IntoIterator<Item = i64>, scores: &mut [f32]) {
    for token in tokens {
        if let Some(score) = usize::try_from(token).ok().and_then(|token| scores.get_mut(token)) {
            *score = NEVER;
        }
    }
}

fn force(token: i64, scores: &mut [f32]) {
    scores.fill(NEVER);
    if let Some(score) = usize::try_from(token).ok().and_then(|token| scores.get_mut(token)) {
        *score = 0.0;
    }
}

/// Makes every token of the text worse once, the decoder's first among them.
fn penalise_repetition(text: &[i64], penalty: f32, scores: &mut [f32]) {
    for token in text.iter().collect::<BTreeSet<_>>() {
        if let Some(score) = usize::try_from(*token).ok().and_then(|token| scores.get_mut(token)) {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
    }
}

/// The tokens that would repeat a run of `size` tokens.
fn repeated(text: &[i64], size: usize) -> impl Iterator<Item = i64> {
    let last = if text.len() + 1 < size { None } else { text.get(text.len() + 1 - size..) };
    let runs = text.windows(size);
    runs.filter(move |run| last.is_some_and(|last| run.starts_with(last))).map(move |run| run[size - 1])
}

/// The last token of `word`, where the text ends with what comes before it.
fn completes(text: &[i64], word: &[i64]) -> Option<i64> {
    let (last, before) = word.split_last()?;
    // As in `transformers`, a word does not count before the text is as long as the whole of it.
    (before.is_empty() || (word.len() <= text.len() && text.ends_with(before))).then_some(*last)
}

/// Keeps the `count` best scores, and those that equal the last of them.
fn keep_likeliest(count: usize, scores: &mut [f32]) {
    if count >= scores.len() {
        return;
    }
    let mut sorted = scores.to_vec();
    let (_, last, _) = sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    let last = *last;
    scores.iter_mut().filter(|score| **score < last).for_each(|score| *score = NEVER);
}

/// Keeps the best scores whose probabilities sum up to `mass`, and `fewest` of them in any case.
fn keep_mass(mass: f32, fewest: usize, scores: &mut [f32]) {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    let largest = largest(scores);
    let powers: Vec<f32> = order.iter().map(|token| (scores[*token] - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    let mut below = 0.0;
    for (token, power) in order[..order.len().saturating_sub(fewest)].iter().zip(powers) {
        below += power / sum;
        if below > 1.0 - mass {
            break;
        }
        scores[*token] = NEVER;
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Goldens {
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        kind: String,
        ids: Vec<i64>,
        scores: Vec<f32>,
        processed: Vec<Option<f32>>,
    }

    fn process(kind: &str, ids: &[i64], scores: &mut [f32]) {
        let sampling = |temperature, top_k, top_p| Sampling { temperature, top_k, top_p, seed: None };
        match kind {
            "temperature" => sampling(0.7, 0, 1.0).warp(1, scores),
            "top_k" => sampling(1.0, 4, 1.0).warp(1, scores),
            "top_k_beams" => sampling(1.0, 1, 1.0).warp(2, scores),
            "top_p" => sampling(1.0, 0, 0.8).warp(1, scores),
            "top_p_small" => sampling(1.0, 0, 0.01).warp(1, scores),
            "top_p_beams" => sampling(1.0, 0, 0.01).warp(2, scores),
            "repetition_penalty" => penalise_repetition(ids, 1.7, scores),
            "no_repeat_ngram_size" => forbid(repeated(ids, 2), scores),
            "bad_words_ids" => {
                let words: [&[i64]; 4] = [&[1], &[3, 5, 9], &[5, 5, 8], &[5, 2]];
                forbid(words.iter().filter_map(|word| completes(ids, word)), scores);
            }
            "renormalize_logits" => log_softmax(scores).unwrap(),
            other => panic!("no processor for {other}"),
        }
    }

    #[test]
    fn every_processor_is_that_of_transformers() {
        let goldens = include_str!("../../../tests/fixtures/goldens/processors.json");
        let goldens: Goldens = serde_json::from_str(goldens).unwrap();
        assert_eq!(goldens.cases.len(), 10);
        for Case { kind, ids, mut scores, processed } in goldens.cases {
            process(&kind, &ids, &mut scores);
            for (place, (found, expected)) in scores.iter().zip(processed).enumerate() {
                let expected = expected.unwrap_or(NEVER);
                let is_near = (found - expected).abs() < 1e-5 || *found == expected;
                assert!(is_near, "{kind}, token {place}: {found} instead of {expected}");
            }
        }
    }

    #[test]
    fn runs_that_are_too_long_for_the_text_forbid_nothing() {
        assert_eq!(repeated(&[1, 2], 4).count(), 0);
        assert_eq!(repeated(&[1, 2, 1], 1).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(repeated(&[], 1).count(), 0);
        assert_eq!(completes(&[5], &[5, 2]), None, "the word is longer than the text");
    }
}
