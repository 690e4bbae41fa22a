//! All precisions of a model side by side: results on a user's rows, size and speed.

use std::{collections::BTreeMap, time::Instant};

use serde::Serialize;

use super::{
    compare::qualities,
    interval,
    pairs::{self, PairFigures, Verdicts},
    samples::{Pairs, Samples, Texts},
    served::{Answers, measure},
    step_comparison,
};
use crate::plan::progress::Progress;
use kivu::{Error, Result, model::Model, repository::manifest::Quality};

/// Texts that are read before the time is taken, so that weights are in memory.
const WARM_UP: usize = 8;
/// Shorter runs say little about the speed.
const MIN_SECONDS: f64 = 0.5;

/// A model in several precisions.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The model's name.
    pub name: String,
    /// The kind of rows in words.
    pub samples: &'static str,
    /// Number of rows.
    pub rows: usize,
    /// Results, fp32 first.
    pub precisions: Vec<Measured>,
    /// Rows whose label is wrong in at least one precision.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<Wrong>,
    /// Remarks on the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One precision's results.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Such as `int8`.
    pub precision: String,
    /// Results on pairs, or agreement with fp32; the same ones for all precisions.
    pub figures: Vec<Figure>,
    /// Bundle size.
    pub bytes: u64,
    /// Rows per second on all CPUs; `None` for generated texts without references.
    pub rows_per_second: Option<f64>,
    /// Results per label, in the model's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelFigures>,
}

/// A result with its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Such as `accuracy`.
    pub name: &'static str,
    /// `None` if it is undefined.
    pub value: Option<f64>,
    /// 95 % interval: Wilson's for shares of rows, Fisher's for correlations, none for other figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Whether the value is a share, from 0 to 1.
    #[serde(skip)]
    pub is_share: bool,
}

impl Figure {
    fn new(name: &'static str, value: impl Into<f64>) -> Self {
        Self {
            name,
            value: Some(value.into()),
            interval: None,
            is_share: false,
        }
    }

    /// A share that is no share of independent rows.
    fn share(name: &'static str, value: impl Into<f64>) -> Self {
        Self {
            is_share: true,
            ..Self::new(name, value)
        }
    }

    fn share_of(name: &'static str, share: Option<impl Into<f64>>, rows: usize) -> Self {
        let share = share.map(Into::into);
        Self {
            name,
            value: share,
            interval: share.map(|share| interval::of_share(share, rows)),
            is_share: true,
        }
    }
}

/// Results for one label.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelFigures {
    /// The label.
    pub label: String,
    /// Rows that should have it.
    pub rows: usize,
    /// Rows that the model gave it.
    pub found: usize,
    /// Share of the found rows that are right; `None` without such rows.
    pub precision: Option<f64>,
    /// Share of the rows that were found; `None` without such rows.
    pub recall: Option<f64>,
    /// Harmonic mean of both; zero if no row is right.
    pub f1: f64,
}

/// A row whose label is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wrong {
    /// The row's number in the file, from 1.
    pub row: usize,
    /// The expected label.
    pub expected: String,
    /// The model's labels, by precision.
    pub found: BTreeMap<String, String>,
}

/// Measures forms of one model with their bundles' sizes, the exact one first.
///
/// # Errors
/// The samples do not fit the model.
pub fn table(models: &[(Model, u64)], samples: &Samples, progress: &dyn Progress) -> Result<Table> {
    let Some((first, _)) = models.first() else {
        return Err(Error::model("no model to measure"));
    };
    let texts = samples.texts.clone().unwrap_or_default();
    let (samples_shown, rows) = match &samples.pairs {
        Some(pairs) => (pairs.description(), pairs.count()),
        None => ("texts", texts.count()),
    };
    let mut reference = None;
    let mut shortest = f64::INFINITY;
    let (mut precisions, mut verdicts) = (Vec::new(), Vec::new());
    for (model, bytes) in models {
        let precision = model.manifest.weights.precision.to_string();
        let (figures, seconds, found) = match &samples.pairs {
            Some(pairs) => on_pairs(model, pairs, progress)?,
            None => on_texts([first, model], &texts, &mut reference, progress)?,
        };
        shortest = seconds.unwrap_or(shortest).min(shortest);
        precisions.push(Measured {
            figures,
            bytes: *bytes,
            rows_per_second: seconds.map(|seconds| rows as f64 / seconds),
            labels: found.as_ref().map(labels).unwrap_or_default(),
            precision: precision.clone(),
        });
        verdicts.extend(found.map(|found| (precision, found)));
    }
    Ok(Table {
        name: first.name.clone(),
        samples: samples_shown,
        rows,
        precisions,
        wrong: wrong(&verdicts),
        notes: short(shortest).into_iter().collect(),
    })
}

