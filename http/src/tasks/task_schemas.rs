//! Schemas for bodies and responses that depend on the model's task. These types are never constructed.

#![expect(
    dead_code,
    clippy::large_enum_variant,
    reason = "only their schemas are used"
)]

use schemars::JsonSchema;

use super::{
    classification::{ClassifyRequest, PredictRequest, ZeroShotRequest},
    embedding::{EmbedRequest, SimilarityRequest, SparseValue, VectorsByKind},
    generation::HubGenerationRequest,
    ranking::RerankRequest,
    token_classification::{FindEntitiesRequest, LabelTokensRequest},
};
use crate::bodies::{
    response::{OneOrMany, Prediction, Rank},
    vectors::Vector,
};
use kivu::{
    json_schemas::{Text, Texts},
    pipeline::entities::TextEntities,
};

/// TEI's body, by the model's task.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum DefaultRequest {
    Embed(EmbedRequest),
    Similarity(SimilarityRequest),
    Predict(PredictRequest),
    LabelTokens(LabelTokensRequest),
    FindEntities(FindEntitiesRequest),
    ZeroShot(ZeroShotRequest),
    Rerank(RerankRequest),
    Generate(HubGenerationRequest),
}

/// The model hub's body, by the model's task.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum HubRequest {
    Default(DefaultRequest),
    Classify(ClassifyRequest),
    Rank(HubRankingRequest),
}

/// The model hub's body for a ranking model.
#[derive(JsonSchema)]
pub struct HubRankingRequest {
    /// The query, and the texts to rank by it.
    inputs: HubRankingInputs,
}

#[derive(JsonSchema)]
#[schemars(inline)]
struct HubRankingInputs {
    /// The text by which the others are ranked.
    query: Text,
    /// The texts to rank.
    texts: Texts,
}

/// A task's response.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum TaskResponse {
    Kinds(Vec<VectorsByKind>),
    Sparse(Vec<Vec<SparseValue>>),
    Dense(Vec<Vector>),
    Similarities(Vec<f32>),
    Tokens(Vec<Vec<Vec<f32>>>),
    Predictions(OneOrMany<Vec<Prediction<'static>>>),
    Entities(OneOrMany<TextEntities>),
    Ranks(Vec<Rank<'static>>),
    Texts(Vec<HubText>),
    SeveralTexts(Vec<Vec<HubText>>),
}

/// A generated text, in the task's field.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum HubText {
    Translation {
        /// The result for `translation`.
        translation_text: String,
    },
    Summary {
        /// The result for `summarization`.
        summary_text: String,
    },
    Other {
        /// The result for other tasks that generate texts.
        generated_text: String,
    },
}

#[derive(JsonSchema)]
pub struct VertexResponse {
    /// A response for each instance, in order.
    predictions: Vec<TaskResponse>,
}
