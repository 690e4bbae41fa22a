//! Ranking: a query and texts to relevance scores.

use clap::Args;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Scope, TruncationParameters};
use crate::{
    backend::Deadline,
    error::Result,
    json::flattened,
    pipeline::{Usage, ranking::RankingPipeline, scores::RankingOptions},
};

/// Ranking parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema, Args)]
#[serde(expecting = "an object")]
pub struct RankingParameters {
    /// Return logits, cosines or product sums instead of scores from 0 to 1
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub raw_scores: Option<bool>,
    /// How texts above the token limit are handled.
    #[arg(skip)]
    #[serde(flatten, deserialize_with = "flattened")]
    pub truncation: TruncationParameters,
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
        let truncation = self.truncation.truncation(scope);
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
