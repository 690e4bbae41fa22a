//! Agreement of scores with what is expected: rank correlation, and accuracy at the best threshold.

/// Spearman's rank correlation; `None` if all values of either side are equal.
pub fn spearman(scores: &[f32], expected: &[f64]) -> Option<f64> {
    let scores: Vec<f64> = scores.iter().copied().map(f64::from).collect();
    pearson(&ranks(&scores), &ranks(expected))
}

/// Ranks from 1; equal values share their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|left, right| values[*left].total_cmp(&values[*right]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|left, right| values[*left] == values[*right]) {
        let rank = first as f64 + (equal.len() + 1) as f64 / 2.0;
        equal.iter().for_each(|place| ranks[*place] = rank);
        first += equal.len();
    }
    ranks
}

fn pearson(left: &[f64], right: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (left_mean, right_mean) = (mean(left), mean(right));
    let (mut product, mut squares) = (0.0, [0.0; 2]);
    for (left, right) in left.iter().zip(right) {
        let (left, right) = (left - left_mean, right - right_mean);
        product += left * right;
        squares[0] += left * left;
        squares[1] += right * right;
    }
    let length = (squares[0] * squares[1]).sqrt();
    (length > 0.0).then(|| product / length)
}

/// Accuracy of "positive from this score on" with the best threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestThreshold {
    pub accuracy: f64,
    /// Halfway between the scores around it.
    pub threshold: f32,
}

/// Finds the threshold between two different scores that separates positive from other pairs best; `None` if all scores
/// are equal.
pub fn best_threshold(scores: &[f32], is_positive: &[bool]) -> Option<BestThreshold> {
    let mut sorted: Vec<(f32, bool)> = scores
        .iter()
        .copied()
        .zip(is_positive.iter().copied())
        .collect();
    sorted.sort_by(|left, right| right.0.total_cmp(&left.0));
    // With no pair above the threshold, all that are not positive are right.
    let mut right = is_positive
        .iter()
        .filter(|is_positive| !**is_positive)
        .count();
    let mut best: Option<BestThreshold> = None;
    for pair in sorted.windows(2) {
        let [(score, is_positive), (next, _)] = [pair[0], pair[1]];
        if is_positive {
            right += 1
        } else {
            right -= 1
        }
        let accuracy = right as f64 / scores.len() as f64;
        if score > next && best.is_none_or(|best| accuracy > best.accuracy) {
            best = Some(BestThreshold {
                accuracy,
                threshold: score.midpoint(next),
            });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::quality::chrf::Chrf;

    /// Values from scipy, sacrebleu and sentence-transformers, by `tests/fixtures/make_quality.py`.
    #[derive(Deserialize)]
    struct Golden {
        spearman: Vec<Correlated>,
        thresholds: Vec<Separated>,
        chrf: Vec<Corpus>,
    }

    #[derive(Deserialize)]
    struct Correlated {
        scores: Vec<f32>,
        expected: Vec<f64>,
        spearman: Option<f64>,
    }

    #[derive(Deserialize)]
    struct Separated {
        scores: Vec<f32>,
        labels: Vec<u8>,
        accuracy: f64,
        threshold: f64,
    }

    #[derive(Deserialize)]
    struct Corpus {
        texts: Vec<String>,
        references: Vec<String>,
        score: f64,
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../../tests/fixtures/goldens/quality.json")).unwrap()
    }

    #[test]
    fn rank_correlations_equal_scipys() {
        let golden = golden().spearman;
        assert!(golden.len() >= 10 && golden.iter().any(|case| case.spearman.is_none()));
        for case in golden {
            let found = spearman(&case.scores, &case.expected);
            match (found, case.spearman) {
                (Some(found), Some(expected)) => {
                    assert!((found - expected).abs() < 1e-12, "{found} {expected}")
                }
                (found, expected) => assert_eq!(found, expected),
            }
        }
    }

    #[test]
    fn the_best_threshold_equals_sentence_transformers() {
        let golden = golden().thresholds;
        assert!(golden.len() >= 5);
        for case in golden {
            let labels: Vec<bool> = case.labels.iter().map(|label| *label == 1).collect();
            let found = best_threshold(&case.scores, &labels).unwrap();
            assert!(
                (found.accuracy - case.accuracy).abs() < 1e-12,
                "{found:?} {}",
                case.accuracy
            );
            assert!(
                (f64::from(found.threshold) - case.threshold).abs() < 1e-6,
                "{found:?} {}",
                case.threshold
            );
        }
        assert_eq!(best_threshold(&[0.5, 0.5], &[true, false]), None);
    }

    #[test]
    fn chrf_equals_sacrebleus() {
        let golden = golden().chrf;
        assert!(golden.len() >= 20);
        for case in golden {
            let mut chrf = Chrf::default();
            case.texts
                .iter()
                .zip(&case.references)
                .for_each(|(text, reference)| chrf.add(text, reference));
            assert!(
                (chrf.score() - case.score).abs() < 1e-9,
                "{} {}: {:?}",
                chrf.score(),
                case.score,
                case.texts
            );
        }
    }
}
