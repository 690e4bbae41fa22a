//! What a bundle's model does, as far as its manifest says.

use super::manifest::Manifest;
use kivu_base::error::{Error, Result};
use kivu_core::pipeline::{
    Task,
    classification::{ClassificationSettings, label_scores::LabelScoresSettings},
    embedding::EmbeddingSettings,
    entities::{
        token_classification::TokenClassificationSettings,
        zero_shot_entities::ZeroShotEntitiesSettings,
    },
    seq2seq::Seq2SeqSettings,
};

/// The settings for a manifest's task.
#[derive(Clone, Copy, Debug)]
pub enum TaskSettings<'a> {
    /// `feature-extraction`
    Embedding(&'a EmbeddingSettings),
    /// `text-classification`
    Classification(&'a ClassificationSettings),
    /// `token-classification`
    TokenClassification(&'a TokenClassificationSettings),
    /// `token-classification`, with labels in the request
    ZeroShotEntities(&'a ZeroShotEntitiesSettings),
    /// `zero-shot-classification` by cosines
    ZeroShotEmbedding(&'a EmbeddingSettings),
    /// `zero-shot-classification` by natural-language inference
    Entailment(&'a ClassificationSettings),
    /// `zero-shot-classification` by a model that reads labels and text together
    LabelScores(&'a LabelScoresSettings),
    /// `text-ranking` by vectors
    RankingEmbedding(&'a EmbeddingSettings),
    /// `text-ranking` by a model that reads query and text together
    CrossEncoder(&'a ClassificationSettings),
    /// `translation`
    Translation(&'a Seq2SeqSettings),
    /// `summarization`, `text2text-generation`
    TextToText(&'a Seq2SeqSettings),
}

impl<'a> TaskSettings<'a> {
    /// An error for a manifest that lacks the settings for its task.
    pub fn of(manifest: &'a Manifest) -> Result<Self> {
        let Manifest {
            embedding,
            classification,
            token_classification,
            ..
        } = manifest;
        let Manifest {
            label_scores,
            zero_shot_entities,
            seq2seq,
            ..
        } = manifest;
        let embeds = classification.is_none() && embedding.is_some();
        let embedding = || {
            embedding
                .as_ref()
                .ok_or_else(|| lacks(manifest, "embedding"))
        };
        let classification = || {
            classification
                .as_ref()
                .ok_or_else(|| lacks(manifest, "classification"))
        };
        let seq2seq = || seq2seq.as_ref().ok_or_else(|| lacks(manifest, "seq2seq"));
        Ok(match manifest.task {
            Task::FeatureExtraction => Self::Embedding(embedding()?),
            Task::TextClassification => Self::Classification(classification()?),
            Task::TokenClassification => match (zero_shot_entities, token_classification) {
                (Some(settings), _) => Self::ZeroShotEntities(settings),
                (None, Some(settings)) => Self::TokenClassification(settings),
                (None, None) => return Err(lacks(manifest, "token_classification")),
            },
            Task::TextRanking if embeds => Self::RankingEmbedding(embedding()?),
            Task::TextRanking => Self::CrossEncoder(classification()?),
            Task::ZeroShotClassification if embeds => Self::ZeroShotEmbedding(embedding()?),
            Task::ZeroShotClassification => match label_scores {
                Some(settings) => Self::LabelScores(settings),
                None => Self::Entailment(classification()?),
            },
            Task::Translation => Self::Translation(seq2seq()?),
            Task::Summarization | Task::TextToText => Self::TextToText(seq2seq()?),
        })
    }

    /// Maximum tokens per input, special tokens included.
    pub fn max_tokens(&self) -> usize {
        match self {
            Self::Embedding(settings)
            | Self::ZeroShotEmbedding(settings)
            | Self::RankingEmbedding(settings) => settings.max_tokens,
            Self::Classification(settings)
            | Self::Entailment(settings)
            | Self::CrossEncoder(settings) => settings.max_tokens,
            Self::TokenClassification(settings) => settings.max_tokens,
            Self::LabelScores(settings) => settings.max_tokens,
            Self::ZeroShotEntities(settings) => settings.max_tokens,
            Self::Translation(settings) | Self::TextToText(settings) => settings.max_tokens,
        }
    }

    /// For the task `feature-extraction`.
    pub fn embedding(&self) -> Option<&'a EmbeddingSettings> {
        match self {
            Self::Embedding(settings) => Some(settings),
            _ => None,
        }
    }

    /// The model's own labels, for texts or tokens.
    pub fn labels(&self) -> Option<&'a [String]> {
        match self {
            Self::Classification(settings) => Some(&settings.labels),
            Self::TokenClassification(settings) => Some(&settings.labels),
            _ => None,
        }
    }

    /// How a model ranks or does zero-shot classification: `embedding` or `model`, as recipes name it.
    pub fn strategy(&self) -> Option<&'static str> {
        match self {
            Self::RankingEmbedding(_) | Self::ZeroShotEmbedding(_) => Some("embedding"),
            Self::CrossEncoder(_) | Self::Entailment(_) | Self::LabelScores(_) => Some("model"),
            _ => None,
        }
    }

    /// For the task `translation`.
    pub fn translation(&self) -> Option<&'a Seq2SeqSettings> {
        match self {
            Self::Translation(settings) => Some(settings),
            _ => None,
        }
    }
}

fn lacks(manifest: &Manifest, settings: &str) -> Error {
    Error::model(format!(
        "expected `{settings}` in the manifest of `{}`, whose task is `{}`",
        manifest.name, manifest.task
    ))
}
