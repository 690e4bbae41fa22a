//! Logits processors and warpers from `transformers`, in its order and with its corner cases.

use std::collections::BTreeSet;

use super::{
    config::{GenerationConfig, Sampling},
    scores::{largest, log_softmax},
};
use kivu_base::{Result, random};

const NEVER: f32 = f32::NEG_INFINITY;

impl GenerationConfig {
    /// Whether [`process`](Self::process) computes with scores, rather than only setting some to minus infinity. Beam
    /// scores must then be log-probabilities beforehand.
    pub fn needs_log_probabilities(&self, ids: &[i64], max_length: usize) -> bool {
        self.repetition_penalty != 1.0
            || self.samples()
            || self.renormalize_logits
            || !self.forced(ids, max_length).is_empty()
    }

    /// The only tokens allowed next; empty if all are allowed.
    fn forced(&self, ids: &[i64], max_length: usize) -> &[i64] {
        match ids.len() {
            length if length + 1 == max_length && !self.forced_eos_token_id.is_empty() => {
                &self.forced_eos_token_id
            }
            1 => self.forced_bos_token_id.as_slice(),
            _ => &[],
        }
    }

    /// Processes the next token's scores after `ids`, which include the start token, in a sequence with at
    /// most `max_length` tokens.
    pub fn process(&self, ids: &[i64], max_length: usize, scores: &mut [f32]) -> Result<()> {
        if self.repetition_penalty != 1.0 {
            penalize_repetition(ids, self.repetition_penalty, scores);
        }
        if self.no_repeat_ngram_size > 0 {
            forbid(repeated(ids, self.no_repeat_ngram_size), scores);
        }
        forbid(
            self.bad_words_ids
                .iter()
                .filter_map(|word| completes(ids, word)),
            scores,
        );
        if ids.len() < self.min_length {
            forbid(self.eos_ids.iter().copied(), scores);
        }
        let forced = self.forced(ids, max_length);
        if !forced.is_empty() {
            scores.fill(NEVER);
            forced.iter().for_each(|token| set(scores, *token, |_| 0.0));
        }
        forbid(self.suppress_tokens.iter().copied(), scores);
        if ids.len() == 1 + usize::from(self.forced_bos_token_id.is_some()) {
            forbid(self.begin_suppress_tokens.iter().copied(), scores);
        }
        if let Some(sampling) = &self.sampling {
            // A beam needs a second token if its best one ends the sequence.
            sampling.warp(
                if self.num_beams > 1 {
                    self.eos_ids.len() + 1
                } else {
                    1
                },
                scores,
            );
        }
        // Greedy decoding depends only on score order.
        if self.renormalize_logits && (self.num_beams > 1 || self.samples()) {
            log_softmax(scores)?;
        }
        Ok(())
    }

    /// A generator for the request's `number`-th source. Different seeds give unrelated numbers.
    pub fn random(&self, number: usize) -> fastrand::Rng {
        let seed = self.sampling.and_then(|sampling| sampling.seed);
        let of_seed = |seed| {
            fastrand::Rng::with_seed(seed)
                .u64(..)
                .wrapping_add(number as u64)
        };
        fastrand::Rng::with_seed(seed.map_or_else(random::seed, of_seed))
    }
}

impl Sampling {
    /// Applies temperature and all limits, and keeps at least `min_kept` tokens.
    fn warp(&self, min_kept: usize, scores: &mut [f32]) {
        if self.temperature != 1.0 {
            let largest = largest(scores);
            // A tiny temperature makes quotients infinite: only differences from the best score can be divided.
            let origin = if largest.is_finite() && !(largest / self.temperature).is_finite() {
                largest
            } else {
                0.0
            };
            scores
                .iter_mut()
                .for_each(|score| *score = (*score - origin) / self.temperature);
        }
        if self.top_k > 0 {
            keep_top_k(self.top_k.max(min_kept), scores);
        }
        if self.top_p < 1.0 {
            keep_top_p(self.top_p, min_kept, scores);
        }
        if let Some(share) = self.min_p {
            keep_min_p(share, min_kept, scores);
        }
        if let Some(mass) = self.typical_p {
            keep_typical(mass, min_kept, scores);
        }
        if let Some(least) = self.epsilon_cutoff {
            keep_probable(&probabilities(scores), least, min_kept, scores);
        }
        if let Some(epsilon) = self.eta_cutoff {
            let shares = probabilities(scores);
            let least = epsilon.min(epsilon.sqrt() * (-entropy(&shares)).exp());
            keep_probable(&shares, least, min_kept, scores);
        }
    }
}

/// Replaces a token's score, if it has one.
fn set(scores: &mut [f32], token: i64, change: impl FnOnce(f32) -> f32) {
    if let Some(score) = usize::try_from(token)
        .ok()
        .and_then(|token| scores.get_mut(token))
    {
        *score = change(*score);
    }
}

