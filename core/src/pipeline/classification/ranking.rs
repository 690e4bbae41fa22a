//! A query and texts to one relevance score per text: by a cross-encoder, which reads query and text together, by a model
//! that reads all texts together, by late interaction between multi-vectors, or by the similarity between embeddings, with
//! the model's prompts for queries and documents.

use std::sync::Arc;

pub use super::scores::RankingOptions;
use super::{ClassificationPipeline, listwise::ListwisePipeline, scores::ScoreFunction};
use crate::backend::Deadline;
use crate::pipeline::{
    embedding::{
        EmbeddingOptions, EmbeddingPipeline, VectorKind, check_finite, roles::TextRole,
        similarity::Similarity,
    },
    encoder::{encoding::Input, usage::Usage},
};
use kivu_base::{Error, Result};

/// A model that ranks texts.
#[derive(Clone, Debug)]
pub enum RankingPipeline {
    /// A cross-encoder.
    CrossEncoder(ClassificationPipeline),
    /// An embedding model.
    Embedding(EmbeddingPipeline),
    /// A model that reads the query and all texts in one prompt.
    Listwise(ListwisePipeline),
}

impl RankingPipeline {
    /// A cross-encoder; a model with several labels or none is refused.
    pub fn cross_encoder(pipeline: ClassificationPipeline) -> Result<Self> {
        let found = pipeline.settings().labels.len();
        if found != 1 {
            return Err(Error::model(format!(
                "expected a model with one label, but found {found}"
            )));
        }
        Ok(Self::CrossEncoder(pipeline))
    }

    /// The same model with another instruction in its template. A model without one is refused.
    pub fn with_instruction(&self, instruction: &str) -> Result<Self> {
        match self {
            Self::CrossEncoder(pipeline) => {
                Ok(Self::CrossEncoder(pipeline.with_instruction(instruction)?))
            }
            Self::Listwise(pipeline) => Ok(Self::Listwise(pipeline.with_instruction(instruction))),
            Self::Embedding(_) => Err(Error::invalid(
                "`instruction` is not supported: the model compares vectors",
            )
            .with_hint("leave it out")),
        }
    }

    /// The same model with another prompt before queries.
    pub fn with_prompt(&self, prompt: &str) -> Result<Self> {
        match self {
            Self::CrossEncoder(pipeline) => {
                Ok(Self::CrossEncoder(pipeline.with_query_prompt(prompt)?))
            }
            Self::Embedding(_) => Err(Error::invalid(
                "`prompt` is not supported: the model compares vectors",
            )
            .with_hint("leave it out")),
            Self::Listwise(_) => Err(Error::invalid(
                "`prompt` is not supported: the model has a template",
            )
            .with_hint("send an `instruction`")),
        }
    }

    /// Whether a text's score depends on the others in the request.
    pub fn is_listwise(&self) -> bool {
        matches!(self, Self::Listwise(_))
    }

    /// Maximum number of tokens in an input.
    pub fn max_tokens(&self) -> usize {
        match self {
            Self::CrossEncoder(pipeline) => pipeline.settings().max_tokens,
            Self::Embedding(pipeline) => pipeline.settings().max_tokens,
            Self::Listwise(pipeline) => pipeline.settings().max_text_tokens,
        }
    }

    /// Scores in text order.
    pub async fn score(
        &self,
        query: String,
        texts: Vec<String>,
        options: RankingOptions,
        deadline: Deadline,
    ) -> Result<(Vec<f32>, Usage)> {
        let (scores, usage) = self.computed(query, texts, options, deadline).await?;
        check_finite([&scores])?;
        Ok((scores, usage))
    }

    async fn computed(
        &self,
        query: String,
        texts: Vec<String>,
        options: RankingOptions,
        deadline: Deadline,
    ) -> Result<(Vec<f32>, Usage)> {
        match self {
            Self::CrossEncoder(pipeline) => {
                let query = pipeline.prompted(&query);
                let pairs = texts
                    .into_iter()
                    .map(|text| Input::Pair(Arc::clone(&query), text.into()));
                let logits = pipeline
                    .logits(pairs.collect(), options.truncation, deadline)
                    .await?;
                let function = if options.raw_scores {
                    ScoreFunction::None
                } else {
                    ScoreFunction::Sigmoid
                };
                Ok((function.apply(&logits.rows.concat()), logits.usage))
            }
            Self::Listwise(pipeline) => {
                pipeline
                    .score(query, texts, options.truncation, deadline)
                    .await
            }
            Self::Embedding(pipeline) if pipeline.settings().has(VectorKind::MultiVector) => {
                pipeline
                    .late_interaction(query, texts, options, deadline)
                    .await
            }
            Self::Embedding(pipeline) => {
                let similarity = pipeline.settings().dense()?.similarity;
                let of_role = |role: TextRole| {
                    let prompt_name = pipeline
                        .settings()
                        .prompt_name(role.name())?
                        .map(str::to_owned);
                    Ok(EmbeddingOptions {
                        prompt_name,
                        ..EmbeddingOptions::for_comparison(options.truncation, similarity)
                    })
                };
                let (of_query, of_text) = (of_role(TextRole::Query)?, of_role(TextRole::Document)?);
                let texts = texts.into_iter().map(Input::Text).collect();
                let (query, texts) = futures::try_join!(
                    pipeline.embed(vec![Input::Text(query)], &of_query, deadline),
                    pipeline.embed(texts, &of_text, deadline)
                )?;
                let scores = texts
                    .vectors
                    .iter()
                    .map(|text| similarity.of(&query.vectors[0], text));
                // Other similarities have no bounds.
                let is_raw = options.raw_scores || similarity != Similarity::Cosine;
                let scores = scores.map(|score| if is_raw { score } else { score.clamp(0.0, 1.0) });
                let usage = texts.usage.beside_query(&query.usage, texts.vectors.len());
                Ok((scores.collect(), usage))
            }
        }
    }
}
