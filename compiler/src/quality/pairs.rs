//! How well a model does what its users expect of it: on pairs and texts with known results.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use serde::Serialize;

use super::{
    answer::Answer,
    correlation::{BestThreshold, best_threshold, spearman},
    samples::{LabelledTexts, Pairs},
    served::{TIMEOUT, fitting, in_parts, scores, search_vectors},
};
use crate::plan::progress::Progress;
use kivu::{
    Error, Result,
    backend::Deadline,
    error::quoted,
    model::EncoderPipeline,
    pipeline::{
        Input,
        classification::{
            ClassificationPipeline,
            scores::descending,
            zero_shot::{ZeroShotOptions, ZeroShotPipeline},
        },
        embedding::{EmbeddingPipeline, VectorKind, roles::TextRole},
    },
};

/// Passages that count as found.
const FOUND: usize = 10;
/// Maximum number of questions for a model that reads each one with each passage.
const MAX_QUESTIONS: usize = 200;
/// Labels of pairs that belong together, for models that score similarity.
const POSITIVE: [&str; 6] = ["1", "true", "yes", "duplicate", "paraphrase", "entailment"];

/// A model's results on pairs, and those of the model that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairQuality {
    /// The kind of pairs in words, for reports and errors.
    pub kind: &'static str,
    /// Number of pairs.
    pub pairs: usize,
    /// The model's results.
    pub model: PairFigures,
    /// The other model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<PairFigures>,
}

impl PairQuality {
    /// Results on `pairs`.
    pub fn new(pairs: &Pairs, model: PairFigures, other: Option<PairFigures>) -> Self {
        Self {
            kind: pairs.description(),
            pairs: pairs.count(),
            model,
            other,
        }
    }
}

/// Results on pairs, by their kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PairFigures {
    /// Pairs with scores.
    Scores {
        /// Spearman's rank correlation between scores and expected scores; `None` if the model's are all equal.
        spearman: Option<f64>,
    },
    /// Pairs or texts with labels.
    Labels {
        /// Share of right labels; `None` if a model that scores similarity scores all pairs equally.
        accuracy: Option<f64>,
        /// For such a model: the score from which pairs belong together, chosen for the highest accuracy.
        #[serde(skip_serializing_if = "Option::is_none")]
        threshold: Option<f32>,
    },
    /// Questions with passages.
    Passages {
        /// Share of questions whose passage is among the ten best ones.
        recall_at_10: f64,
    },
    /// Texts with references.
    References {
        /// chrF2 of generated texts, 0 to 100.
        chrf: f64,
        /// Share of generated texts that equal their reference.
        exact_match: f64,
        /// Mean negative log-probability of a reference's tokens, in nats; `None` for models whose target tokenizer only
        /// decodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        cross_entropy: Option<f64>,
    },
}

/// An encoder's results on pairs, with one `progress` step per text or pair that it reads.
pub fn figures(
    encoder: &EncoderPipeline,
    pairs: &Pairs,
    progress: &dyn Progress,
) -> Result<PairFigures> {
    if let Some(verdicts) = Verdicts::of(encoder, pairs, progress)? {
        return Ok(verdicts.figures());
    }
    match (encoder, pairs) {
        (_, Pairs::References(_)) => return Err(unfit(pairs, "a model that generates texts")),
        (EncoderPipeline::Classification(pipeline), _) if pipeline.settings().labels.len() > 1 => {
            return Err(unfit(pairs, "a model that compares two texts"));
        }
        (_, Pairs::LabelledTexts(_)) => return Err(unfit(pairs, "a classifier")),
        (EncoderPipeline::Embedding(_) | EncoderPipeline::Classification(_), _) => {}
        _ => return Err(unfit(pairs, "a model with vectors or a ranker")),
    }
    Ok(match pairs {
        Pairs::Scores(pairs, expected) => PairFigures::Scores {
            spearman: spearman(&similarities(encoder, pairs, progress)?, expected),
        },
        Pairs::Labels(pairs, labels) => {
            let is_positive = positive(labels)?;
            let found = best_threshold(&similarities(encoder, pairs, progress)?, &is_positive);
            PairFigures::Labels {
                accuracy: found.map(|BestThreshold { accuracy, .. }| accuracy),
                threshold: found.map(|BestThreshold { threshold, .. }| threshold),
            }
        }
        Pairs::Passages(pairs) => PairFigures::Passages {
            recall_at_10: recall(encoder, pairs, progress)?,
        },
        Pairs::LabelledTexts(_) | Pairs::References(_) => unreachable!("refused above"),
    })
}

/// The error for pairs that a model cannot be measured on.
pub fn unfit(pairs: &Pairs, expected: &str) -> Error {
    Error::config(format!(
        "the model cannot be measured: {expected} is needed for {}",
        pairs.description()
    ))
}

/// A pair as a cross-encoder reads it.
fn input(pipeline: &ClassificationPipeline, [first, second]: &[String; 2]) -> Input {
    Input::Pair(pipeline.prompted(first), Arc::from(second.as_str()))
}

