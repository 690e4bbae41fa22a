//! Token classification: the model hub's body, and the body for models that find entities with labels in the request.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::Context,
    response::{OneOrMany, with_usage},
};
use kivu::{
    Result,
    json::Content,
    json_schemas::Texts,
    task::entities::{EntityFinder, TokenClassificationParameters, ZeroShotEntitiesParameters},
};

/// The model hub's body for a token classification model.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct LabelTokensRequest {
    /// The texts in which entities are found: one, or a list.
    #[schemars(with = "Texts")]
    pub inputs: Content,
    /// How token labels become entities, with defaults for all.
    pub parameters: Option<TokenClassificationParameters>,
}

/// Body for a model that finds entities with labels in the request, with the parameters for zero-shot classification or
/// from the `gliner` package.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs` and `parameters`")]
pub struct FindEntitiesRequest {
    /// The texts in which entities are found: one, or a list.
    #[schemars(with = "Texts")]
    pub inputs: Content,
    /// The labels to find, and how to score them.
    pub parameters: ZeroShotEntitiesParameters,
}

/// Returns the entities of a text, or for a list of texts a list for each. The parameters are checked after the texts.
pub async fn find_entities(
    context: &Context,
    inputs: Content,
    prepare: impl FnOnce() -> Result<EntityFinder>,
) -> ApiResult {
    let is_single = inputs.is_text();
    let texts = inputs::texts("inputs", inputs, &context.texts)?;
    let found = prepare()?.run(texts, context.deadline).await?;
    Ok(with_usage(
        context,
        &OneOrMany::new(found.texts, is_single),
        &found.usage,
    ))
}