fn forbid(tokens: impl IntoIterator<Item = i64>, scores: &mut [f32]) {
    tokens
        .into_iter()
        .for_each(|token| set(scores, token, |_| NEVER));
}

/// Penalizes each token in the sequence once, the start token included.
fn penalize_repetition(ids: &[i64], penalty: f32, scores: &mut [f32]) {
    for token in ids.iter().collect::<BTreeSet<_>>() {
        // A tiny penalty prefers a token to all others, and does not make its score infinite.
        set(scores, *token, |score| {
            if score < 0.0 {
                score * penalty
            } else {
                (score / penalty).min(f32::MAX)
            }
        });
    }
}

/// Tokens that would repeat an n-gram with `size` tokens.
fn repeated(ids: &[i64], size: usize) -> impl Iterator<Item = i64> {
    let last = if ids.len() + 1 < size {
        None
    } else {
        ids.get(ids.len() + 1 - size..)
    };
    let ngrams = ids.windows(size);
    ngrams
        .filter(move |ngram| last.is_some_and(|last| ngram.starts_with(last)))
        .map(move |ngram| ngram[size - 1])
}

/// The last token of `word`, if the sequence ends with the tokens before it.
fn completes(ids: &[i64], word: &[i64]) -> Option<i64> {
    let (last, before) = word.split_last()?;
    // As in `transformers`, the sequence must be as long as the whole word.
    (before.is_empty() || (word.len() <= ids.len() && ids.ends_with(before))).then_some(*last)
}

/// Keeps the `count` best scores, and ties with the last.
fn keep_top_k(count: usize, scores: &mut [f32]) {
    if count >= scores.len() {
        return;
    }
    let mut sorted = scores.to_vec();
    let (_, last, _) = sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    let last = *last;
    scores
        .iter_mut()
        .filter(|score| **score < last)
        .for_each(|score| *score = NEVER);
}

/// Keeps the best scores whose probabilities sum up to `mass`, and at least `min_kept`.
fn keep_top_p(mass: f32, min_kept: usize, scores: &mut [f32]) {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    let largest = largest(scores);
    let powers: Vec<f32> = order
        .iter()
        .map(|token| (scores[*token] - largest).exp())
        .collect();
    let sum: f32 = powers.iter().sum();
    let mut below = 0.0;
    for (token, power) in order[..order.len().saturating_sub(min_kept)]
        .iter()
        .zip(powers)
    {
        below += power / sum;
        if below > 1.0 - mass {
            break;
        }
        scores[*token] = NEVER;
    }
}

/// Probability per token.
fn probabilities(scores: &[f32]) -> Vec<f32> {
    let largest = largest(scores);
    let powers: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = powers.iter().map(|power| f64::from(*power)).sum();
    powers
        .into_iter()
        .map(|power| (f64::from(power) / sum) as f32)
        .collect()
}

/// Entropy in nats.
fn entropy(probabilities: &[f32]) -> f32 {
    let possible = probabilities.iter().filter(|share| **share > 0.0);
    possible.map(|share| -share * share.ln()).sum()
}

/// Keeps tokens whose probability is at least `share` times the highest, and at least `min_kept` tokens.
fn keep_min_p(share: f32, min_kept: usize, scores: &mut [f32]) {
    let probabilities = probabilities(scores);
    let least = share * largest(&probabilities);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let improbable = order
        .into_iter()
        .skip(min_kept)
        .filter(|token| probabilities[*token] < least);
    improbable.for_each(|token| scores[token] = NEVER);
}

/// Keeps tokens with at least the probability `least`, and at least the `min_kept` best.
fn keep_probable(probabilities: &[f32], least: f32, min_kept: usize, scores: &mut [f32]) {
    let mut sorted = scores.to_vec();
    let last = min_kept.min(sorted.len()).saturating_sub(1);
    let (_, last, _) = sorted.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
    let last = *last;
    for (score, probability) in scores.iter_mut().zip(probabilities) {
        if *probability < least && *score < last {
            *score = NEVER;
        }
    }
}

