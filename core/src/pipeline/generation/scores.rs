//! Arithmetic on vocabulary scores, some 100,000 per row and step: loops that the compiler vectorizes.

use multiversion::multiversion;

use kivu_base::{Error, Result};

/// Scores per vector iteration.
const LANES: usize = 16;
/// Scores that share an upper bound.
const BLOCK: usize = 8 * LANES;
/// Scores per single-precision sum, few enough for its accuracy and for the L1 cache.
const CHUNK: usize = 32 * BLOCK;

/// A possible beam continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Hypothesis score with this token.
    pub score: f32,
    pub beam: usize,
    pub token: usize,
}

/// Scores for the tokens that may continue a hypothesis.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    pub scores: &'a [f32],
    /// Upper bound per score block.
    pub bounds: Vec<f32>,
    /// To be subtracted from each score, which saves one write pass.
    pub shift: f32,
    /// Hypothesis score so far.
    pub base: f32,
}

impl<'a> Row<'a> {
    /// A row whose scores are totals already.
    pub fn of(scores: &'a [f32]) -> Self {
        Self {
            scores,
            bounds: bounds(scores),
            shift: 0.0,
            base: 0.0,
        }
    }

    /// Hypothesis score with a token that has this score.
    pub fn total(&self, score: f32) -> f32 {
        score - self.shift + self.base
    }
}

/// Maximum per block.
pub fn bounds(scores: &[f32]) -> Vec<f32> {
    scores.chunks(BLOCK).map(largest).collect()
}

pub fn log_softmax(scores: &mut [f32]) -> Result<()> {
    let (shift, _) = log_sum(scores)?;
    scores.iter_mut().for_each(|score| *score -= shift);
    Ok(())
}

/// Log-sum-exp, which turns scores into log-probabilities when subtracted, and the block bounds.
///
/// One pass over memory: each chunk's exponentials are relative to its own maximum.
pub fn log_sum(scores: &[f32]) -> Result<(f32, Vec<f32>)> {
    let mut bounds = Vec::with_capacity(scores.len().div_ceil(BLOCK));
    let mut sums = Vec::with_capacity(scores.len().div_ceil(CHUNK));
    for chunk in scores.chunks(CHUNK) {
        sums.push(sum_of_chunk(chunk, &mut bounds));
    }
    let largest = largest(&bounds);
    let weighted =
        |(highest, sum): &(f32, f32)| f64::from(*sum) * f64::from(highest - largest).exp();
    let shift = largest + sums.iter().map(weighted).sum::<f64>().ln() as f32;
    if shift.is_finite() {
        Ok((shift, bounds))
    } else {
        Err(not_a_number())
    }
}

/// Index of the maximum; ties go to the first.
pub fn best(scores: &[f32]) -> Result<usize> {
    let is_nan = scores
        .iter()
        .fold(0_u32, |count, score| count + u32::from(score.is_nan()))
        > 0;
    let largest = largest(scores);
    let index = scores.iter().position(|score| *score == largest);
    index.filter(|_| !is_nan).ok_or_else(not_a_number)
}

/// The error for settings that forbid all tokens, of which the first would be taken.
pub fn no_token() -> Error {
    Error::invalid("the generation settings forbid all tokens that could come next")
        .with_hint("forbid or force fewer tokens")
}

pub fn not_a_number() -> Error {
    Error::inference("the model's output `logits` is not a number")
}

#[inline(always)]
pub fn largest(scores: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (chunks, rest) = scores.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*score, *lane);
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, larger)
}

/// A chunk's maximum and its sum of exponentials relative to it; appends its block bounds.
///
/// The hot loop in beam search: every score for every beam at every step. Each target computes the same sums, four
/// scores at a time on any processor and eight with AVX2.
#[multiversion(targets("x86_64+avx2"))]
fn sum_of_chunk(chunk: &[f32], bounds: &mut Vec<f32>) -> (f32, f32) {
    let before = bounds.len();
    bounds.extend(chunk.chunks(BLOCK).map(largest));
    // A chunk with only minus infinity has a finite maximum and negligible exponentials.
    let highest = largest(&bounds[before..]).max(f32::MIN);
    (highest, sum_of_powers(chunk, highest))
}

