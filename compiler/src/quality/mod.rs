//! The quality gate: how close a quantized model comes to its fp32 form on sample texts.

mod answer;
mod chrf;
pub mod compare;
mod correlation;
pub mod cost;
mod interval;
pub mod pairs;
mod peer;
mod report;
pub mod samples;
pub mod served;
pub mod step_comparison;
pub mod table;

use std::{future::Future, thread};

pub use self::{
    pairs::{PairFigures, PairQuality},
    report::{Other, Report, measure},
    samples::{Candidates, ColumnNames, Pairs, Samples, Texts},
};
use super::plan::recipe::QualityFloor;
use kivu::{
    Error, Result,
    repository::manifest::{Precision, Quality},
};

/// Texts with mixed kinds and lengths, like real traffic, one per line.
pub const SENTENCES: &str = include_str!("../sentences.txt");

/// Texts for models that read Portuguese, one per line.
const PORTUGUESE: &str = include_str!("../sentences-pt.txt");

/// Waits for pipelines, on another thread, since the caller may be in a runtime.
fn wait<T: Send, F: Future<Output = Result<T>>>(work: impl FnOnce() -> F + Send) -> Result<T> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime
            .map_err(Error::io("cannot start a runtime for the graphs"))?
            .block_on(work())
    };
    thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| Err(Error::model("measuring the quality panicked")))
}

/// How far a quality is below its floor.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortfall {
    /// The requirement, the measured value and their difference.
    pub description: String,
    /// The limit's key in a recipe's `[quality]`.
    key: &'static str,
}

impl Shortfall {
    /// The build error. `others` are more exact precisions, to suggest.
    pub fn refusal(&self, others: &[Precision]) -> Error {
        let others: Vec<String> = others
            .iter()
            .map(|precision| format!("`--precision {precision}`"))
            .collect();
        Error::model(self.description.as_str()).with_hint(format!(
            "build with {}, or from a recipe with another `{}` in `[quality]`",
            others.join(" or "),
            self.key
        ))
    }
}

