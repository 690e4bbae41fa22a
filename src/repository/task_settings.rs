//! A bundle's task: the settings in its manifest.

use serde::{Deserialize, Serialize};

use kivu_core::pipeline::{
    Task,
    classification::{
        ClassificationSettings, label_scores::LabelScoresSettings,
        label_vectors::LabelEncoderSettings, listwise::ListwiseSettings,
    },
    embedding::EmbeddingSettings,
    entities::{
        token_classification::TokenClassificationSettings,
        zero_shot_entities::ZeroShotEntitiesSettings,
    },
    seq2seq::Seq2SeqSettings,
};

/// A model's settings, by what it computes. The task says what that is used for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskSettings {
    /// Vectors: the result, or compared by cosines for ranking and zero-shot classification.
    Embedding(EmbeddingSettings),
    /// Scores for the model's own labels: the result, or a cross-encoder's ranking or an entailment.
    Classification(ClassificationSettings),
    /// Scores for texts that the model reads together with a query.
    Listwise(ListwiseSettings),
    /// Token scores for the model's own labels.
    TokenClassification(TokenClassificationSettings),
    /// Scores for labels in the request, which the model reads together with the text.
    LabelScores(LabelScoresSettings),
    /// Span scores for labels in the request.
    ZeroShotEntities(ZeroShotEntitiesSettings),
    /// Texts from texts.
    #[serde(rename = "seq2seq")]
    Seq2Seq(Box<Seq2SeqSettings>),
}

impl TaskSettings {
    /// Whether a model with these settings can be for `task`.
    pub fn fit(&self, task: Task) -> bool {
        use Task::{
            FeatureExtraction, Summarization, TextClassification, TextRanking, TextToText,
            TokenClassification, Translation, ZeroShotClassification,
        };
        let tasks: &[Task] = match self {
            Self::Embedding(_) => &[FeatureExtraction, TextRanking, ZeroShotClassification],
            Self::Classification(_) => &[TextClassification, TextRanking, ZeroShotClassification],
            Self::Listwise(_) => &[TextRanking],
            Self::TokenClassification(_) | Self::ZeroShotEntities(_) => &[TokenClassification],
            Self::LabelScores(_) => &[ZeroShotClassification],
            Self::Seq2Seq(_) => &[Translation, Summarization, TextToText],
        };
        tasks.contains(&task)
    }

    /// Maximum tokens per input, special tokens included.
    pub fn max_tokens(&self) -> usize {
        match self {
            Self::Embedding(settings) => settings.max_tokens,
            Self::Classification(settings) => settings.max_tokens,
            Self::Listwise(settings) => settings.max_tokens,
            Self::TokenClassification(settings) => settings.max_tokens,
            Self::LabelScores(settings) => settings.max_tokens,
            Self::ZeroShotEntities(settings) => settings.max_tokens,
            Self::Seq2Seq(settings) => settings.max_tokens,
        }
    }

    /// The same settings for inputs with at most `limit` tokens.
    pub fn limited_to(mut self, limit: usize) -> Self {
        let max_tokens = match &mut self {
            Self::Embedding(settings) => &mut settings.max_tokens,
            Self::Classification(settings) => &mut settings.max_tokens,
            Self::Listwise(settings) => &mut settings.max_tokens,
            Self::TokenClassification(settings) => &mut settings.max_tokens,
            Self::LabelScores(settings) => &mut settings.max_tokens,
            Self::ZeroShotEntities(settings) => &mut settings.max_tokens,
            Self::Seq2Seq(settings) => &mut settings.max_tokens,
        };
        *max_tokens = limit.min(*max_tokens);
        self
    }

    /// An embedding model's settings, for any task.
    pub fn embedding(&self) -> Option<&EmbeddingSettings> {
        match self {
            Self::Embedding(settings) => Some(settings),
            _ => None,
        }
    }

    /// The model's own labels, for any task.
    pub fn labels(&self) -> Option<&[String]> {
        match self {
            Self::Classification(settings) => Some(&settings.labels),
            Self::TokenClassification(settings) => Some(&settings.labels),
            _ => None,
        }
    }

    /// The settings of a model that generates texts.
    pub fn seq2seq(&self) -> Option<&Seq2SeqSettings> {
        match self {
            Self::Seq2Seq(settings) => Some(settings),
            _ => None,
        }
    }

    /// The settings of the encoder that reads labels, if there is one.
    pub fn label_encoder(&self) -> Option<&LabelEncoderSettings> {
        match self {
            Self::ZeroShotEntities(settings) => settings.label_encoder.as_ref(),
            _ => None,
        }
    }
}
