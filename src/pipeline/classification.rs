//! Texts, or pairs of texts, to scores for labels, as the `text-classification` pipeline of `transformers` does it.

use std::{sync::Arc, time::Instant};

use serde::{Deserialize, Serialize};

use super::{
    Encodings, Usage, encode_each,
    encoder::{Encoder, Granularity, OutputSpec, Row, reads_types},
};
use crate::{
    backend::{Deadline, routing::Route},
    error::{Error, Result},
    tokenizer::{self, PairTruncation, Tokenizer},
};

/// The most text of a request's inputs together, each counted as far as it is read: a text that comes with a
/// thousand labels is read a thousand times.
const MOST_BYTES: usize = 32 * 1024 * 1024;

/// How a model classifies: what its `config.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassificationSettings {
    /// The output with one value a label.
    pub output: String,
    /// The labels, by their ids.
    pub labels: Vec<String>,
    /// What makes scores of the output.
    pub function: ScoreFunction,
    /// The most tokens of a text or a pair, special tokens included.
    pub max_tokens: usize,
}

/// What makes scores of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScoreFunction {
    /// Labels exclude one another: scores sum to 1.
    Softmax,
    /// Each label on its own.
    Sigmoid,
    /// The logits as they are.
    None,
}

impl ScoreFunction {
    /// The scores of logits.
    pub fn apply(self, logits: &[f32]) -> Vec<f32> {
        match self {
            Self::None => logits.to_vec(),
            Self::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
            Self::Softmax => softmax(logits),
        }
    }

    /// A value that this makes `score` of, among others that make their own: for models that answer with scores.
    pub fn invert(self, score: f32) -> f32 {
        match self {
            Self::None => score,
            Self::Softmax => score.max(f32::MIN_POSITIVE).ln(),
            Self::Sigmoid => {
                // The nearest to 1 that has a logit.
                let score = score.clamp(f32::MIN_POSITIVE, 1.0 - f32::EPSILON);
                (score / (1.0 - score)).ln()
            }
        }
    }
}

/// The softmax of logits, shifted by the largest so that none overflows.
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// What is to be classified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassificationInput {
    /// A text.
    Text(String),
    /// Two texts that the model reads together.
    Pair(Arc<str>, Arc<str>),
    /// Token ids made elsewhere, taken as they are.
    Ids(Vec<u32>),
}

impl ClassificationInput {
    /// Its bytes, of each text no more than are read.
    fn size(&self, reach: usize) -> usize {
        match self {
            Self::Text(text) => text.len().min(reach),
            Self::Pair(first, second) => first.len().min(reach) + second.len().min(reach),
            Self::Ids(ids) => size_of_val(ids.as_slice()),
        }
    }
}

/// One value a label for each input, with what was done to get them.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// In the order of the inputs; each in the order of the labels.
    pub rows: Vec<Vec<f32>>,
    /// What was done to the texts.
    pub usage: Usage,
}

/// A model that scores labels.
#[derive(Clone, Debug)]
pub struct ClassificationPipeline {
    tokenizer: Arc<Tokenizer>,
    encoder: Encoder,
    settings: ClassificationSettings,
}

impl ClassificationPipeline {
    /// Puts tokenizer and backend together; a backend of another signature is refused.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: ClassificationSettings,
    ) -> Result<Self> {
        if settings.labels.is_empty() {
            return Err(Error::model("expected labels in the manifest, but found none"));
        }
        let route = route.into();
        let wanted = OutputSpec {
            output: settings.output.clone(),
            width: Some(settings.labels.len()),
            labels: Some((settings.labels.clone(), settings.function)),
            padding_id: tokenizer.padding_id(),
            reads_types: reads_types(route.signature()),
        };
        let encoder = Encoder::new(route, wanted)?;
        Ok(Self { tokenizer, encoder, settings })
    }

    /// How the model classifies.
    pub fn settings(&self) -> &ClassificationSettings {
        &self.settings
    }

    /// The step that runs the model.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The tokenizer that the model reads with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The logits of each input.
    pub async fn logits(
        &self,
        inputs: Vec<ClassificationInput>,
        truncation: PairTruncation,
        deadline: Deadline,
    ) -> Result<Logits> {
        let limit = self.encoder.most_tokens(self.settings.max_tokens, deadline).await?;
        let (tokenizer, keeps_text) = (Arc::clone(&self.tokenizer), self.encoder.may_read_text());
        let reach = tokenizer::reach(limit);
        let size: usize = inputs.iter().map(|input| input.size(reach)).sum();
        if size > MOST_BYTES {
            return Err(Error::too_large(format!(
                "expected at most {MOST_BYTES} bytes of text to be read, but found {size}; \
                 send shorter texts, or fewer with each other"
            )));
        }
        let work = move || {
            encode_each(inputs.into_iter(), deadline, |input| match input {
                ClassificationInput::Text(text) => {
                    let encoding = tokenizer.encode(&text, limit, truncation.alone())?;
                    let part = || tokenizer.kept_part(text, &encoding, limit, truncation.alone());
                    let text = keeps_text.then(part).transpose()?;
                    Ok((encoding, text))
                }
                ClassificationInput::Pair(first, second) => {
                    Ok((tokenizer.encode_pair([&first, &second], limit, truncation)?, None))
                }
                ClassificationInput::Ids(ids) => {
                    Ok((tokenizer.accept(ids, limit, truncation.alone())?, None))
                }
            })
        };
        let encodings = Encodings::make(size, deadline, work).await?;
        let started = Instant::now();
        let values = |row: Row<'_>| row.values.to_vec();
        let (rows, location) = self.encoder.run(&encodings, Granularity::Texts, deadline, values).await?;
        let usage = Usage::of(&encodings, location, started.elapsed());
        Ok(Logits { rows, usage })
    }
}

/// The places of values from the largest to the smallest; of equal ones the first comes first.
pub fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|left, right| values[*right].total_cmp(&values[*left]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_known_logits() {
        let logits = [0.0, 0.0, f32::ln(2.0)];
        let softmax = ScoreFunction::Softmax.apply(&logits);
        assert!((softmax[2] - 0.5).abs() < 1e-6 && (softmax.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(ScoreFunction::Sigmoid.apply(&[0.0]), [0.5]);
        assert_eq!(ScoreFunction::None.apply(&[3.0]), [3.0]);
        assert!(ScoreFunction::Softmax.apply(&[1000.0, 0.0]).iter().all(|score| score.is_finite()));
        for function in [ScoreFunction::Softmax, ScoreFunction::Sigmoid, ScoreFunction::None] {
            let scores = [0.7, 0.3, 0.0];
            let again = function.apply(&scores.map(|score| function.invert(score)));
            assert!(again.iter().zip(scores).all(|(found, score)| (found - score).abs() < 1e-6), "{again:?}");
        }
        assert_eq!(descending(&[0.1, 0.9, 0.1, 0.5]), [1, 3, 0, 2]);
    }
}
