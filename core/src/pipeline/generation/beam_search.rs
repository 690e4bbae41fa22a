//! Beam search with the results of `transformers` 4.50 and later, down to the large negative numbers that it adds to
//! discarded beams' scores.

use super::{
    config::GenerationConfig,
    hypothesis::{Continuation, Generated},
    scores::{self, Candidate, Row, log_sum, no_token, top},
    settings::EarlyStopping,
};
use kivu_base::Result;

/// Added to discarded hypotheses' scores, which keeps their order.
const ASIDE: f32 = -1e9;

/// Beams for one source.
#[derive(Debug)]
pub struct BeamSearch<'a> {
    config: &'a GenerationConfig,
    max_length: usize,
    running: Vec<Hypothesis>,
    /// The best finished hypotheses, in descending order; always as many as there are beams.
    finished: Vec<Finished>,
    /// Whether a running hypothesis may still rank among the best.
    can_improve: bool,
    random: fastrand::Rng,
}

#[derive(Clone, Debug)]
struct Hypothesis {
    /// The start token included.
    ids: Vec<i64>,
    score: f32,
}

#[derive(Clone, Debug)]
struct Finished {
    hypothesis: Hypothesis,
    /// False for placeholders, which fill the list until enough hypotheses have ended.
    has_ended: bool,
}

impl<'a> BeamSearch<'a> {
    pub fn new(config: &'a GenerationConfig, max_length: usize, number: usize) -> Self {
        let aside = Hypothesis {
            ids: vec![config.start_id],
            score: ASIDE,
        };
        let mut running = vec![aside.clone(); config.num_beams];
        // All beams begin with the same token, so only the first counts at the first step.
        running[0].score = 0.0;
        Self {
            config,
            max_length,
            running,
            finished: vec![
                Finished {
                    hypothesis: aside,
                    has_ended: false
                };
                config.num_beams
            ],
            can_improve: true,
            random: config.random(number),
        }
    }

    /// Extends the beams by one token and returns their continuations; none if the search is finished.
    pub fn advance(&mut self, logits: &mut [f32], width: usize) -> Result<Vec<Continuation>> {
        let last_row = logits.len() / width - 1;
        let rows = self.rows(logits, width)?;
        let candidates = self.candidates(&rows);
        let is_over = |candidate: &Candidate| candidate.score == f32::NEG_INFINITY;
        if candidates.iter().all(is_over) && !self.finished.iter().any(|found| found.has_ended) {
            return Err(no_token());
        }
        let length = self.running[0].ids.len() + 1;
        let has_ended = |candidate: &Candidate| {
            length >= self.max_length || self.config.eos_ids.contains(&(candidate.token as i64))
        };
        let ended: Vec<bool> = candidates.iter().map(has_ended).collect();
        let extended: Vec<Hypothesis> = candidates
            .iter()
            .map(|candidate| self.extend(candidate))
            .collect();

        self.collect(&extended, &ended, length);
        let scores = extended.iter().zip(&ended);
        let scores = scores.map(|(hypothesis, ended)| hypothesis.score + ASIDE * f32::from(*ended));
        let mut order: Vec<(usize, f32)> = scores.enumerate().collect();
        order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        order.truncate(self.config.num_beams);
        let running = order.iter().map(|(index, score)| Hypothesis {
            score: *score,
            ..extended[*index].clone()
        });
        self.running = running.collect();
        self.can_improve &= self.improvement_is_possible(length);
        if !self.can_improve || self.is_settled() || ended.iter().all(|ended| *ended) {
            return Ok(Vec::new());
        }
        let continuation = |(index, _): &(usize, f32)| {
            let Candidate { beam, token, .. } = candidates[*index];
            Continuation {
                row: beam.min(last_row),
                token: token as i64,
            }
        };
        Ok(order.iter().map(continuation).collect())
    }

