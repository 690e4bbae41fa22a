use std::sync::Arc;

use super::load::{Loaded, LoadedRoute, Tokenizers};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    pipeline::{
        Task,
        classification::ClassificationPipeline,
        embedding::EmbeddingPipeline,
        encoder::Encoder,
        ranking::RankingPipeline,
        seq2seq::{Seq2SeqParts, Seq2SeqPipeline},
        token_classification::TokenClassificationPipeline,
        zero_shot::ZeroShotPipeline,
        zero_shot_entities::ZeroShotEntitiesPipeline,
    },
    repository::Manifest,
    tokenizer::Tokenizer,
};

/// A model's pipeline, by task.
#[derive(Clone, Debug)]
pub enum Pipeline {
    /// `feature-extraction`
    Embedding(EmbeddingPipeline),
    /// `text-classification`
    Classification(ClassificationPipeline),
    /// `token-classification`
    TokenClassification(TokenClassificationPipeline),
    /// `token-classification`, with labels in the request
    ZeroShotEntities(ZeroShotEntitiesPipeline),
    /// `zero-shot-classification`
    ZeroShot(ZeroShotPipeline),
    /// `text-ranking`
    Ranking(RankingPipeline),
    /// `translation`
    Translation(Seq2SeqPipeline),
    /// `summarization`, `text2text-generation`
    TextToText(Seq2SeqPipeline),
}

impl Pipeline {
    /// The encoder, for all tasks that do not generate texts.
    fn encoder(&self) -> Result<&Encoder, &Seq2SeqPipeline> {
        match self {
            Self::Embedding(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _))
            | Self::Ranking(RankingPipeline::Embedding(pipeline)) => Ok(pipeline.encoder()),
            Self::Classification(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
            | Self::Ranking(RankingPipeline::CrossEncoder(pipeline)) => Ok(pipeline.encoder()),
            Self::TokenClassification(pipeline) => Ok(pipeline.encoder()),
            Self::ZeroShotEntities(pipeline) => Ok(pipeline.encoder()),
            Self::Translation(pipeline) | Self::TextToText(pipeline) => Err(pipeline),
        }
    }