/// Locally typical sampling: keeps the tokens whose information is nearest to the entropy and whose probabilities sum up
/// to `mass`, and at least `min_kept`.
fn keep_typical(mass: f32, min_kept: usize, scores: &mut [f32]) {
    let probabilities = probabilities(scores);
    let entropy = entropy(&probabilities);
    let distances: Vec<f32> = probabilities
        .iter()
        .map(|share| (-share.ln() - entropy).abs())
        .collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| distances[*a].total_cmp(&distances[*b]));
    let mut sum = 0.0;
    let within = order.iter().take_while(|token| {
        sum += probabilities[**token];
        sum < mass
    });
    let last = distances[order[within.count().min(order.len() - 1)]];
    let atypical = order
        .into_iter()
        .skip(min_kept)
        .filter(|token| distances[*token] > last);
    atypical.for_each(|token| scores[token] = NEVER);
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    const NONE: Sampling = Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: None,
        typical_p: None,
        epsilon_cutoff: None,
        eta_cutoff: None,
        seed: None,
    };
    use crate::pipeline::generation::{GenerationOptions, GenerationSettings, config::Bounds};

    fn settings() -> GenerationSettings {
        GenerationSettings {
            decoder_start_token_id: 2,
            eos_token_ids: vec![2],
            pad_token_id: 1,
            length_factor: None,
            defaults: GenerationOptions::default(),
        }
    }

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
        let sampling = |temperature, top_k, top_p| Sampling {
            temperature,
            top_k,
            top_p,
            ..NONE
        };
        match kind {
            "temperature" => sampling(0.7, 0, 1.0).warp(1, scores),
            "top_k" => sampling(1.0, 4, 1.0).warp(1, scores),
            "top_k_beams" => sampling(1.0, 1, 1.0).warp(2, scores),
            "top_p" => sampling(1.0, 0, 0.8).warp(1, scores),
            "top_p_small" => sampling(1.0, 0, 0.01).warp(1, scores),
            "top_p_beams" => sampling(1.0, 0, 0.01).warp(2, scores),
            "min_p" => Sampling {
                min_p: Some(0.3),
                ..NONE
            }
            .warp(1, scores),
            "min_p_beams" => Sampling {
                min_p: Some(1.0),
                ..NONE
            }
            .warp(2, scores),
            "typical_p" => Sampling {
                typical_p: Some(0.6),
                ..NONE
            }
            .warp(1, scores),
            "typical_p_beams" => Sampling {
                typical_p: Some(0.01),
                ..NONE
            }
            .warp(2, scores),
            "epsilon_cutoff" => Sampling {
                epsilon_cutoff: Some(0.05),
                ..NONE
            }
            .warp(1, scores),
            "epsilon_cutoff_beams" => Sampling {
                epsilon_cutoff: Some(0.9),
                ..NONE
            }
            .warp(2, scores),
            "eta_cutoff" => Sampling {
                eta_cutoff: Some(0.1),
                ..NONE
            }
            .warp(1, scores),
            "all" => {
                let limits = Sampling {
                    min_p: Some(0.02),
                    typical_p: Some(0.95),
                    ..NONE
                };
                let limits = Sampling {
                    epsilon_cutoff: Some(0.01),
                    eta_cutoff: Some(0.05),
                    ..limits
                };
                Sampling {
                    temperature: 0.9,
                    top_k: 10,
                    top_p: 0.98,
                    ..limits
                }
                .warp(1, scores);
            }
            "forced_eos_token_id" => {
                let settings = GenerationSettings {
                    decoder_start_token_id: 3,
                    ..settings()
                };
                let options =
                    serde_json::from_str(r#"{"forced_eos_token_id": [2, 7], "max_length": 7}"#)
                        .unwrap();
                let bounds = Bounds {
                    vocabulary: 12,
                    max_length: 64,
                };
                let config = GenerationConfig::new(&settings, &options, bounds).unwrap();
                config.process(ids, 7, scores).unwrap();
            }
            "repetition_penalty" => penalize_repetition(ids, 1.7, scores),
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
    fn every_processor_matches_transformers() {
        let goldens = include_str!("../../../../tests/fixtures/goldens/processors.json");
        let goldens: Goldens = serde_json::from_str(goldens).unwrap();
        assert_eq!(goldens.cases.len(), 19);
        for Case {
            kind,
            ids,
            mut scores,
            processed,
        } in goldens.cases
        {
            process(&kind, &ids, &mut scores);
            for (place, (found, expected)) in scores.iter().zip(processed).enumerate() {
                let expected = expected.unwrap_or(NEVER);
                let is_near = (found - expected).abs() < 1e-5 || *found == expected;
                assert!(
                    is_near,
                    "{kind}, token {place}: {found} instead of {expected}"
                );
            }
        }
    }

    #[test]
    fn tiny_numbers_leave_a_best_token() {
        for scores in [
            [1.0, 5.0, 3.0, NEVER],
            [-7.0, -0.5, -3.0, NEVER],
            [-2.0, 0.0, -1.0, NEVER],
        ] {
            let mut warped = scores;
            Sampling {
                temperature: 1e-45,
                ..NONE
            }
            .warp(1, &mut warped);
            assert_eq!(warped, [NEVER, 0.0, NEVER, NEVER], "{scores:?}");
        }
        let mut scores = [2.0, 1.0, -1.0];
        penalize_repetition(&[1], 1e-45, &mut scores);
        assert_eq!(scores, [2.0, f32::MAX, -1.0]);
    }

    #[test]
    fn ngrams_longer_than_the_sequence_forbid_nothing() {
        assert_eq!(repeated(&[1, 2], 4).count(), 0);
        assert_eq!(repeated(&[1, 2, 1], 1).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(repeated(&[], 1).count(), 0);
        assert_eq!(
            completes(&[5], &[5, 2]),
            None,
            "the word is longer than the sequence"
        );
    }
}
