//! Ranking: a query and texts to relevance scores.

use clap::Args;
use serde::Deserialize;

use super::Scope;
use crate::{
    backend::Deadline,
    error::Result,
    pipeline::{
        Usage,
        ranking::{RankingOptions, RankingPipeline},
    },
    tokenizer::Side,
};

/// Ranking parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Args)]
#[serde(expecting = "an object")]
pub struct RankingParameters {
    /// Return logits, cosines or product sums instead of scores from 0 to 1
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub raw_scores: Option<bool>,
    /// Whether texts above the token limit are truncated; otherwise they are refused.
    #[arg(skip)]
    pub truncate: Option<bool>,
    /// The text end that is cut off; the right one by default.
    #[arg(skip)]
    pub truncation_direction: Option<Side>,
}

/// A ranking model with its parameters.
#[derive(Clone, Debug)]
pub struct Ranker {
    pipeline: RankingPipeline,
    options: RankingOptions,
}

impl RankingParameters {
    /// Applies the defaults.
    pub fn prepare(&self, pipeline: &RankingPipeline, scope: &Scope) -> Ranker {
        let truncation = scope.truncation(self.truncate, self.truncation_direction);
        let options = RankingOptions { truncation, raw_scores: self.raw_scores.unwrap_or(false) };
        Ranker { pipeline: pipeline.clone(), options }
    }
}

impl Ranker {
    /// Scores in text order.
    pub async fn run(
        &self,
        query: String,
        texts: Vec<String>,
        deadline: Deadline,
    ) -> Result<(Vec<f32>, Usage)> {
        self.pipeline.score(query, texts, self.options, deadline).await
    }
}