#[inline(always)]
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

/// e^x for x ≤ 0, with a relative error below 2e-7. Unlike `f32::exp` it has no branches or calls, so that the
/// compiler vectorizes it.
#[inline(always)]
fn power(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has few digits, so that its multiples are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let rest = x - whole * LN_2[0] - whole * LN_2[1];
    let series = [
        1.987_569_2e-4,
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_66,
        0.5,
    ];
    let series = series.iter().fold(0.0, |sum, term| sum * rest + term);
    let fraction = series * rest * rest + rest + 1.0;
    let exponent = rounded
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127)
        << 23;
    fraction * f32::from_bits(exponent)
}

/// The `count` best continuations across all beams, in descending order; ties keep the input order.
pub fn top(beams: &[Row], count: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
    for (beam, row) in beams.iter().enumerate() {
        for (number, (block, bound)) in row.scores.chunks(BLOCK).zip(&row.bounds).enumerate() {
            let is_full = best.len() == count;
            if is_full
                && best
                    .last()
                    .is_some_and(|worst| row.total(*bound) <= worst.score)
            {
                continue;
            }
            for (index, score) in block.iter().enumerate() {
                let candidate = Candidate {
                    score: row.total(*score),
                    beam,
                    token: number * BLOCK + index,
                };
                insert(&mut best, candidate, count);
            }
        }
    }
    best
}

fn insert(best: &mut Vec<Candidate>, candidate: Candidate, count: usize) {
    if best.len() == count
        && best
            .last()
            .is_none_or(|worst| candidate.score <= worst.score)
    {
        return;
    }
    let index = best.partition_point(|better| better.score >= candidate.score);
    best.insert(index, candidate);
    best.truncate(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unordered scores, more than a chunk.
    fn scores() -> Vec<f32> {
        (0..9001_u32)
            .map(|place| (place.wrapping_mul(2_654_435_761) >> 16) as f32 / 4096.0 - 9.0)
            .collect()
    }

    #[test]
    fn powers_match_the_standard_library() {
        for step in 0..=8700 {
            let x = -(step as f32) / 100.0;
            assert!((power(x) / x.exp() - 1.0).abs() < 3e-7, "{x}");
        }
        assert!(power(-1e9) < 1e-30 && power(f32::NEG_INFINITY) < 1e-30);
    }

    #[test]
    fn log_probabilities_sum_to_one() {
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
        // Any number of minus-infinity scores adds nothing, and bounds stay valid.
        scores[CHUNK..2 * CHUNK].fill(f32::NEG_INFINITY);
        let (shift, bounds) = log_sum(&scores).unwrap();
        let allowed = scores.iter().filter(|score| score.is_finite());
        let sum: f64 = allowed.map(|score| f64::from(score - shift).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert_eq!(bounds, super::bounds(&scores));
    }

    #[test]
    fn top_is_in_descending_order_and_keeps_the_first_of_equals() {
        let scores = scores();
        let mut places: Vec<usize> = (0..scores.len()).collect();
        places.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let found = top(&[Row::of(&scores)], 7);
        assert_eq!(
            found
                .iter()
                .map(|candidate| candidate.token)
                .collect::<Vec<_>>(),
            places[..7]
        );
        assert_eq!(best(&scores).unwrap(), places[0]);

        let found = top(
            &[
                Row::of(&[1.0, 3.0]),
                Row {
                    base: 1.0,
                    ..Row::of(&[3.0, 1.0])
                },
            ],
            4,
        );
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.score, found.beam, found.token))
            .collect();
        assert_eq!(found, [(4.0, 1, 0), (3.0, 0, 1), (2.0, 1, 1), (1.0, 0, 0)]);
        let equals = top(&[Row::of(&[5.0; 400])], 2);
        assert_eq!(
            equals.iter().map(|found| found.token).collect::<Vec<_>>(),
            [0, 1]
        );
        assert!(best(&[1.0, f32::NAN]).is_err());
    }
}