/// The floor's key, the requirement, the measured value and its distance to the limit: above zero or NaN is a failure.
type Check = (&'static str, String, f32, f32);

fn at_least(key: &'static str, name: &str, found: f32, limit: f32) -> Check {
    let requirement = format!("{name} of at least {limit:.4}");
    (key, requirement, found, limit - found)
}

fn at_most(key: &'static str, name: &str, found: f32, limit: f32) -> Check {
    let requirement = format!("{name} of at most {limit:.4}");
    (key, requirement, found, found - limit)
}

/// Compares a quality with the floor. `None` if no measure is below it.
pub fn shortfall(quality: &Quality, floor: &QualityFloor) -> Option<Shortfall> {
    let of_labels = |name, agreement, difference| {
        let (least, most) = (floor.agreement, floor.mean_difference);
        vec![
            at_least("agreement", name, agreement, least),
            at_most(
                "mean_difference",
                "a mean score difference to fp32",
                difference,
                most,
            ),
        ]
    };
    let (texts, checks) = match *quality {
        Quality::Embedding {
            texts,
            mean_cosine,
            worst_cosine,
            neighbours,
            terms,
            score_difference,
        } => {
            let kept = neighbours.map_or(1.0, |neighbours| neighbours.ten_nearest);
            let checks = vec![
                at_least(
                    "mean_cosine",
                    "a mean cosine to fp32",
                    mean_cosine,
                    floor.mean_cosine,
                ),
                at_least(
                    "worst_cosine",
                    "a worst cosine to fp32",
                    worst_cosine,
                    floor.worst_cosine,
                ),
                at_least(
                    "neighbours",
                    "a recall@10 against fp32",
                    kept,
                    floor.neighbours,
                ),
                at_least(
                    "terms",
                    "a share of fp32's top 10 weights",
                    terms.unwrap_or(1.0),
                    floor.terms,
                ),
                at_most(
                    "score_difference",
                    "a mean score difference to fp32",
                    score_difference.unwrap_or(0.0),
                    floor.score_difference,
                ),
            ];
            (texts, checks)
        }
        // The order is reported, but has no limit, since sample texts may have almost the same score.
        Quality::Ranking {
            texts,
            mean_difference,
            ..
        } => {
            let (name, most) = ("a mean score difference to fp32", floor.mean_difference);
            let check = at_most("mean_difference", name, mean_difference, most);
            (texts, vec![check])
        }
        Quality::Classification {
            texts,
            agreement,
            mean_difference,
        } => (
            texts,
            of_labels("a label agreement with fp32", agreement, mean_difference),
        ),
        Quality::TokenClassification {
            texts,
            agreement,
            entity_agreement,
            mean_difference,
            ..
        } => {
            let name = "a token label agreement with fp32";
            let mut checks = of_labels(name, agreement, mean_difference);
            let (found, least) = (entity_agreement.unwrap_or(1.0), floor.entity_agreement);
            let name = "an entity agreement with fp32";
            checks.push(at_least("entity_agreement", name, found, least));
            (texts, checks)
        }
        Quality::ZeroShotEntities {
            texts,
            agreement,
            mean_difference,
            ..
        } => (
            texts,
            of_labels("an entity agreement with fp32", agreement, mean_difference),
        ),
        Quality::Seq2Seq {
            texts,
            similarity,
            token_agreement: tokens,
            ..
        } => {
            let checks = vec![
                at_least(
                    "similarity",
                    "a similarity to fp32 translations",
                    similarity,
                    floor.similarity,
                ),
                at_least(
                    "token_agreement",
                    "a token agreement with fp32",
                    tokens,
                    floor.token_agreement,
                ),
            ];
            (texts, checks)
        }
    };
    let mut failed = checks
        .into_iter()
        .filter(|(.., off)| *off > 0.0 || off.is_nan());
    let (key, requirement, found, off) = failed.next()?;
    Some(Shortfall {
        description: format!(
            "expected {requirement} over {texts} texts, but found {found:.4}, which is off by {off:.4}"
        ),
        key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kivu::repository::manifest::Neighbours;

    fn quality(mean_cosine: f32, worst_cosine: f32) -> Quality {
        Quality::Embedding {
            texts: 300,
            mean_cosine,
            worst_cosine,
            neighbours: None,
            terms: None,
            score_difference: None,
        }
    }

    #[test]
    fn a_quality_below_the_floor_is_refused_with_the_difference() {
        let floor = QualityFloor::default();
        let others = [Precision::Int8Blocks, Precision::Fp32];
        let require = |quality: &Quality, floor: &QualityFloor| match shortfall(quality, floor) {
            Some(shortfall) => Err(shortfall.refusal(&others)),
            None => Ok(()),
        };
        assert!(require(&quality(0.991, 0.975), &floor).is_ok());
        insta::assert_snapshot!(
            require(&quality(0.95, 0.9), &floor).unwrap_err(),
            @"expected a mean cosine to fp32 of at least 0.9900 over 300 texts, but found 0.9500, which is off by 0.0400; build with `--precision int8-blocks` or `--precision fp32`, or from a recipe with another `mean_cosine` in `[quality]`"
        );
        assert!(require(&quality(0.995, 0.96), &floor).is_err());
        assert!(require(&quality(f32::NAN, f32::NAN), &floor).is_err());
        let kept = |ten_nearest| Quality::Embedding {
            texts: 300,
            mean_cosine: 0.999,
            worst_cosine: 0.998,
            neighbours: Some(Neighbours {
                ten_nearest,
                nearest: 0.97,
            }),
            terms: None,
            score_difference: None,
        };
        assert!(require(&kept(0.94), &floor).is_ok());
        insta::assert_snapshot!(
            require(&kept(0.9), &floor).unwrap_err(),
            @"expected a recall@10 against fp32 of at least 0.9300 over 300 texts, but found 0.9000, which is off by 0.0300; build with `--precision int8-blocks` or `--precision fp32`, or from a recipe with another `neighbours` in `[quality]`"
        );
        assert!(
            require(
                &kept(0.9),
                &QualityFloor {
                    neighbours: 0.89,
                    ..floor
                }
            )
            .is_ok()
        );
        let ranks = |mean_difference| Quality::Ranking {
            texts: 300,
            rank_agreement: 0.9,
            mean_difference,
        };
        assert!(require(&ranks(0.005), &floor).is_ok());
        assert!(require(&ranks(0.02), &floor).is_err());
        assert!(require(&ranks(f32::NAN), &floor).is_err());
        let scores = |agreement, mean_difference| Quality::Classification {
            texts: 300,
            agreement,
            mean_difference,
        };
        assert!(require(&scores(0.995, 0.005), &floor).is_ok());
        assert!(require(&scores(0.98, 0.005), &floor).is_err());
        assert!(require(&scores(1.0, 0.02), &floor).is_err());
    }

    #[test]
    fn the_sentences_are_many_and_of_mixed_length() {
        let lengths: Vec<usize> = SENTENCES.lines().map(str::len).collect();
        assert!(lengths.len() >= 200);
        assert!(
            lengths.iter().any(|length| *length < 20) && lengths.iter().any(|length| *length > 800)
        );
    }
}