/// A classifier's label for each row, and the expected one.
#[derive(Clone, Debug)]
pub struct Verdicts {
    /// The model's labels.
    pub labels: Vec<String>,
    /// The best label of each row, by its place among the labels.
    pub found: Vec<usize>,
    /// The expected label of each row.
    pub expected: Vec<usize>,
}

impl Verdicts {
    /// Classifies all rows; `None` if the model or the pairs have no labels to compare.
    ///
    /// # Errors
    /// The model does not have one of the expected labels.
    pub fn of(
        encoder: &EncoderPipeline,
        pairs: &Pairs,
        progress: &dyn Progress,
    ) -> Result<Option<Self>> {
        let classified =
            |pipeline: &ClassificationPipeline, inputs: Vec<Input>, expected: &[String]| {
                let scores = || classifier_scores(pipeline, &inputs, progress);
                Self::new(&pipeline.settings().labels, expected, scores).map(Some)
            };
        match (encoder, pairs) {
            (
                encoder,
                Pairs::LabelledTexts(LabelledTexts {
                    texts,
                    labels,
                    asked: Some(asked),
                }),
            ) => {
                let scores = || chosen(encoder, asked, texts, progress);
                Self::new(asked.labels.as_slice(), labels, scores).map(Some)
            }
            (
                EncoderPipeline::Classification(pipeline),
                Pairs::LabelledTexts(LabelledTexts { texts, labels, .. }),
            ) => {
                let inputs = texts.iter().cloned().map(Input::Text);
                classified(pipeline, inputs.collect(), labels)
            }
            (EncoderPipeline::Classification(pipeline), Pairs::Labels(pairs, labels))
                if pipeline.settings().labels.len() > 1 =>
            {
                let inputs = pairs.iter().map(|pair| input(pipeline, pair));
                classified(pipeline, inputs.collect(), labels)
            }
            _ => Ok(None),
        }
    }

    /// The best of the `known` labels by each row's scores, which are computed once all expected labels are known.
    fn new(
        known: &[String],
        expected: &[String],
        scores: impl FnOnce() -> Result<Vec<Vec<f32>>>,
    ) -> Result<Self> {
        let place = |label: &String| {
            known
                .iter()
                .position(|known| known.eq_ignore_ascii_case(label))
                .ok_or_else(|| {
                    Error::config(format!(
                        "expected the model's labels ({}), but found `{label}`",
                        quoted(known)
                    ))
                    .with_hint("rename the labels in the file")
                })
        };
        let expected = expected.iter().map(place).collect::<Result<Vec<usize>>>()?;
        let best = |scores: &Vec<f32>| descending(scores).first().copied().unwrap_or_default();
        Ok(Self {
            labels: known.to_vec(),
            found: scores()?.iter().map(best).collect(),
            expected,
        })
    }

    /// Rows with their found and expected labels.
    pub fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        self.found
            .iter()
            .copied()
            .zip(self.expected.iter().copied())
    }

    /// The share of right labels.
    pub fn figures(&self) -> PairFigures {
        let right = self.rows().filter(|(found, expected)| found == expected);
        PairFigures::Labels {
            accuracy: Some(right.count() as f64 / self.expected.len() as f64),
            threshold: None,
        }
    }
}

/// A zero-shot model's scores for the labels that it is asked for.
fn chosen(
    encoder: &EncoderPipeline,
    asked: &ZeroShotOptions,
    texts: &[String],
    progress: &dyn Progress,
) -> Result<Vec<Vec<f32>>> {
    let pipeline = match encoder {
        EncoderPipeline::Embedding(pipeline) => ZeroShotPipeline::embedding(pipeline.clone()),
        EncoderPipeline::Classification(pipeline) => {
            ZeroShotPipeline::entailment(pipeline.clone())?
        }
        EncoderPipeline::LabelScores(pipeline) => ZeroShotPipeline::Labels(pipeline.clone()),
        _ => {
            return Err(Error::model(
                "expected a zero-shot classifier, but found another model",
            ));
        }
    };
    let filled = asked.filled()?;
    progress.stage("read the pairs", texts.len());
    in_parts(texts, progress, async |mut texts| {
        if let ZeroShotPipeline::Labels(pipeline) = &pipeline {
            for text in &mut texts {
                *text = fitting(pipeline, mem::take(text), &filled);
            }
        }
        let deadline = Deadline::within(TIMEOUT);
        Ok(pipeline.score(&texts, asked, deadline).await?.0)
    })
}

fn classifier_scores(
    pipeline: &ClassificationPipeline,
    inputs: &[Input],
    progress: &dyn Progress,
) -> Result<Vec<Vec<f32>>> {
    progress.stage("read the pairs", inputs.len());
    in_parts(inputs, progress, |inputs| scores(pipeline, inputs))
}

