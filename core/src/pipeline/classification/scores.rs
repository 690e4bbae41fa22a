//! Logits to scores, and scores to ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kivu_text::Truncation;

/// Ranking options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankingOptions {
    /// Applied to pairs above the token limit.
    pub truncation: Truncation,
    /// Whether scores are the model's logits, product sums or cosines, instead of numbers from 0 to 1.
    pub raw_scores: bool,
}

/// The function that maps logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScoreFunction {
    /// For labels that exclude one another: scores sum up to 1.
    Softmax,
    /// For independent labels.
    Sigmoid,
    /// The logits themselves.
    None,
}

impl ScoreFunction {
    /// Converts logits to scores.
    pub fn apply(self, logits: &[f32]) -> Vec<f32> {
        match self {
            Self::None => logits.to_vec(),
            Self::Sigmoid => logits.iter().copied().map(sigmoid).collect(),
            Self::Softmax => softmax(logits),
        }
    }

    /// The logit for a score, for models that return scores. A text's inverted scores, converted again, equal the
    /// original scores.
    pub fn invert(self, score: f32) -> f32 {
        match self {
            Self::None => score,
            Self::Softmax => score.max(f32::MIN_POSITIVE).ln(),
            Self::Sigmoid => {
                // 0 and 1 have no finite logit.
                let score = score.clamp(f32::MIN_POSITIVE, 1.0 - f32::EPSILON);
                (score / (1.0 - score)).ln()
            }
        }
    }
}

/// Softmax, shifted by the largest logit to avoid overflow.
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Value indexes in descending order; equal values keep their order.
pub fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|left, right| values[*right].total_cmp(&values[*left]));
    order
}

/// The logistic function.
pub fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_known_logits() {
        let logits = [0.0, 0.0, f32::ln(2.0)];
        let softmax = ScoreFunction::Softmax.apply(&logits);
        assert!(
            (softmax[2] - 0.5).abs() < 1e-6 && (softmax.iter().sum::<f32>() - 1.0).abs() < 1e-6
        );
        assert_eq!(ScoreFunction::Sigmoid.apply(&[0.0]), [0.5]);
        assert_eq!(ScoreFunction::None.apply(&[3.0]), [3.0]);
        assert!(
            ScoreFunction::Softmax
                .apply(&[1000.0, 0.0])
                .iter()
                .all(|score| score.is_finite())
        );
        for function in [
            ScoreFunction::Softmax,
            ScoreFunction::Sigmoid,
            ScoreFunction::None,
        ] {
            let scores = [0.7, 0.3, 0.0];
            let again = function.apply(&scores.map(|score| function.invert(score)));
            assert!(
                again
                    .iter()
                    .zip(scores)
                    .all(|(found, score)| (found - score).abs() < 1e-6),
                "{again:?}"
            );
        }
        assert_eq!(descending(&[0.1, 0.9, 0.1, 0.5]), [1, 3, 0, 2]);
    }
}