    /// Input tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.encoder().map_or_else(Seq2SeqPipeline::tokenizer, Encoder::tokenizer)
    }

    /// Maximum tokens per input, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.encoder().map_or_else(|pipeline| pipeline.settings().max_tokens, Encoder::max_tokens)
    }

    pub(super) fn has_fleet(&self) -> bool {
        self.encoder().map_or_else(Seq2SeqPipeline::has_fleet, Encoder::has_fleet)
    }

    pub(super) async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        match self.encoder() {
            Ok(encoder) => encoder.check_fleet(deadline).await,
            Err(pipeline) => pipeline.check_fleet(deadline).await,
        }
    }

    /// The embedding model, for the task `feature-extraction`.
    pub fn embedding(&self) -> Option<&EmbeddingPipeline> {
        match self {
            Self::Embedding(pipeline) => Some(pipeline),
            _ => None,
        }
    }

    /// The embedding model, for any task that uses one.
    pub fn embedding_of_any_task(&self) -> Option<&EmbeddingPipeline> {
        match self {
            Self::Embedding(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _))
            | Self::Ranking(RankingPipeline::Embedding(pipeline)) => Some(pipeline),
            _ => None,
        }
    }

    /// The classifier, for the task `text-classification`.
    pub fn classification(&self) -> Option<&ClassificationPipeline> {
        match self {
            Self::Classification(pipeline) => Some(pipeline),
            _ => None,
        }
    }

    /// The model's own labels, for texts or tokens.
    pub fn labels(&self) -> Option<&[String]> {
        match self {
            Self::Classification(pipeline) => Some(&pipeline.settings().labels),
            Self::TokenClassification(pipeline) => Some(&pipeline.settings().labels),
            _ => None,
        }
    }

    /// The ranking model, for the task `text-ranking`.
    pub fn ranking(&self) -> Option<&RankingPipeline> {
        match self {
            Self::Ranking(pipeline) => Some(pipeline),
            _ => None,
        }
    }

    /// The translation model, for the task `translation`.
    pub fn translation(&self) -> Option<&Seq2SeqPipeline> {
        match self {
            Self::Translation(pipeline) => Some(pipeline),
            _ => None,
        }
    }

    /// The model that generates texts, for any task.
    pub fn generator(&self) -> Option<&Seq2SeqPipeline> {
        self.encoder().err()
    }

    /// Creates the pipeline for a manifest's task, for inputs with at most `limit` tokens if the model takes more.
    pub(super) fn new(manifest: &Manifest, loaded: Loaded, limit: Option<usize>) -> Result<Self> {
        let Tokenizers { source: tokenizer, target, shortlist, ranges, query_weights } = loaded.tokenizers;
        let limit = limit.unwrap_or(usize::MAX);
        let route = match loaded.route {
            LoadedRoute::Encoder(route) => route,
            LoadedRoute::Seq2Seq(route) => {
                let settings = manifest.seq2seq.clone();
                let mut settings = settings.ok_or_else(|| lacks(manifest, "seq2seq"))?;
                settings.max_tokens = settings.max_tokens.min(limit);
                let parts = Seq2SeqParts { tokenizer, target, shortlist, route };
                let pipeline = Seq2SeqPipeline::new(parts, settings)?;
                return Ok(match manifest.task {
                    Task::Translation => Self::Translation(pipeline),
                    _ => Self::TextToText(pipeline),
                });
            }
        };
        let is_embedding = manifest.classification.is_none() && manifest.embedding.is_some();
        let embedding = || {
            let settings = manifest.embedding.clone();
            let mut settings = settings.ok_or_else(|| lacks(manifest, "embedding"))?;
            settings.max_tokens = settings.max_tokens.min(limit);
            let pipeline = EmbeddingPipeline::new(Arc::clone(&tokenizer), route.clone(), settings)?;
            Ok(pipeline.with_ranges(ranges.clone()).with_query_weights(query_weights.clone()))
        };
        let classification = || {
            let settings = manifest.classification.clone();
            let mut settings = settings.ok_or_else(|| lacks(manifest, "classification"))?;
            settings.max_tokens = settings.max_tokens.min(limit);
            ClassificationPipeline::new(Arc::clone(&tokenizer), route.clone(), settings)
        };
        match manifest.task {
            Task::FeatureExtraction => embedding().map(Self::Embedding),
            Task::TextClassification => classification().map(Self::Classification),
            Task::TokenClassification if manifest.zero_shot_entities.is_some() => {
                let settings = manifest.zero_shot_entities.clone();
                let mut settings = settings.ok_or_else(|| lacks(manifest, "zero_shot_entities"))?;
                settings.max_tokens = settings.max_tokens.min(limit);
                ZeroShotEntitiesPipeline::new(tokenizer, route, settings).map(Self::ZeroShotEntities)
            }
            Task::TokenClassification => {
                let settings = manifest.token_classification.clone();
                let mut settings = settings.ok_or_else(|| lacks(manifest, "token_classification"))?;
                settings.max_tokens = settings.max_tokens.min(limit);
                TokenClassificationPipeline::new(tokenizer, route, settings).map(Self::TokenClassification)
            }
            Task::TextRanking if is_embedding => Ok(Self::Ranking(RankingPipeline::Embedding(embedding()?))),
            Task::TextRanking => RankingPipeline::cross_encoder(classification()?).map(Self::Ranking),
            Task::ZeroShotClassification if is_embedding => {
                Ok(Self::ZeroShot(ZeroShotPipeline::embedding(embedding()?)))
            }
            Task::ZeroShotClassification => {
                ZeroShotPipeline::entailment(classification()?).map(Self::ZeroShot)
            }
            Task::Translation | Task::Summarization | Task::TextToText => Err(lacks(manifest, "seq2seq")),
        }
    }
}

fn lacks(manifest: &Manifest, settings: &str) -> Error {
    Error::model(format!(
        "expected `{settings}` in the manifest of `{}`, whose task is `{}`",
        manifest.name, manifest.task
    ))
}
