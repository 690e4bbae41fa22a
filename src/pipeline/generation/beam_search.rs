//! Beam search, as `transformers` does it since its version 4.50, down to the large negative numbers by which it
//! sets texts aside.

use super::{
    config::GenerationConfig,
    hypothesis::{Continuation, Generated},
    scores::{self, Candidate, Row, log_sum, top},
    settings::EarlyStopping,
};
use crate::error::Result;

/// The score of what is set aside. It is added, so that what is set aside keeps an order.
const ASIDE: f32 = -1e9;

/// The texts of one source that are followed side by side.
#[derive(Debug)]
pub(super) struct BeamSearch<'a> {
    search: &'a GenerationConfig,
    max_length: usize,
    running: Vec<Text>,
    /// The best so far, the best first; always as many as there are beams.
    finished: Vec<Finished>,
    /// Whether a running text may still come among the best.
    can_improve: bool,
    random: fastrand::Rng,
}

/// A text, with the decoder's first token.
#[derive(Clone, Debug)]
struct Text {
    ids: Vec<i64>,
    score: f32,
}

#[derive(Clone, Debug)]
struct Finished {
    text: Text,
    /// Whether it has ended, rather than hold the place of one that will.
    has_ended: bool,
}

impl<'a> BeamSearch<'a> {
    pub(super) fn new(search: &'a GenerationConfig, max_length: usize, number: usize) -> Self {
        let ids = vec![search.start];
        // All begin alike, so that only the first counts at first.
        let aside = Text { ids: ids.clone(), score: ASIDE };
        let mut running = vec![aside.clone(); search.beams];
        running[0].score = 0.0;
        let seed = search.sampling.and_then(|sampling| sampling.seed);
        let random = seed.map(|seed| fastrand::Rng::with_seed(seed.wrapping_add(number as u64)));
        Self {
            search,
            max_length,
            running,
            finished: vec![Finished { text: aside, has_ended: false }; search.beams],
            can_improve: true,
            random: random.unwrap_or_default(),
        }
    }

    /// Continues the texts by one token; gives those that go on, with the row that each came from.
    pub(super) fn advance(&mut self, logits: &mut [f32], width: usize) -> Result<Vec<Continuation>> {
        let last_row = logits.len() / width - 1;
        let rows = self.rows(logits, width)?;
        let candidates = self.candidates(&rows);
        let length = self.running[0].ids.len() + 1;
        let ends = |candidate: &Candidate| {
            length >= self.max_length || self.search.ends.contains(&(candidate.token as i64))
        };
        let ends: Vec<bool> = candidates.iter().map(ends).collect();
        let texts: Vec<Text> = candidates.iter().map(|candidate| self.continued(candidate)).collect();

        self.collect(&texts, &ends, length);
        let mut order: Vec<(usize, f32)> = texts
            .iter()
            .zip(&ends)
            .map(|(text, ends)| text.score + if *ends { ASIDE } else { 0.0 })
            .enumerate()
            .collect();
        order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        order.truncate(self.search.beams);
        self.running = order
            .iter()
            .map(|(place, score)| Text { ids: texts[*place].ids.clone(), score: *score })
            .collect();
        self.can_improve &= self.improvement_is_possible(length);
        if !self.goes_on(&ends) {
            return Ok(Vec::new());
        }
        Ok(order
            .iter()
            .map(|(place, _)| {
                let Candidate { beam, token, .. } = candidates[*place];
                Continuation { row: beam.min(last_row), token: token as i64 }
            })
            .collect())
    }