/// What the speeds are worth if a precision's rows took little time.
fn short(seconds: f64) -> Option<String> {
    (seconds < MIN_SECONDS).then(|| {
        format!(
            "the speeds are from runs of as little as {:.0} ms; use more rows to compare them",
            seconds * 1e3
        )
    })
}

/// Figures, seconds without the warm-up, and labels.
type Results = (Vec<Figure>, Option<f64>, Option<Verdicts>);

fn on_pairs(model: &Model, pairs: &Pairs, progress: &dyn Progress) -> Result<Results> {
    let encoder = model.pipeline.encoder_pipeline();
    if let Ok(encoder) = &encoder {
        let texts = Texts::default().texts.into_iter().take(WARM_UP).collect();
        measure(encoder, &Texts { texts }, progress)?;
    }
    let started = Instant::now();
    let (found, verdicts) = match &encoder {
        Ok(encoder) => match Verdicts::of(encoder, pairs, progress)? {
            Some(verdicts) => (verdicts.figures(), Some(verdicts)),
            None => (pairs::figures(encoder, pairs, progress)?, None),
        },
        Err(generator) => match pairs {
            Pairs::References(_) => (
                step_comparison::references(generator, pairs, progress)?,
                None,
            ),
            _ => return Err(pairs::unfit(pairs, "a model with vectors or labels")),
        },
    };
    let seconds = started.elapsed().as_secs_f64();
    let rows = pairs.count();
    let figures = match found {
        PairFigures::Labels { accuracy, .. } => {
            vec![Figure::share_of("accuracy", accuracy, rows)]
        }
        PairFigures::Passages { recall_at_10 } => {
            vec![Figure::share_of("recall@10", Some(recall_at_10), rows)]
        }
        PairFigures::Scores { spearman } => vec![Figure {
            name: "Spearman",
            value: spearman,
            interval: spearman.map(|found| interval::of_correlation(found, rows)),
            is_share: false,
        }],
        PairFigures::References {
            chrf, exact_match, ..
        } => vec![
            Figure::share_of("exact match", Some(exact_match), rows),
            Figure::new("chrF2", chrf),
        ],
    };
    Ok((figures, Some(seconds), verdicts))
}

/// Agreement with the first model, whose answers are kept in `reference`.
fn on_texts(
    [first, model]: [&Model; 2],
    texts: &Texts,
    reference: &mut Option<Answers>,
    progress: &dyn Progress,
) -> Result<Results> {
    let (quality, seconds) = match (
        first.pipeline.encoder_pipeline(),
        model.pipeline.encoder_pipeline(),
    ) {
        (Err(first), Err(generator)) => {
            let forms = [first, generator];
            (
                Some(step_comparison::quality_of(forms, Some(texts), progress)?),
                None,
            )
        }
        (_, Ok(encoder)) => {
            let warm_up = texts.texts.iter().take(WARM_UP).cloned().collect();
            measure(&encoder, &Texts { texts: warm_up }, progress)?;
            progress.stage("measure the quality", texts.count());
            let own = measure(&encoder, texts, progress)?;
            let seconds = own.time.as_secs_f64();
            let settings = &model.manifest.settings;
            let quality = match &*reference {
                Some(reference) => qualities(settings, [reference, &own]).into_iter().next(),
                None => {
                    let found = qualities(settings, [&own, &own]).into_iter().next();
                    *reference = Some(own);
                    found
                }
            };
            (quality, Some(seconds))
        }
        (Ok(_), Err(_)) => {
            return Err(Error::model(
                "the models differ in kind, so their forms cannot be compared",
            ));
        }
    };
    let figures = quality.map(|quality| agreement(&quality));
    Ok((figures.unwrap_or_default(), seconds, None))
}

