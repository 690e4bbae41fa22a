//! Extraction by a schema, in the form of the client in the package `gliner2`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::{JsonRequest, RequestBody},
    response::{OneOrMany, with_usage},
};
use kivu::{
    json::{Content, flattened},
    json_schemas::Texts,
    model::Pipeline,
    pipeline::{Task, entities::extraction::Ordered},
    repository::{Manifest, TaskSettings},
    task::extraction::ExtractionParameters,
};

/// Texts, and what is extracted from them.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `text` and `schema`")]
pub struct ExtractionRequest {
    /// The texts: one, or a list.
    #[schemars(with = "Texts")]
    text: Content,
    /// Model name; the default is the first GLiNER2 model for entities.
    model: Option<String>,
    #[serde(flatten, deserialize_with = "flattened")]
    parameters: ExtractionParameters,
}

impl RequestBody for ExtractionRequest {
    const FIELDS: &str = "body.extraction";
}

#[derive(Serialize, JsonSchema)]
pub struct ExtractionResponse {
    /// An object with the values of each name in the schema; for a list of texts, an object per text.
    result: OneOrMany<Ordered>,
}

/// Extract structures, relations, entities and labels
pub async fn extract(JsonRequest(context, body): JsonRequest<ExtractionRequest>) -> ApiResult {
    let reads_schemas = |own: &Manifest| matches!(&own.settings, TaskSettings::ZeroShotEntities(settings) if settings.schema_token.is_some());
    let any = |own: &Manifest| matches!(own.settings, TaskSettings::ZeroShotEntities(_));
    let name = body.model.as_deref();
    let (_, pipeline) = context
        .pipeline(
            name,
            Task::TokenClassification,
            &[&reads_schemas, &any],
            |pipeline| match pipeline {
                Pipeline::ZeroShotEntities(pipeline) => Some(pipeline),
                _ => None,
            },
        )
        .await?;
    let is_single = body.text.is_text();
    let texts = inputs::texts("text", body.text, &context.texts)?;
    let extractor = body.parameters.prepare(pipeline, &context.scope())?;
    let found = extractor.run(texts, context.deadline).await?;
    let response = ExtractionResponse {
        result: OneOrMany::new(found.texts, is_single),
    };
    Ok(with_usage(&context, &response, &found.usage))
}
