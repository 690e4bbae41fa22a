use std::sync::Arc;

use super::loaded::{Loaded, LoadedRoute, Tokenizers};
use crate::repository::{Manifest, TaskSettings};
use kivu_base::error::Result;
use kivu_core::{
    backend::Deadline,
    pipeline::{
        Task,
        classification::{
            ClassificationPipeline, ClassificationSettings,
            label_scores::{LabelScoresPipeline, LabelScoresSettings},
            label_vectors::LabelEncoder,
            listwise::{ListwisePipeline, ListwiseSettings},
            ranking::RankingPipeline,
            zero_shot::ZeroShotPipeline,
        },
        embedding::{EmbeddingPipeline, EmbeddingSettings},
        encoder::Encoder,
        entities::{
            token_classification::{TokenClassificationPipeline, TokenClassificationSettings},
            zero_shot_entities::{ZeroShotEntitiesPipeline, ZeroShotEntitiesSettings},
        },
        seq2seq::{Seq2SeqParts, Seq2SeqPipeline, Seq2SeqSettings},
    },
};
use kivu_text::Tokenizer;

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
            Self::Ranking(RankingPipeline::Listwise(pipeline)) => Ok(pipeline.encoder()),
            Self::TokenClassification(pipeline) => Ok(pipeline.encoder()),
            Self::ZeroShot(ZeroShotPipeline::Labels(pipeline)) => Ok(pipeline.encoder()),
            Self::ZeroShotEntities(pipeline) => Ok(pipeline.encoder()),
            Self::Translation(pipeline) | Self::TextToText(pipeline) => Err(pipeline),
        }
    }

    /// Input tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.encoder()
            .map_or_else(Seq2SeqPipeline::tokenizer, Encoder::tokenizer)
    }

    /// Maximum tokens per input, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.encoder().map_or_else(
            |pipeline| pipeline.settings().max_tokens,
            Encoder::max_tokens,
        )
    }

    /// Whether the model may run on a fleet.
    pub fn has_fleet(&self) -> bool {
        self.encoder()
            .map_or_else(Seq2SeqPipeline::has_fleet, Encoder::has_fleet)
    }

    /// Forgets measured speeds, and closes the connections to the fleet.
    pub fn forget(&self) {
        self.encoder()
            .map_or_else(Seq2SeqPipeline::forget, Encoder::forget);
    }

    /// Fails if the fleet's model does not fit the task; an unreachable fleet is not an error.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
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
    pub fn new(manifest: &Manifest, loaded: Loaded, limit: Option<usize>) -> Result<Self> {
        let Tokenizers {
            source: tokenizer,
            target,
            shortlist,
            ranges,
            query_weights,
            labels,
        } = loaded.tokenizers;
        let max_tokens = |own: usize| own.min(limit.unwrap_or(usize::MAX));
        let route = match loaded.route {
            LoadedRoute::Encoder(route) => route,
            LoadedRoute::Seq2Seq(route) => {
                let own = manifest.settings.seq2seq();
                let own = own.ok_or_else(|| manifest.lacks_settings())?;
                let own = Seq2SeqSettings {
                    max_tokens: max_tokens(own.max_tokens),
                    ..own.clone()
                };
                let parts = Seq2SeqParts {
                    tokenizer,
                    target,
                    shortlist,
                    route,
                };
                let pipeline = Seq2SeqPipeline::new(parts, own)?;
                return Ok(match manifest.task {
                    Task::Translation => Self::Translation(pipeline),
                    _ => Self::TextToText(pipeline),
                });
            }
        };
        let embedding = |own: &EmbeddingSettings| {
            let own = EmbeddingSettings {
                max_tokens: max_tokens(own.max_tokens),
                ..own.clone()
            };
            let pipeline = EmbeddingPipeline::new(Arc::clone(&tokenizer), route.clone(), own)?;
            Ok(pipeline
                .with_ranges(ranges.clone())
                .with_query_weights(query_weights.clone()))
        };
        let classification = |own: &ClassificationSettings| {
            let own = ClassificationSettings {
                max_tokens: max_tokens(own.max_tokens),
                ..own.clone()
            };
            ClassificationPipeline::new(Arc::clone(&tokenizer), route.clone(), own)
        };
        Ok(match (manifest.task, &manifest.settings) {
            (Task::FeatureExtraction, TaskSettings::Embedding(own)) => {
                Self::Embedding(embedding(own)?)
            }
            (Task::TextClassification, TaskSettings::Classification(own)) => {
                Self::Classification(classification(own)?)
            }
            (Task::TokenClassification, TaskSettings::ZeroShotEntities(own)) => {
                let own = ZeroShotEntitiesSettings {
                    max_tokens: max_tokens(own.max_tokens),
                    ..own.clone()
                };
                let encoder = own
                    .label_encoder
                    .as_ref()
                    .zip(labels)
                    .zip(loaded.label_encoder);
                let encoder = encoder
                    .map(|((own, tokenizer), backend)| LabelEncoder::new(tokenizer, backend, own))
                    .transpose()?;
                Self::ZeroShotEntities(ZeroShotEntitiesPipeline::new(
                    tokenizer, route, own, encoder,
                )?)
            }
            (Task::TokenClassification, TaskSettings::TokenClassification(own)) => {
                let own = TokenClassificationSettings {
                    max_tokens: max_tokens(own.max_tokens),
                    ..own.clone()
                };
                Self::TokenClassification(TokenClassificationPipeline::new(tokenizer, route, own)?)
            }
            (Task::TextRanking, TaskSettings::Embedding(own)) => {
                Self::Ranking(RankingPipeline::Embedding(embedding(own)?))
            }
            (Task::TextRanking, TaskSettings::Classification(own)) => {
                Self::Ranking(RankingPipeline::cross_encoder(classification(own)?)?)
            }
            (Task::TextRanking, TaskSettings::Listwise(own)) => {
                let own = ListwiseSettings {
                    max_tokens: max_tokens(own.max_tokens),
                    ..own.clone()
                };
                Self::Ranking(RankingPipeline::Listwise(ListwisePipeline::new(
                    tokenizer, route, own,
                )?))
            }
            (Task::ZeroShotClassification, TaskSettings::Embedding(own)) => {
                Self::ZeroShot(ZeroShotPipeline::embedding(embedding(own)?))
            }
            (Task::ZeroShotClassification, TaskSettings::Classification(own)) => {
                Self::ZeroShot(ZeroShotPipeline::entailment(classification(own)?)?)
            }
            (Task::ZeroShotClassification, TaskSettings::LabelScores(own)) => {
                let own = LabelScoresSettings {
                    max_tokens: max_tokens(own.max_tokens),
                    ..own.clone()
                };
                Self::ZeroShot(ZeroShotPipeline::Labels(LabelScoresPipeline::new(
                    tokenizer, route, own,
                )?))
            }
            _ => return Err(manifest.lacks_settings()),
        })
    }
}
