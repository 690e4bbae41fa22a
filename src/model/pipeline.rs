use std::sync::Arc;

use super::loaded::{Loaded, LoadedRoute, Tokenizers};
use crate::repository::{Manifest, TaskSettings};
use kivu_base::{Error, Result};
use kivu_core::{
    backend::{Deadline, routing::Route},
    pipeline::{
        Task,
        classification::{
            ClassificationPipeline, label_scores::LabelScoresPipeline, label_vectors::LabelEncoder,
            listwise::ListwisePipeline, ranking::RankingPipeline, zero_shot::ZeroShotPipeline,
        },
        embedding::EmbeddingPipeline,
        encoder::Encoder,
        entities::{
            token_classification::TokenClassificationPipeline,
            zero_shot_entities::ZeroShotEntitiesPipeline,
        },
        seq2seq::{Seq2SeqParts, Seq2SeqPipeline},
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

    /// The tokenizer whose ids are decoded: a generator's for its targets, as in `transformers`.
    pub fn target_tokenizer(&self) -> &Arc<Tokenizer> {
        self.encoder()
            .map_or_else(Seq2SeqPipeline::target_tokenizer, Encoder::tokenizer)
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

    /// The model that computes vectors or scores; the pipeline of a model that generates texts.
    pub fn encoder_pipeline(&self) -> Result<EncoderPipeline, &Seq2SeqPipeline> {
        Ok(match self {
            Self::Embedding(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _))
            | Self::Ranking(RankingPipeline::Embedding(pipeline)) => {
                EncoderPipeline::Embedding(pipeline.clone())
            }
            Self::Classification(pipeline)
            | Self::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
            | Self::Ranking(RankingPipeline::CrossEncoder(pipeline)) => {
                EncoderPipeline::Classification(pipeline.clone())
            }
            Self::Ranking(RankingPipeline::Listwise(pipeline)) => {
                EncoderPipeline::Listwise(pipeline.clone())
            }
            Self::TokenClassification(pipeline) => {
                EncoderPipeline::TokenClassification(pipeline.clone())
            }
            Self::ZeroShot(ZeroShotPipeline::Labels(pipeline)) => {
                EncoderPipeline::LabelScores(pipeline.clone())
            }
            Self::ZeroShotEntities(pipeline) => EncoderPipeline::ZeroShotEntities(pipeline.clone()),
            Self::Translation(pipeline) | Self::TextToText(pipeline) => return Err(pipeline),
        })
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
        let settings = manifest.settings.clone();
        let settings = settings.limited_to(limit.unwrap_or(usize::MAX));
        let (route, settings) = match (loaded.route, settings) {
            (LoadedRoute::Encoder(route), settings) => (route, settings),
            (LoadedRoute::Seq2Seq(route), TaskSettings::Seq2Seq(settings)) => {
                let parts = Seq2SeqParts {
                    tokenizer,
                    target,
                    shortlist,
                    route,
                };
                let pipeline = Seq2SeqPipeline::new(parts, *settings)?;
                return Ok(match manifest.task {
                    Task::Translation => Self::Translation(pipeline),
                    _ => Self::TextToText(pipeline),
                });
            }
            _ => return Err(manifest.lacks_settings()),
        };
        let encoder = settings.label_encoder().zip(labels);
        let labels = encoder
            .zip(loaded.label_encoder)
            .map(|((own, tokenizer), backend)| LabelEncoder::new(tokenizer, backend, own))
            .transpose()?;
        let with_files = |pipeline: EmbeddingPipeline| {
            let pipeline = pipeline.with_ranges(ranges);
            pipeline.with_query_weights(query_weights)
        };
        let encoder = EncoderPipeline::new(tokenizer, route, settings, labels)?;
        Ok(match (manifest.task, encoder) {
            (Task::FeatureExtraction, EncoderPipeline::Embedding(own)) => {
                Self::Embedding(with_files(own))
            }
            (Task::TextRanking, EncoderPipeline::Embedding(own)) => {
                Self::Ranking(RankingPipeline::Embedding(with_files(own)))
            }
            (Task::ZeroShotClassification, EncoderPipeline::Embedding(own)) => {
                Self::ZeroShot(ZeroShotPipeline::embedding(with_files(own)))
            }
            (Task::TextClassification, EncoderPipeline::Classification(own)) => {
                Self::Classification(own)
            }
            (Task::TextRanking, EncoderPipeline::Classification(own)) => {
                Self::Ranking(RankingPipeline::cross_encoder(own)?)
            }
            (Task::ZeroShotClassification, EncoderPipeline::Classification(own)) => {
                Self::ZeroShot(ZeroShotPipeline::entailment(own)?)
            }
            (Task::TextRanking, EncoderPipeline::Listwise(own)) => {
                Self::Ranking(RankingPipeline::Listwise(own))
            }
            (Task::TokenClassification, EncoderPipeline::TokenClassification(own)) => {
                Self::TokenClassification(own)
            }
            (Task::TokenClassification, EncoderPipeline::ZeroShotEntities(own)) => {
                Self::ZeroShotEntities(own)
            }
            (Task::ZeroShotClassification, EncoderPipeline::LabelScores(own)) => {
                Self::ZeroShot(ZeroShotPipeline::Labels(own))
            }
            _ => return Err(manifest.lacks_settings()),
        })
    }
}

/// A model that computes vectors or scores, by its settings.
#[derive(Clone, Debug)]
pub enum EncoderPipeline {
    /// Embeds texts.
    Embedding(EmbeddingPipeline),
    /// Scores a text, or a pair of texts, for the model's own labels.
    Classification(ClassificationPipeline),
    /// Scores texts that it reads together with a query.
    Listwise(ListwisePipeline),
    /// Scores tokens for the model's own labels.
    TokenClassification(TokenClassificationPipeline),
    /// Scores texts for labels that the model reads with them.
    LabelScores(LabelScoresPipeline),
    /// Scores spans for labels that the model reads with the text or on their own.
    ZeroShotEntities(ZeroShotEntitiesPipeline),
}

impl EncoderPipeline {
    /// Joins a tokenizer and a model. `labels` reads labels, if the settings name an encoder for them.
    ///
    /// # Errors
    /// The model's signature differs from the settings, or they are for a model that generates texts.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: TaskSettings,
        labels: Option<LabelEncoder>,
    ) -> Result<Self> {
        Ok(match settings {
            TaskSettings::Embedding(own) => {
                Self::Embedding(EmbeddingPipeline::new(tokenizer, route, own)?)
            }
            TaskSettings::Classification(own) => {
                Self::Classification(ClassificationPipeline::new(tokenizer, route, own)?)
            }
            TaskSettings::Listwise(own) => {
                Self::Listwise(ListwisePipeline::new(tokenizer, route, own)?)
            }
            TaskSettings::TokenClassification(own) => {
                Self::TokenClassification(TokenClassificationPipeline::new(tokenizer, route, own)?)
            }
            TaskSettings::LabelScores(own) => {
                Self::LabelScores(LabelScoresPipeline::new(tokenizer, route, own)?)
            }
            TaskSettings::ZeroShotEntities(own) => Self::ZeroShotEntities(
                ZeroShotEntitiesPipeline::new(tokenizer, route, own, labels)?,
            ),
            TaskSettings::Seq2Seq(_) => {
                return Err(Error::model(
                    "expected an encoder, but found a model that generates texts",
                ));
            }
        })
    }
}
