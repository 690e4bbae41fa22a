//! Arithmetic on a vocabulary's scores, which are a hundred thousand for every row and step: loops that the
//! compiler turns into vector instructions.

use crate::error::{Error, Result};

/// Scores that are looked at together.
const LANES: usize = 16;
/// Sums of single precision are kept this short.
const CHUNK: usize = 4096;

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    /// The score of the whole text with this token.
    pub(super) score: f32,
    /// The text that it continues.
    pub(super) beam: usize,
    /// The token.
    pub(super) token: usize,
}

/// The scores of what may follow a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) scores: &'a [f32],
    /// What is yet to be taken from each score, which spares writing them all once more.
    pub(super) shift: f32,
    /// The score of the text, which each is added to.
    pub(super) base: f32,
}

impl Row<'_> {
    /// The score of the text with one more token, from the token's own.
    pub(super) fn whole(self, score: f32) -> f32 {
        score - self.shift + self.base
    }
}

/// Makes logarithms of probabilities of `scores`.
pub(super) fn log_softmax(scores: &mut [f32]) -> Result<()> {
    let shift = log_sum(scores)?;
    scores.iter_mut().for_each(|score| *score -= shift);
    Ok(())
}

/// What makes logarithms of probabilities of `scores` if taken from each: the logarithm of the sum of their powers.
pub(super) fn log_sum(scores: &[f32]) -> Result<f32> {
    let largest = largest(scores);
    let sum: f64 = scores.chunks(CHUNK).map(|chunk| f64::from(sum_of_powers(chunk, largest))).sum();
    let shift = largest + sum.ln() as f32;
    if !shift.is_finite() {
        return Err(not_a_number());
    }
    Ok(shift)
}

/// The place of the largest score, the first of equals.
pub(super) fn best(scores: &[f32]) -> Result<usize> {
    let is_nan = scores.iter().fold(0_u32, |count, score| count + u32::from(score.is_nan())) > 0;
    let largest = largest(scores);
    let place = scores.iter().position(|score| *score == largest);
    place.filter(|_| !is_nan).ok_or_else(not_a_number)
}

/// The error of a model that computes nonsense.
pub(super) fn not_a_number() -> Error {
    Error::Inference { message: "the model's output `logits` is not a number".into(), source: None }
}

pub(super) fn largest(scores: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (chunks, rest) = scores.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*score, *lane);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

fn sum_of_powers(scores: &[f32], largest: f32) -> f32 {
    let (chunks, rest) = scores.as_chunks::<LANES>();
    let mut lanes = [0.0_f32; LANES];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane += power(score - largest);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|score| power(score - largest)).sum::<f32>()
}

/// e to the power of `x`, which is not above 0, to within 2e-7 of itself; without branches or calls, which
/// `f32::exp` has, so that several are made at once.
fn power(x: f32) -> f32 {
    /// Adding it leaves the nearest whole number in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// The logarithm of 2 in two parts, the first of which has few digits: its multiples are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let rest = x - whole * LN_2[0] - whole * LN_2[1];
    let series = [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];
    let series = series.iter().fold(0.0, |sum, term| sum * rest + term);
    let fraction = series * rest * rest + rest + 1.0;
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    fraction * f32::from_bits(exponent)
}

/// The `count` best continuations of all beams, the best first; of equals, the one that comes first.
pub(super) fn top<'a>(beams: impl IntoIterator<Item = Row<'a>>, count: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
    for (beam, row) in beams.into_iter().enumerate() {
        for (number, chunk) in row.scores.chunks(8 * LANES).enumerate() {
            let is_full = best.len() == count;
            if is_full && best.last().is_some_and(|worst| row.whole(largest(chunk)) <= worst.score) {
                continue;
            }
            for (place, score) in chunk.iter().enumerate() {
                let token = number * 8 * LANES + place;
                let candidate = Candidate { score: row.whole(*score), beam, token };
                insert(&mut best, candidate, count);
            }
        }
    }
    best
}

fn insert(best: &mut Vec<Candidate>, candidate: Candidate, count: usize) {
    if best.len() == count && best.last().is_none_or(|worst| candidate.score <= worst.score) {
        return;
    }
    let place = best.partition_point(|better| better.score >= candidate.score);
    best.insert(place, candidate);
    best.truncate(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores without any order, more than a chunk of them.
    fn scores() -> Vec<f32> {
        (0..9001_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 16) as f32 / 4096.0 - 9.0).collect()
    }

    #[test]
    fn powers_are_those_of_the_library() {
        for step in 0..=8700 {
            let x = -(step as f32) / 100.0;
            assert!((power(x) / x.exp() - 1.0).abs() < 3e-7, "{x}");
        }
        assert!(power(-1e9) < 1e-30 && power(f32::NEG_INFINITY) < 1e-30);
    }

    #[test]
    fn logarithms_of_probabilities_sum_to_one() {
        let mut scores = scores();
        let [first, second] = [scores[0], scores[1]];
        log_softmax(&mut scores).unwrap();
        let sum: f64 = scores.iter().map(|score| f64::from(*score).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert!(((scores[0] - scores[1]) - (first - second)).abs() < 1e-5);
        for nonsense in [f32::NAN, f32::INFINITY] {
            assert!(log_softmax(&mut [0.0, nonsense]).is_err(), "{nonsense}");
        }
        assert!(log_softmax(&mut [f32::NEG_INFINITY; 3]).is_err());
    }

    #[test]
    fn the_best_come_first_and_of_equals_the_first() {
        let scores = scores();
        let mut places: Vec<usize> = (0..scores.len()).collect();
        places.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let row = |scores, base| Row { scores, shift: 0.0, base };
        let found = top([row(&scores, 0.0)], 7);
        assert_eq!(found.iter().map(|candidate| candidate.token).collect::<Vec<_>>(), places[..7]);
        assert_eq!(best(&scores).unwrap(), places[0]);

        let found = top([row(&[1.0, 3.0], 0.0), row(&[3.0, 1.0], 1.0)], 4);
        let found: Vec<_> = found.iter().map(|found| (found.score, found.beam, found.token)).collect();
        assert_eq!(found, [(4.0, 1, 0), (3.0, 0, 1), (2.0, 1, 1), (1.0, 0, 0)]);
        let equals = top([row(&[5.0; 400], 0.0)], 2);
        assert_eq!(equals.iter().map(|found| found.token).collect::<Vec<_>>(), [0, 1]);
        assert!(best(&[1.0, f32::NAN]).is_err());
    }
}
