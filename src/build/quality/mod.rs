//! The quality gate: how close a quantised model comes to its fp32 form on sample texts.

pub(super) mod encoder;
pub(super) mod translation;

pub use self::encoder::inputs;
use super::recipe::QualityFloor;
use crate::{
    error::{Error, Result},
    repository::manifest::Quality,
};

/// Texts of mixed kinds and lengths, like real traffic, one per line.
pub const SENTENCES: &str = include_str!("../sentences.txt");

/// Texts for models that read Portuguese, one per line.
const PORTUGUESE: &str = include_str!("../sentences-pt.txt");

/// Refuses a quality below the floor.
pub(super) fn require(quality: &Quality, floor: &QualityFloor) -> Result<()> {
    // The requirement, the measured value and its distance to the limit: above zero or NaN is a failure.
    let at_least =
        |name: &str, found: f32, limit: f32| (format!("{name} of at least {limit:.4}"), found, limit - found);
    let at_most =
        |name: &str, found: f32, limit: f32| (format!("{name} of at most {limit:.4}"), found, found - limit);
    let (texts, checks) = match *quality {
        Quality::Embedding { texts, mean_cosine, worst_cosine } => (
            texts,
            [
                at_least("a mean cosine to fp32", mean_cosine, floor.mean_cosine),
                at_least("a worst cosine to fp32", worst_cosine, floor.worst_cosine),
            ],
        ),
        Quality::Classification { texts, agreement, mean_difference } => (
            texts,
            [
                at_least("a share of labels equal to those of fp32", agreement, floor.agreement),
                at_most("a mean difference to the scores of fp32", mean_difference, floor.mean_difference),
            ],
        ),
        Quality::Translation { texts, similarity, token_agreement: tokens, .. } => (
            texts,
            [
                at_least("a similarity to the translations of fp32", similarity, floor.similarity),
                at_least("a share of tokens equal to those of fp32", tokens, floor.token_agreement),
            ],
        ),
    };
    for (requirement, found, off) in checks {
        if off > 0.0 || off.is_nan() {
            return Err(Error::model(format!(
                "expected {requirement} over {texts} texts, but found {found:.4}, which is off by {off:.4}; build with \
                 `--precision fp32`, or change the recipe's floor"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quality(mean_cosine: f32, worst_cosine: f32) -> Quality {
        Quality::Embedding { texts: 300, mean_cosine, worst_cosine }
    }

    #[test]
    fn a_quality_below_the_floor_is_refused_with_the_difference() {
        let floor = QualityFloor::default();
        assert!(require(&quality(0.991, 0.975), &floor).is_ok());
        insta::assert_snapshot!(
            require(&quality(0.95, 0.9), &floor).unwrap_err(),
            @"expected a mean cosine to fp32 of at least 0.9900 over 300 texts, but found 0.9500, which is off by 0.0400; build with `--precision fp32`, or change the recipe's floor"
        );
        assert!(require(&quality(0.995, 0.96), &floor).is_err());
        assert!(require(&quality(f32::NAN, f32::NAN), &floor).is_err());
        let scores =
            |agreement, mean_difference| Quality::Classification { texts: 300, agreement, mean_difference };
        assert!(require(&scores(0.995, 0.005), &floor).is_ok());
        assert!(require(&scores(0.98, 0.005), &floor).is_err());
        assert!(require(&scores(1.0, 0.02), &floor).is_err());
    }
}
