//! Pools token vectors into one vector per text, with the results of sentence-transformers.

use serde::{Deserialize, Serialize};

use super::similarity::dot;

/// Pooling mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Mean over all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    LastToken,
    /// Per-dimension maximum over all tokens.
    Max,
    /// Sum over all tokens, divided by the square root of their number.
    MeanSqrtLen,
    /// Mean over all tokens, weighted by their positions from 1 on.
    WeightedMean,
    /// None: the graph returns a vector for each text.
    Graph,
}

impl Pooling {
    /// Pools one text's vectors: `width` values per token, without padding. No tokens give zeros.
    pub fn pool(self, vectors: &[f32], width: usize) -> Vec<f32> {
        let tokens = vectors.chunks_exact(width);
        let count = tokens.len().max(1) as f32;
        let one = |token: Option<&[f32]>| token.map_or_else(|| vec![0.0; width], <[f32]>::to_vec);
        match self {
            Self::Cls | Self::Graph => one(tokens.clone().next()),
            Self::LastToken => one(tokens.clone().next_back()),
            Self::Max => {
                let mut largest = one(tokens.clone().next());
                for token in tokens.skip(1) {
                    largest
                        .iter_mut()
                        .zip(token)
                        .for_each(|(largest, value)| *largest = largest.max(*value));
                }
                largest
            }
            Self::Mean => weighted_sum(tokens, width, |_| 1.0, count),
            Self::MeanSqrtLen => weighted_sum(tokens, width, |_| 1.0, count.sqrt()),
            Self::WeightedMean => weighted_sum(
                tokens,
                width,
                |place| (place + 1) as f32,
                count * (count + 1.0) / 2.0,
            ),
        }
    }
}

/// Weighted token sum, divided by `divisor`.
fn weighted_sum<'a>(
    tokens: impl Iterator<Item = &'a [f32]>,
    width: usize,
    weight: impl Fn(usize) -> f32,
    divisor: f32,
) -> Vec<f32> {
    let mut sums = vec![0.0_f32; width];
    for (place, token) in tokens.enumerate() {
        let weight = weight(place);
        sums.iter_mut()
            .zip(token)
            .for_each(|(sum, value)| *sum += weight * value);
    }
    sums.iter_mut().for_each(|sum| *sum /= divisor);
    sums
}

/// Scales a vector to length 1; zeros are unchanged. If the length exceeds the range of floats, the values become NaN.
pub fn normalize(vector: &mut [f32]) {
    // `eps` in torch.nn.functional.normalize.
    const MIN_LENGTH: f32 = 1e-12;
    let length = match dot(vector, vector).sqrt() {
        length if length.is_infinite() => f32::NAN,
        length => length.max(MIN_LENGTH),
    };
    vector.iter_mut().for_each(|value| *value /= length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pooling_of_three_tokens() {
        let vectors = [1.0, 2.0, 3.0, 4.0, 8.0, 9.0];
        assert_eq!(Pooling::Mean.pool(&vectors, 2), [4.0, 5.0]);
        assert_eq!(Pooling::Cls.pool(&vectors, 2), [1.0, 2.0]);
        assert_eq!(Pooling::LastToken.pool(&vectors, 2), [8.0, 9.0]);
        assert_eq!(
            Pooling::Max.pool(&[1.0, 9.0, 3.0, -4.0, 2.0, 5.0], 2),
            [3.0, 9.0]
        );
        assert_eq!(Pooling::Max.pool(&[-1.0, -9.0], 2), [-1.0, -9.0]);
        assert_eq!(
            Pooling::MeanSqrtLen.pool(&[1.0, 2.0, 3.0, 4.0, 0.0, 2.0, 4.0, 8.0], 2),
            [4.0, 8.0]
        );
        assert_eq!(
            Pooling::WeightedMean.pool(&vectors, 2),
            [31.0 / 6.0, 37.0 / 6.0]
        );
        assert_eq!(Pooling::Graph.pool(&[1.0, 2.0], 2), [1.0, 2.0]);
        let all = [
            Pooling::Mean,
            Pooling::Cls,
            Pooling::LastToken,
            Pooling::Max,
            Pooling::WeightedMean,
        ];
        for pooling in all {
            assert_eq!(pooling.pool(&[], 2), [0.0, 0.0], "{pooling:?}");
        }
    }

    #[test]
    fn normalizing_gives_length_one_and_leaves_zeros() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = [0.0, 0.0];
        normalize(&mut zeros);
        let mut long = [1e30, 0.0];
        normalize(&mut long);
        assert!(long.iter().all(|value| value.is_nan()), "{long:?}");
        assert_eq!(zeros, [0.0, 0.0]);
    }
}
