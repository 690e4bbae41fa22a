//! Kivu's `/restore`, which puts originals back in place of placeholders. It needs no model.

use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;

use super::BYTES_PER_VALUE;
use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::{JsonRequest, RequestBody},
    response::OneOrMany,
};
use kivu::{
    json::{Content, flattened},
    json_schemas::Texts,
    pipeline::redaction::placeholders::Restored,
    task::entities::RestorationParameters,
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct RestoreRequest {
    /// The texts with placeholders: one, or a list.
    #[schemars(with = "Texts")]
    inputs: Content,
    /// Where the originals are.
    #[serde(flatten, deserialize_with = "flattened")]
    parameters: RestorationParameters,
}

impl RequestBody for RestoreRequest {
    const FIELDS: &str = "kivu.restore";
}

/// Put originals back
pub async fn restore(
    JsonRequest(context, body): JsonRequest<RestoreRequest>,
) -> ApiResult<Json<OneOrMany<Restored>>> {
    let is_single = body.inputs.is_text();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let max_bytes = context.app.limits.values.saturating_mul(BYTES_PER_VALUE);
    let work = move || body.parameters.restore(&texts, max_bytes);
    let restored = context.deadline.off_thread(work).await?;
    Ok(Json(OneOrMany::new(restored, is_single)))
}