    /// Processed scores per beam. At the first step all beams share one row.
    fn rows<'b>(&self, logits: &'b mut [f32], width: usize) -> Result<Vec<Row<'b>>> {
        let mut processed = Vec::with_capacity(self.running.len());
        for (scores, hypothesis) in logits.chunks_exact_mut(width).zip(&self.running) {
            let (mut shift, mut bounds) = log_sum(scores)?;
            // Setting scores to minus infinity keeps their upper bounds valid.
            let is_computed = self
                .config
                .needs_log_probabilities(&hypothesis.ids, self.max_length);
            if is_computed {
                scores.iter_mut().for_each(|score| *score -= shift);
                shift = 0.0;
            }
            self.config
                .process(&hypothesis.ids, self.max_length, scores)?;
            if is_computed {
                bounds = scores::bounds(scores);
            }
            processed.push(Row {
                scores,
                bounds,
                shift,
                base: hypothesis.score,
            });
        }
        let last_row = processed.len() - 1;
        for hypothesis in &self.running[processed.len()..] {
            processed.push(Row {
                base: hypothesis.score,
                ..processed[last_row].clone()
            });
        }
        Ok(processed)
    }

    /// The best continuations, in descending order: enough that `num_beams` remain if the best ones all end.
    fn candidates(&mut self, rows: &[Row]) -> Vec<Candidate> {
        let count = (1 + self.config.eos_ids.len()).max(2) * self.config.num_beams;
        if !self.config.samples() {
            return top(rows, count);
        }
        // The top scores with Gumbel noise are a sample without replacement.
        let noisy: Vec<Vec<f32>> = rows
            .iter()
            .map(|row| {
                row.scores
                    .iter()
                    .map(|score| row.total(*score) + gumbel(&mut self.random))
                    .collect()
            })
            .collect();
        let noisy: Vec<Row> = noisy.iter().map(|scores| Row::of(scores)).collect();
        let mut drawn = top(&noisy, count);
        for candidate in &mut drawn {
            let row = &rows[candidate.beam];
            candidate.score = row.total(row.scores[candidate.token]);
        }
        drawn
    }

    fn extend(&self, candidate: &Candidate) -> Hypothesis {
        let mut ids = Vec::with_capacity(self.running[candidate.beam].ids.len() + 1);
        ids.extend_from_slice(&self.running[candidate.beam].ids);
        ids.push(candidate.token as i64);
        Hypothesis {
            ids,
            score: candidate.score,
        }
    }

    /// Adds hypotheses that have ended to the finished ones, and keeps the best.
    fn collect(&mut self, extended: &[Hypothesis], ended: &[bool], length: usize) {
        let settled = ASIDE * f32::from(self.is_settled());
        let divisor = self.divisor(length);
        for (index, (hypothesis, ended)) in extended.iter().zip(ended).enumerate() {
            // Candidates past the first `num_beams` can only continue.
            let has_ended = *ended && index < self.config.num_beams;
            // Added one by one, since `transformers` rounds after each addition.
            let score = hypothesis.score / divisor
                + settled
                + ASIDE * f32::from(!self.can_improve)
                + ASIDE * f32::from(!has_ended);
            let hypothesis = Hypothesis {
                score,
                ids: hypothesis.ids.clone(),
            };
            self.finished.push(Finished {
                hypothesis,
                has_ended,
            });
        }
        self.finished
            .sort_by(|a, b| b.hypothesis.score.total_cmp(&a.hypothesis.score));
        self.finished.truncate(self.config.num_beams);
    }

    /// Whether early stopping ends the search.
    fn is_settled(&self) -> bool {
        self.config.early_stopping == EarlyStopping::Full
            && self.finished.iter().all(|finished| finished.has_ended)
    }

    /// Length penalty for a hypothesis with `length` tokens, the start token included.
    fn divisor(&self, length: usize) -> f32 {
        ((length - 1) as f64).powf(f64::from(self.config.length_penalty)) as f32
    }

    /// Whether the best running hypothesis may become better than the worst finished one.
    fn improvement_is_possible(&self, length: usize) -> bool {
        let is_optimistic =
            self.config.early_stopping == EarlyStopping::Never && self.config.length_penalty > 0.0;
        let length = if is_optimistic {
            self.max_length
        } else {
            length
        };
        let best = self.running[0].score / self.divisor(length);
        let worst = self
            .finished
            .last()
            .map_or(ASIDE, |worst| worst.hypothesis.score);
        self.finished
            .iter()
            .any(|finished| best > if finished.has_ended { worst } else { ASIDE })
    }

    pub fn finish(self) -> Vec<Generated> {
        let best = self
            .finished
            .into_iter()
            .take(self.config.num_return_sequences);
        let generated = best.map(
            |Finished {
                 hypothesis: Hypothesis { mut ids, score },
                 ..
             }| Generated {
                ids: ids.split_off(1),
                score: Some(score),
            },
        );
        generated.collect()
    }
}

fn gumbel(random: &mut fastrand::Rng) -> f32 {
    let uniform = random.f64().max(f64::MIN_POSITIVE);
    -(-uniform.ln()).ln() as f32
}
