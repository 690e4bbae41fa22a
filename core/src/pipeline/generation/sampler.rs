//! Greedy decoding and sampling: a source's sequences are independent.

use super::{
    config::GenerationConfig,
    hypothesis::{Continuation, Generated},
    scores::{best, largest, no_token, not_a_number},
};
use kivu_base::Result;

/// Sequences for one source.
#[derive(Debug)]
pub struct Sampler<'a> {
    config: &'a GenerationConfig,
    max_length: usize,
    /// Token ids per sequence, the start token included.
    sequences: Vec<Vec<i64>>,
    /// Unfinished sequences, in row order.
    live: Vec<usize>,
    random: fastrand::Rng,
}

impl<'a> Sampler<'a> {
    pub fn new(config: &'a GenerationConfig, max_length: usize, number: usize) -> Self {
        Self {
            config,
            max_length,
            sequences: vec![vec![config.start_id]; config.num_return_sequences],
            live: (0..config.num_return_sequences).collect(),
            random: config.random(number),
        }
    }

    /// Appends one token to each sequence. Returns continuations for unfinished sequences.
    pub fn advance(&mut self, logits: &mut [f32], width: usize) -> Result<Vec<Continuation>> {
        let mut rows: Vec<&mut [f32]> = logits.chunks_exact_mut(width).collect();
        let (mut next, mut live) = (Vec::with_capacity(self.live.len()), Vec::new());
        let mut processed = None;
        for (index, number) in self.live.iter().enumerate() {
            // At the first step all sequences share one row.
            let row = index.min(rows.len() - 1);
            let (sequence, scores) = (&mut self.sequences[*number], &mut *rows[row]);
            if processed != Some(row) {
                self.config.process(sequence, self.max_length, scores)?;
                if scores.iter().all(|score| *score == f32::NEG_INFINITY) {
                    return Err(no_token());
                }
                processed = Some(row);
            }
            let token = if self.config.samples() {
                draw(scores, self.random.f32())?
            } else {
                best(scores)?
            };
            let token = token as i64;
            sequence.push(token);
            if !self.config.eos_ids.contains(&token) && sequence.len() < self.max_length {
                next.push(Continuation { row, token });
                live.push(*number);
            }
        }
        self.live = live;
        Ok(next)
    }

    pub fn finish(self) -> Vec<Generated> {
        let sequences = self.sequences.into_iter();
        sequences
            .map(|mut ids| Generated {
                ids: ids.split_off(1),
                score: None,
            })
            .collect()
    }
}

/// Draws the token at quantile `point` (0 to 1) in the distribution with logits `scores`.
fn draw(scores: &[f32], point: f32) -> Result<usize> {
    let largest = largest(scores);
    if !largest.is_finite() {
        return Err(not_a_number());
    }
    let power = |score: &f32| f64::from(score - largest).exp();
    let sum: f64 = scores.iter().map(power).sum();
    if !sum.is_finite() {
        return Err(not_a_number());
    }
    let (mut left, mut drawn) = (f64::from(point) * sum, 0);
    for (token, score) in scores
        .iter()
        .enumerate()
        .filter(|(_, score)| **score > f32::NEG_INFINITY)
    {
        drawn = token;
        left -= power(score);
        if left < 0.0 {
            break;
        }
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pipeline::generation::{
        GenerationOptions, GenerationSettings, beam_search::BeamSearch, config::Bounds,
    };

    #[test]
    fn settings_that_leave_no_token_are_refused() {
        let settings = GenerationSettings {
            decoder_start_token_id: 2,
            eos_token_ids: vec![2],
            pad_token_id: 1,
            length_factor: None,
            defaults: GenerationOptions::default(),
        };
        let bounds = Bounds {
            vocabulary: 4,
            max_length: 8,
        };
        let one =
            json!({ "max_new_tokens": 1, "forced_eos_token_id": 2, "begin_suppress_tokens": [2] });
        let all = json!({ "suppress_tokens": [0, 1, 2, 3] });
        for options in [one, all] {
            for (name, value) in [
                ("num_beams", json!(1)),
                ("num_beams", json!(3)),
                ("do_sample", json!(true)),
            ] {
                let mut options = options.clone();
                options[name] = value;
                let given = serde_json::from_value(options.clone()).unwrap();
                let config = GenerationConfig::new(&settings, &given, bounds).unwrap();
                let (length, mut logits) = (config.max_length(1), [0.5, 1.0, 2.0, -1.0]);
                let advanced = if config.num_beams > 1 {
                    BeamSearch::new(&config, length, 0).advance(&mut logits, 4)
                } else {
                    Sampler::new(&config, length, 0).advance(&mut logits, 4)
                };
                let error = advanced.unwrap_err().to_string();
                let expected = "the generation settings forbid all tokens that could come next; \
                                forbid or force fewer tokens";
                assert_eq!(error, expected, "{options}");
            }
        }
    }

    #[test]
    fn tokens_are_sampled_by_their_probability() {
        let scores = [
            f32::NEG_INFINITY,
            0.25_f32.ln(),
            0.75_f32.ln(),
            f32::NEG_INFINITY,
        ];
        let mut random = fastrand::Rng::with_seed(7);
        let ones = (0..10_000)
            .filter(|_| draw(&scores, random.f32()).unwrap() == 1)
            .count();
        assert!((2_400..2_600).contains(&ones), "{ones}");
        assert_eq!(
            [draw(&scores, 0.0).unwrap(), draw(&scores, 1.0).unwrap()],
            [1, 2]
        );
        assert!(draw(&[f32::NAN, 1.0], 0.5).is_err());
    }
}
