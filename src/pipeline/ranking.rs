//! A query and texts to how well each text answers the query: by a cross-encoder with one label, which reads
//! both together, or by the angle between their embeddings.

use std::sync::Arc;

use super::{
    Usage,
    classification::{ClassificationInput, ClassificationPipeline, ScoreFunction},
    embedding::{EmbeddingOptions, EmbeddingPipeline, Input},
    pooling::cosine,
};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    tokenizer::Truncation,
};

/// How texts are ranked.
#[derive(Clone, Debug)]
pub enum RankingPipeline {
    /// By a model that reads query and text together.
    CrossEncoder(ClassificationPipeline),
    /// By an embedding model.
    Embedding(EmbeddingPipeline),
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankingOptions {
    /// What to do with pairs that are too long.
    pub truncation: Truncation,
    /// Whether scores are the model's own (logits, cosines) instead of numbers from 0 to 1.
    pub raw_scores: bool,
}

impl RankingPipeline {
    /// Checks that a model has the one label that ranking takes.
    pub fn cross_encoder(pipeline: ClassificationPipeline) -> Result<Self> {
        let found = pipeline.settings().labels.len();
        if found != 1 {
            return Err(Error::model(format!("expected a model with one label, but found {found}")));
        }
        Ok(Self::CrossEncoder(pipeline))
    }

    /// The score of each text, in the order of the texts.
    pub async fn score(
        &self,
        query: String,
        texts: Vec<String>,
        options: RankingOptions,
        deadline: Deadline,
    ) -> Result<(Vec<f32>, Usage)> {
        match self {
            Self::CrossEncoder(pipeline) => {
                let query: Arc<str> = query.into();
                let pair = |text: String| ClassificationInput::Pair(Arc::clone(&query), text.into());
                let pairs = texts.into_iter().map(pair);
                let logits = pipeline.logits(pairs.collect(), options.truncation.into(), deadline).await?;
                let values: Vec<f32> = logits.rows.iter().flatten().copied().collect();
                let function = if options.raw_scores { ScoreFunction::None } else { ScoreFunction::Sigmoid };
                Ok((function.apply(&values), logits.usage))
            }
            Self::Embedding(pipeline) => {
                let inputs = [query].into_iter().chain(texts).map(Input::Text).collect();
                let embedding = EmbeddingOptions {
                    truncation: options.truncation,
                    normalize: Some(true),
                    prompt_name: None,
                    dimensions: None,
                    max_values: usize::MAX,
                };
                let embeddings = pipeline.embed(inputs, &embedding, deadline).await?;
                let (query, texts) = embeddings.vectors.split_at(1);
                let scores = texts.iter().map(|text| cosine(&query[0], text));
                let scores =
                    scores.map(|score| if options.raw_scores { score } else { score.clamp(0.0, 1.0) });
                Ok((scores.collect(), embeddings.usage))
            }
        }
    }
}
