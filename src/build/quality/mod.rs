//! The quality gate: how close a quantised model comes to its fp32 form on sample texts.

pub(super) mod encoder;
pub(super) mod seq2seq;

pub use self::encoder::inputs;
use super::recipe::QualityFloor;
use crate::{error::Error, repository::manifest::Quality};

/// Texts of mixed kinds and lengths, like real traffic, one per line.
pub const SENTENCES: &str = include_str!("../sentences.txt");

/// Texts for models that read Portuguese, one per line.
const PORTUGUESE: &str = include_str!("../sentences-pt.txt");

/// How far a quality is below its floor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shortfall {
    /// The requirement, the measured value and their difference.
    pub(super) description: String,
    /// Whether the floor is only recommended.
    pub(super) is_tolerated: bool,
}

impl Shortfall {
    /// The error of a build that is not tolerated.
    pub(super) fn refusal(&self) -> Error {
        Error::model(format!(
            "{}; build with `--precision fp32`, or change the recipe's floor",
            self.description
        ))
    }
}

/// Compares a quality with the floor. `None` if no measure is below it.
pub(super) fn shortfall(quality: &Quality, floor: &QualityFloor) -> Option<Shortfall> {
    // The requirement, the measured value and its distance to the limit: above zero or NaN is a failure.
    let at_least =
        |name: &str, found: f32, limit: f32| (format!("{name} of at least {limit:.4}"), found, limit - found);
    let at_most =
        |name: &str, found: f32, limit: f32| (format!("{name} of at most {limit:.4}"), found, found - limit);
    let (texts, checks) = match *quality {
        Quality::Embedding { texts, mean_cosine, worst_cosine, neighbours } => {
            let kept = neighbours.map_or(1.0, |neighbours| neighbours.ten_nearest);
            let limit = floor.neighbours.unwrap_or(QualityFloor::NEIGHBOURS);
            let checks = vec![
                at_least("a mean cosine to fp32", mean_cosine, floor.mean_cosine),
                at_least("a worst cosine to fp32", worst_cosine, floor.worst_cosine),
                at_least("a share of the ten nearest texts of fp32", kept, limit),
            ];
            (texts, checks)
        }
        Quality::Classification { texts, agreement, mean_difference } => {
            let checks = vec![
                at_least("a share of labels equal to those of fp32", agreement, floor.agreement),
                at_most("a mean difference to the scores of fp32", mean_difference, floor.mean_difference),
            ];
            (texts, checks)
        }
        Quality::Seq2Seq { texts, similarity, token_agreement: tokens, .. } => {
            let checks = vec![
                at_least("a similarity to the translations of fp32", similarity, floor.similarity),
                at_least("a share of tokens equal to those of fp32", tokens, floor.token_agreement),
            ];
            (texts, checks)
        }
    };
    // The place of the only measure whose default is a recommendation.
    let neighbours = 2;
    let mut failed = checks.into_iter().enumerate().filter(|(_, (_, _, off))| *off > 0.0 || off.is_nan());
    let (place, (requirement, found, off)) = failed.next()?;
    Some(Shortfall {
        description: format!(
            "expected {requirement} over {texts} texts, but found {found:.4}, which is off by {off:.4}"
        ),
        is_tolerated: place == neighbours && floor.neighbours.is_none(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::manifest::Neighbours;

    fn quality(mean_cosine: f32, worst_cosine: f32) -> Quality {
        Quality::Embedding { texts: 300, mean_cosine, worst_cosine, neighbours: None }
    }

    #[test]
    fn a_quality_below_the_floor_is_refused_with_the_difference() {
        let floor = QualityFloor::default();
        let require = |quality: &Quality, floor: &QualityFloor| match shortfall(quality, floor) {
            Some(shortfall) if !shortfall.is_tolerated => Err(shortfall.refusal()),
            _ => Ok(()),
        };
        assert!(require(&quality(0.991, 0.975), &floor).is_ok());
        insta::assert_snapshot!(
            require(&quality(0.95, 0.9), &floor).unwrap_err(),
            @"expected a mean cosine to fp32 of at least 0.9900 over 300 texts, but found 0.9500, which is off by 0.0400; build with `--precision fp32`, or change the recipe's floor"
        );
        assert!(require(&quality(0.995, 0.96), &floor).is_err());
        assert!(require(&quality(f32::NAN, f32::NAN), &floor).is_err());
        let kept = |ten_nearest| Quality::Embedding {
            texts: 300,
            mean_cosine: 0.999,
            worst_cosine: 0.998,
            neighbours: Some(Neighbours { ten_nearest, nearest: 0.97 }),
        };
        assert_eq!(shortfall(&kept(0.94), &floor), None);
        assert!(shortfall(&kept(0.9), &floor).unwrap().is_tolerated);
        let floor = QualityFloor { neighbours: Some(0.95), ..floor };
        insta::assert_snapshot!(
            require(&kept(0.94), &floor).unwrap_err(),
            @"expected a share of the ten nearest texts of fp32 of at least 0.9500 over 300 texts, but found 0.9400, which is off by 0.0100; build with `--precision fp32`, or change the recipe's floor"
        );
        let scores =
            |agreement, mean_difference| Quality::Classification { texts: 300, agreement, mean_difference };
        assert!(require(&scores(0.995, 0.005), &floor).is_ok());
        assert!(require(&scores(0.98, 0.005), &floor).is_err());
        assert!(require(&scores(1.0, 0.02), &floor).is_err());
    }
}
