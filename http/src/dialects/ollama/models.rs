//! Ollama's `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::{sync::Arc, time::Duration};

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    auth::Date,
    bodies::{
        inputs::one_value,
        rejection::ApiResult,
        request::{OllamaCall, RequestBody},
    },
    service::models::caller_models::CallerModels,
};
use kivu::{json_schemas::Object, model::Entry};

/// When models leave that stay as long as others do not need their memory, in seconds since 1970: the end of the year
/// 9999, the last one that all clients read.
const NEVER: Duration = Duration::from_secs(253_402_300_799);
/// In place of when a model was changed, which bundles do not record. Clients in typed languages require a time.
const UNKNOWN_TIME: &str = "1970-01-01T00:00:00Z";

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `model`")]
pub struct OllamaShowRequest {
    /// Model name; the default is the first model.
    model: Option<String>,
    /// The older name for `model`.
    name: Option<String>,
}

impl RequestBody for OllamaShowRequest {
    const FIELDS: &str = "Ollama.show";
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaTags")]
pub struct Tags {
    /// All models, loaded or not.
    models: Vec<ListedModel>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
struct ListedModel {
    details: Details,
    /// SHA-256 of the bundle's manifest, in hexadecimal.
    digest: String,
    /// The name in requests.
    model: String,
    /// Always `1970-01-01T00:00:00Z`: the time is not known.
    modified_at: &'static str,
    /// The same as `model`.
    name: String,
    /// Total file size in bytes.
    size: u64,
}

/// The model in the terms of Ollama's own models.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaDetails")]
struct Details {
    /// The family, as a list.
    families: [String; 1],
    /// The architecture in lower case, such as `bert`.
    family: String,
    /// The file format, `onnx`.
    format: &'static str,
    /// Always empty.
    parameter_size: &'static str,
    /// Always empty.
    parent_model: &'static str,
    /// The weights' number format: `int8`, `int8-blocks` or `fp32`.
    quantization_level: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaShowResponse")]
pub struct ShowResponse {
    /// `embedding`, if the model has dense vectors.
    capabilities: Vec<&'static str>,
    details: Details,
    /// Architecture, maximum tokens per text and dense dimensions, under names that begin with the family.
    #[schemars(with = "Object")]
    model_info: Value,
    /// Always `1970-01-01T00:00:00Z`: the time is not known.
    modified_at: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaVersion")]
pub struct Version {
    /// Kivu's version.
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaProcesses")]
pub struct Processes {
    /// The models in memory.
    models: Vec<Process>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaProcess")]
struct Process {
    /// Maximum tokens per text.
    context_length: usize,
    details: Details,
    /// SHA-256 of the bundle's manifest, in hexadecimal.
    digest: String,
    /// When the model leaves memory if no request uses it until then.
    expires_at: String,
    /// The name in requests.
    model: String,
    /// The same as `model`.
    name: String,
    /// Memory in bytes.
    size: u64,
    /// 0, since models run on processors.
    size_vram: u64,
}

/// List the loaded models, as Ollama does
pub async fn processes(models: CallerModels) -> Json<Processes> {
    let process = |model: &Arc<Entry>| {
        let size = model.memory()?;
        Some(Process {
            context_length: model.max_tokens,
            details: details(model),
            digest: model.digest.clone(),
            expires_at: timestamp(model.expires().unwrap_or(NEVER)),
            model: model.name.clone(),
            name: model.name.clone(),
            size,
            size_vram: 0,
        })
    };
    Json(Processes {
        models: models.list().iter().filter_map(process).collect(),
    })
}

/// List the models, as Ollama does
pub async fn tags(models: CallerModels) -> Json<Tags> {
    let model = |model: &Arc<Entry>| ListedModel {
        details: details(model),
        digest: model.digest.clone(),
        model: model.name.clone(),
        modified_at: UNKNOWN_TIME,
        name: model.name.clone(),
        size: model.size(),
    };
    Json(Tags {
        models: models.list().iter().map(model).collect(),
    })
}

/// Describe a model, as Ollama does
pub async fn show(
    OllamaCall(context, body): OllamaCall<OllamaShowRequest>,
) -> ApiResult<Json<ShowResponse>> {
    let name = one_value([("model", body.model), ("name", body.name)])?;
    let model = context.entry(name.as_deref()).await?;
    let family = family(&model);
    let mut info = json!({ "general.architecture": family });
    info[format!("{family}.context_length")] = model.max_tokens.into();
    let mut capabilities = Vec::new();
    if let Some(dense) = model
        .manifest
        .embedding()
        .and_then(|own| own.dense.as_ref())
    {
        info[format!("{family}.embedding_length")] = dense.dimensions.into();
        capabilities.push("embedding");
    }
    Ok(Json(ShowResponse {
        capabilities,
        details: details(&model),
        model_info: info,
        modified_at: UNKNOWN_TIME,
    }))
}

fn details(model: &Entry) -> Details {
    let family = family(model);
    Details {
        families: [family.clone()],
        family,
        format: "onnx",
        parameter_size: "",
        parent_model: "",
        quantization_level: model.manifest.weights.precision.to_string(),
    }
}

/// The architecture without its head's suffix, in lower case: `bert` for `BertModel`.
fn family(model: &Entry) -> String {
    let name = model.manifest.source.architecture.to_lowercase();
    let end = ["model", "for"]
        .iter()
        .filter_map(|suffix| name.find(suffix))
        .min();
    end.filter(|end| *end > 0)
        .map_or_else(|| name.clone(), |end| name[..end].to_owned())
}

/// Return the version
pub async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// A time since 1970 in RFC 3339, in UTC.
fn timestamp(time: Duration) -> String {
    let seconds = time.min(NEVER).as_secs();
    let (date, of_day) = (Date::after_1970(seconds / 86_400), seconds % 86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{date}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_form_of_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_460_400, "2026-11-23T19:00:00Z"),
            (NEVER.as_secs(), "9999-12-31T23:59:59Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(timestamp(Duration::from_secs(seconds)), expected);
        }
    }
}
