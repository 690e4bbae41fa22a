//! Ranking: a query and texts to relevance scores.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Scope, TruncationParameters};
use kivu_base::{Error, Result, json::flattened};
use kivu_core::{
    backend::Deadline,
    pipeline::{
        Usage,
        classification::{ranking::RankingPipeline, scores::RankingOptions},
        embedding::instructions::{check_instruction, check_size},
    },
};

/// Ranking parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct RankingParameters {
    /// Return logits, cosines or product sums instead of scores from 0 to 1
    pub raw_scores: Option<bool>,
    /// What makes a text relevant: replaces the instruction in the model's template, if it has one
    pub instruction: Option<String>,
    /// A text to put before the query, instead of the model's prompt.
    pub prompt: Option<String>,
    /// How texts above the token limit are handled.
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
    /// Applies the defaults, and the instruction.
    pub fn prepare(&self, pipeline: &RankingPipeline, scope: &Scope) -> Result<Ranker> {
        let truncation = self.truncation.truncation(scope);
        let options = RankingOptions {
            truncation,
            raw_scores: self.raw_scores.unwrap_or(false),
        };
        if self.instruction.is_some() && self.prompt.is_some() {
            return Err(Error::invalid(
                "expected `instruction` or `prompt`, which replaces the whole text before the query, but found both",
            )
            .with_hint("leave one of them out"));
        }
        let mut pipeline = pipeline.clone();
        if let Some(instruction) = &self.instruction {
            check_instruction("instruction", instruction)?;
            pipeline = pipeline.with_instruction(instruction)?;
        }
        if let Some(prompt) = &self.prompt {
            check_size("prompt", prompt)?;
            pipeline = pipeline.with_prompt(prompt)?;
        }
        Ok(Ranker { pipeline, options })
    }
}

impl Ranker {
    /// Whether a text's score depends on the others in the request.
    pub fn is_listwise(&self) -> bool {
        self.pipeline.is_listwise()
    }

    /// Scores in text order.
    pub fn run(
        &self,
        query: String,
        texts: Vec<String>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<(Vec<f32>, Usage)>> {
        Box::pin(self.pipeline.score(query, texts, self.options, deadline))
    }
}