/// Which labels say that a pair belongs together.
fn positive(labels: &[String]) -> Result<Vec<bool>> {
    let is_positive = |label: &str| {
        POSITIVE
            .iter()
            .any(|positive| positive.eq_ignore_ascii_case(label))
    };
    let distinct: BTreeSet<&String> = labels.iter().collect();
    let positives = distinct.iter().filter(|label| is_positive(label)).count();
    if distinct.len() != 2 || positives != 1 {
        let distinct: Vec<&String> = distinct.into_iter().collect();
        return Err(Error::config(format!(
            "expected two labels, one of them among {}, for a model that scores similarity, but found {}",
            quoted(&POSITIVE),
            quoted(&distinct)
        )));
    }
    Ok(labels.iter().map(|label| is_positive(label)).collect())
}

/// The similarity within each pair.
fn similarities(
    encoder: &EncoderPipeline,
    pairs: &[[String; 2]],
    progress: &dyn Progress,
) -> Result<Vec<f32>> {
    let pipeline = match encoder {
        EncoderPipeline::Embedding(pipeline) => pipeline,
        EncoderPipeline::Classification(pipeline) => {
            let inputs: Vec<Input> = pairs.iter().map(|pair| input(pipeline, pair)).collect();
            return Ok(classifier_scores(pipeline, &inputs, progress)?.concat());
        }
        _ => unreachable!("callers refuse other models"),
    };
    // Both are texts of the same kind, unless the model distinguishes queries by more than a prompt.
    let [query, document] = match pipeline.settings().has(VectorKind::MultiVector) {
        true => [Some(TextRole::Query), Some(TextRole::Document)],
        false => [None; 2],
    };
    progress.stage("read the pairs", 2 * pairs.len());
    let first = Vectors::new(
        pipeline,
        pairs.iter().map(|[first, _]| first),
        query,
        progress,
    )?;
    let second = Vectors::new(
        pipeline,
        pairs.iter().map(|[_, second]| second),
        document,
        progress,
    )?;
    let similarity = |[left, right]: &[String; 2]| {
        first
            .get(left)
            .zip(second.get(right))
            .and_then(|(left, right)| left.similarities(&[right]).pop())
    };
    Ok(pairs.iter().filter_map(similarity).collect())
}

/// Share of questions whose passage is among the ten best ones in the file.
fn recall(
    encoder: &EncoderPipeline,
    pairs: &[[String; 2]],
    progress: &dyn Progress,
) -> Result<f64> {
    let passages: Vec<&String> = pairs
        .iter()
        .map(|[_, passage]| passage)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let found = |scores: &[f32], expected: &String| {
        let own = passages
            .iter()
            .position(|passage| *passage == expected)
            .map(|place| scores[place]);
        // Ties count against the model.
        own.is_some_and(|own| scores.iter().filter(|score| **score >= own).count() <= FOUND)
    };
    let mut right = 0;
    match encoder {
        EncoderPipeline::Embedding(pipeline) => {
            progress.stage("read the pairs", pairs.len() + passages.len());
            let questions = pairs.iter().map(|[question, _]| question);
            let questions = Vectors::new(pipeline, questions, Some(TextRole::Query), progress)?;
            let documents = passages.iter().copied();
            let documents = Vectors::new(pipeline, documents, Some(TextRole::Document), progress)?;
            let documents: Vec<&Answer> = passages
                .iter()
                .filter_map(|passage| documents.get(passage))
                .collect();
            for [question, passage] in pairs {
                let scores = questions
                    .get(question)
                    .map(|question| question.similarities(&documents));
                right += usize::from(scores.is_some_and(|scores| found(&scores, passage)));
            }
        }
        EncoderPipeline::Classification(pipeline) => {
            if pairs.len() > MAX_QUESTIONS {
                return Err(Error::config(format!(
                    "expected at most {MAX_QUESTIONS} questions for a model that reads each one with each passage, but found \
                     {}",
                    pairs.len()
                )));
            }
            let all = pairs.iter().flat_map(|[question, _]| {
                passages
                    .iter()
                    .map(|passage| input(pipeline, &[question.clone(), (*passage).clone()]))
            });
            let scores = classifier_scores(pipeline, &all.collect::<Vec<_>>(), progress)?.concat();
            let rows = scores.chunks_exact(passages.len()).zip(pairs);
            right = rows
                .filter(|(scores, [_, passage])| found(scores, passage))
                .count();
        }
        _ => unreachable!("callers refuse other models"),
    }
    Ok(right as f64 / pairs.len() as f64)
}

/// Vectors of different texts.
struct Vectors(BTreeMap<String, Answer>);

impl Vectors {
    /// Reads each text once.
    fn new<'a>(
        pipeline: &EmbeddingPipeline,
        texts: impl Iterator<Item = &'a String>,
        role: Option<TextRole>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let texts: Vec<String> = texts
            .collect::<BTreeSet<_>>()
            .into_iter()
            .cloned()
            .collect();
        let found = in_parts(&texts, progress, async |texts| {
            search_vectors(pipeline, texts, role).await
        })?;
        Ok(Self(texts.into_iter().zip(found).collect()))
    }

    fn get(&self, text: &String) -> Option<&Answer> {
        self.0.get(text)
    }
}