    /// The processed scores of each running text. At first there is one row for all, since all begin alike.
    fn rows<'b>(&self, logits: &'b mut [f32], width: usize) -> Result<Vec<Row<'b>>> {
        let mut processed = Vec::with_capacity(self.running.len());
        for (scores, text) in logits.chunks_exact_mut(width).zip(&self.running) {
            let (mut shift, mut bounds) = log_sum(scores)?;
            // What is only forbidden leaves bounds what they are.
            let reads_scores = self.search.reads_scores(&text.ids, self.max_length);
            if reads_scores {
                scores.iter_mut().for_each(|score| *score -= shift);
                shift = 0.0;
            }
            self.search.process(&text.ids, self.max_length, scores)?;
            if reads_scores {
                bounds = scores::bounds(scores);
            }
            processed.push(Row { scores, bounds, shift, base: text.score });
        }
        let last_row = processed.len() - 1;
        for text in &self.running[processed.len()..] {
            processed.push(Row { base: text.score, ..processed[last_row].clone() });
        }
        Ok(processed)
    }

    /// More continuations than beams, the best first, so that enough go on where the best all end.
    fn candidates(&mut self, rows: &[Row]) -> Vec<Candidate> {
        let count = (1 + self.search.ends.len()).max(2) * self.search.beams;
        if self.search.sampling.is_none() {
            return top(rows, count);
        }
        // Adding Gumbel noise and taking the best is drawing one after the other without putting back.
        let noisy: Vec<Vec<f32>> = rows
            .iter()
            .map(|row| row.scores.iter().map(|score| row.whole(*score) + gumbel(&mut self.random)).collect())
            .collect();
        let noisy: Vec<Row> = noisy.iter().map(|scores| Row::of(scores)).collect();
        let mut drawn = top(&noisy, count);
        for candidate in &mut drawn {
            let row = &rows[candidate.beam];
            candidate.score = row.whole(row.scores[candidate.token]);
        }
        drawn
    }

    fn continued(&self, candidate: &Candidate) -> Text {
        let mut ids = Vec::with_capacity(self.running[candidate.beam].ids.len() + 1);
        ids.extend_from_slice(&self.running[candidate.beam].ids);
        ids.push(candidate.token as i64);
        Text { ids, score: candidate.score }
    }

    /// Takes texts that have ended among the best, if they are.
    fn collect(&mut self, texts: &[Text], ends: &[bool], length: usize) {
        let is_settled = self.is_full() && self.search.early_stopping == EarlyStopping::Full;
        let set_aside = |condition: bool| if condition { ASIDE } else { 0.0 };
        let divisor = self.divisor(length);
        for (place, (text, ends)) in texts.iter().zip(ends).enumerate() {
            // Those beyond the number of beams are only there to go on.
            let has_ended = *ends && place < self.search.beams;
            let score = text.score / divisor
                + set_aside(is_settled)
                + set_aside(!self.can_improve)
                + set_aside(!has_ended);
            let text = Text { ids: text.ids.clone(), score };
            self.finished.push(Finished { text, has_ended });
        }
        self.finished.sort_by(|a, b| b.text.score.total_cmp(&a.text.score));
        self.finished.truncate(self.search.beams);
    }

    fn is_full(&self) -> bool {
        self.finished.iter().all(|finished| finished.has_ended)
    }

    /// What the score of a text of `length` tokens, the decoder's first included, is divided by.
    fn divisor(&self, length: usize) -> f32 {
        ((length - 1) as f64).powf(f64::from(self.search.length_penalty)) as f32
    }

    /// Whether the best running text may become better than the worst of a full set.
    fn improvement_is_possible(&self, length: usize) -> bool {
        let is_patient =
            self.search.early_stopping == EarlyStopping::Never && self.search.length_penalty > 0.0;
        let best = self.running[0].score / self.divisor(if is_patient { self.max_length } else { length });
        let worst = self.finished.last().map_or(ASIDE, |worst| worst.text.score);
        self.finished.iter().any(|finished| best > if finished.has_ended { worst } else { ASIDE })
    }

    fn goes_on(&self, ends: &[bool]) -> bool {
        let is_settled = self.is_full() && self.search.early_stopping == EarlyStopping::Full;
        self.can_improve && !is_settled && !ends.iter().all(|ends| *ends)
    }

    pub(super) fn finish(self) -> Vec<Generated> {
        let best = self.finished.into_iter().take(self.search.sequences);
        best.map(|Finished { mut text, .. }| Generated {
            ids: text.ids.split_off(1),
            score: Some(text.score),
        })
        .collect()
    }
}

fn gumbel(random: &mut fastrand::Rng) -> f32 {
    let uniform = random.f64().max(f64::MIN_POSITIVE);
    -(-uniform.ln()).ln() as f32
}