fn agreement(quality: &Quality) -> Vec<Figure> {
    match *quality {
        Quality::Embedding {
            mean_cosine,
            worst_cosine,
            neighbours,
            ..
        } => {
            let mut figures = vec![
                Figure::new("mean cosine", mean_cosine),
                Figure::new("worst cosine", worst_cosine),
            ];
            figures.extend(neighbours.map(|kept| Figure::share("recall@10", kept.ten_nearest)));
            figures
        }
        Quality::Classification {
            texts, agreement, ..
        } => vec![Figure::share_of("same label", Some(agreement), texts)],
        Quality::TokenClassification {
            agreement,
            entity_agreement,
            ..
        } => {
            let mut figures = vec![Figure::share("same label", agreement)];
            figures.extend(entity_agreement.map(|share| Figure::share("same entities", share)));
            figures
        }
        Quality::ZeroShotEntities { agreement, .. } => {
            vec![Figure::share("same entities", agreement)]
        }
        Quality::Ranking {
            rank_agreement,
            mean_difference,
            ..
        } => vec![
            Figure::share("same order", rank_agreement),
            Figure::new("score difference", mean_difference),
        ],
        Quality::Seq2Seq {
            texts,
            identical,
            chrf,
            ..
        } => {
            let mut figures = vec![Figure::share_of("same text", Some(identical), texts)];
            figures.extend(chrf.map(|chrf| Figure::new("chrF2", chrf)));
            figures
        }
    }
}

/// Results for each label that is expected or found.
fn labels(verdicts: &Verdicts) -> Vec<LabelFigures> {
    let figures = |(place, label): (usize, &String)| {
        let count = |is: &dyn Fn(usize, usize) -> bool| {
            verdicts
                .rows()
                .filter(|(found, expected)| is(*found, *expected))
                .count()
        };
        let rows = count(&|_, expected| expected == place);
        let found = count(&|found, _| found == place);
        let right = count(&|found, expected| found == place && expected == place);
        let share = |of: usize| (of > 0).then(|| right as f64 / of as f64);
        (rows + found > 0).then(|| LabelFigures {
            label: label.clone(),
            rows,
            found,
            precision: share(found),
            recall: share(rows),
            f1: 2.0 * right as f64 / (rows + found) as f64,
        })
    };
    verdicts
        .labels
        .iter()
        .enumerate()
        .filter_map(figures)
        .collect()
}

/// Rows that are wrong in at least one precision.
fn wrong(verdicts: &[(String, Verdicts)]) -> Vec<Wrong> {
    let Some((_, first)) = verdicts.first() else {
        return Vec::new();
    };
    let is_wrong = |row: &usize| {
        verdicts
            .iter()
            .any(|(_, form)| form.found[*row] != form.expected[*row])
    };
    let wrong = |row: usize| Wrong {
        row: row + 1,
        expected: first.labels[first.expected[row]].clone(),
        found: verdicts
            .iter()
            .map(|(precision, form)| (precision.clone(), form.labels[form.found[row]].clone()))
            .collect(),
    };
    (0..first.found.len()).filter(is_wrong).map(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(found: &[usize], expected: &[usize]) -> Verdicts {
        Verdicts {
            labels: ["en", "es", "pt"].map(str::to_owned).to_vec(),
            found: found.to_vec(),
            expected: expected.to_vec(),
        }
    }

    #[test]
    fn labels_have_precision_and_recall() {
        let found = labels(&verdicts(&[0, 0, 1, 0], &[0, 0, 0, 1]));
        let shown: Vec<_> = found
            .iter()
            .map(|label| {
                (
                    label.label.as_str(),
                    label.rows,
                    label.found,
                    label.precision,
                    label.recall,
                )
            })
            .collect();
        // Nothing is said about a label that no row has.
        assert_eq!(
            shown,
            [
                ("en", 3, 3, Some(2.0 / 3.0), Some(2.0 / 3.0)),
                ("es", 1, 1, Some(0.0), Some(0.0))
            ]
        );
        assert_eq!(found[1].f1, 0.0);
        let missed = labels(&verdicts(&[0, 0], &[0, 2]));
        assert_eq!((missed[1].precision, missed[1].recall), (None, Some(0.0)));
    }

    #[test]
    fn rows_that_are_wrong_in_one_precision_are_listed() {
        let forms = [
            ("fp32".to_owned(), verdicts(&[0, 1, 2], &[0, 1, 1])),
            ("int8".to_owned(), verdicts(&[1, 1, 2], &[0, 1, 1])),
        ];
        let found = wrong(&forms);
        let shown: Vec<_> = found
            .iter()
            .map(|wrong| {
                (
                    wrong.row,
                    wrong.expected.as_str(),
                    wrong.found["fp32"].as_str(),
                    wrong.found["int8"].as_str(),
                )
            })
            .collect();
        assert_eq!(shown, [(1, "en", "en", "es"), (3, "es", "pt", "pt")]);
    }
}
