//! One text at a time: the likeliest token, or tokens drawn by their probability.

use super::{
    config::GenerationConfig,
    hypothesis::{Continuation, Generated},
    scores::{best, largest, not_a_number},
};
use crate::error::Result;

/// The texts of one source, each on its own.
#[derive(Debug)]
pub(super) struct Sampler<'a> {
    search: &'a GenerationConfig,
    max_length: usize,
    /// The texts, each with the decoder's first token.
    texts: Vec<Vec<i64>>,
    /// The texts that go on, by row.
    live: Vec<usize>,
    random: fastrand::Rng,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(search: &'a GenerationConfig, max_length: usize, number: usize) -> Self {
        let seed = search.sampling.and_then(|sampling| sampling.seed);
        let random = seed.map(|seed| fastrand::Rng::with_seed(seed.wrapping_add(number as u64)));
        Self {
            search,
            max_length,
            texts: vec![vec![search.start]; search.sequences],
            live: (0..search.sequences).collect(),
            random: random.unwrap_or_default(),
        }
    }

    /// Continues each text by one token; gives those that go on, with the row that each came from.
    pub(super) fn advance(&mut self, logits: &mut [f32], width: usize) -> Result<Vec<Continuation>> {
        let mut rows: Vec<&mut [f32]> = logits.chunks_exact_mut(width).collect();
        let (mut next, mut live) = (Vec::with_capacity(self.live.len()), Vec::new());
        let mut processed = None;
        for (place, number) in self.live.iter().enumerate() {
            // All texts begin in one row.
            let row = place.min(rows.len() - 1);
            let (text, scores) = (&mut self.texts[*number], &mut *rows[row]);
            if processed != Some(row) {
                self.search.process(text, self.max_length, scores)?;
                processed = Some(row);
            }
            let token =
                if self.search.sampling.is_some() { draw(scores, self.random.f32())? } else { best(scores)? };
            let token = token as i64;
            text.push(token);
            if !self.search.ends.contains(&token) && text.len() < self.max_length {
                next.push(Continuation { row, token });
                live.push(*number);
            }
        }
        self.live = live;
        Ok(next)
    }

    pub(super) fn finish(self) -> Vec<Generated> {
        let texts = self.texts.into_iter();
        texts.map(|mut text| Generated { ids: text.split_off(1), score: None }).collect()
    }
}

/// The token at the place `point`, of 0 to 1, of all probabilities in a row.
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
    for (token, score) in scores.iter().enumerate().filter(|(_, score)| **score > f32::NEG_INFINITY) {
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
    use super::*;

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let scores = [f32::NEG_INFINITY, 0.25_f32.ln(), 0.75_f32.ln(), f32::NEG_INFINITY];
        let mut random = fastrand::Rng::with_seed(7);
        let ones = (0..10_000).filter(|_| draw(&scores, random.f32()).unwrap() == 1).count();
        assert!((2_400..2_600).contains(&ones), "{ones}");
        assert_eq!([draw(&scores, 0.0).unwrap(), draw(&scores, 1.0).unwrap()], [1, 2]);
        assert!(draw(&[f32::NAN, 1.0], 0.5).is_err());
    }
}
