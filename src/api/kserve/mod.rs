//! KServe v2, the API of Triton's clients: metadata, readiness and inference by tensors.

mod message;
mod tensors;
mod translation;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::{
    message::InferRequest,
    tensors::{ConfiguredTensor, DeclaredTensor, Interface},
};
use super::{
    app::App,
    openapi::schemas,
    rejection::Rejection,
    request::{self, InPath},
};
use crate::{
    error::{Error, Result},
    model::Model,
};

/// The only version of each model: bundles are immutable.
const VERSION: &str = "1";

#[derive(Deserialize)]
pub(super) struct ModelPath {
    model: String,
    version: Option<String>,
}

impl ModelPath {
    fn find<'a>(&self, app: &'a App) -> Result<&'a Model> {
        let model = app.model(Some(&self.model))?;
        match self.version.as_deref() {
            None | Some(VERSION) => Ok(model),
            Some(version) => Err(Error::invalid(format!(
                "expected version {VERSION} of `{}`, but found `{}`",
                model.name,
                version.escape_default()
            ))),
        }
    }
}

/// Describe the server
#[utoipa::path(
    get, path = "/v2", tag = "KServe v2",
    responses((status = 200, description = "Name, version and extensions.", body = ServerMetadata))
)]
pub(super) async fn server() -> Json<ServerMetadata> {
    Json(ServerMetadata {
        name: "kivu",
        version: env!("CARGO_PKG_VERSION"),
        extensions: ["binary_tensor_data", "model_configuration", "model_repository"],
    })
}

#[derive(Serialize, ToSchema)]
pub(super) struct ServerMetadata {
    name: &'static str,
    version: &'static str,
    #[schema(value_type = Vec<String>)]
    extensions: [&'static str; 3],
}

#[derive(Serialize, ToSchema)]
pub(super) struct IndexEntry {
    name: String,
    state: &'static str,
    version: &'static str,
}

/// List the models
#[utoipa::path(
    post, path = "/v2/repository/index", tag = "KServe v2",
    responses((status = 200, description = "The served models, all of them ready.", body = Vec<IndexEntry>))
)]
pub(super) async fn index(State(app): State<Arc<App>>) -> Json<Vec<IndexEntry>> {
    let entry = |model: &Model| IndexEntry { name: model.name.clone(), state: "READY", version: VERSION };
    Json(app.models.iter().map(entry).collect())
}

/// Check that a model is ready
#[utoipa::path(
    get, path = "/v2/models/{model}/ready", tag = "KServe v2",
    responses((status = 200, description = "Ready; no body."))
)]
pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Result<StatusCode, Rejection> {
    path.find(&app)?;
    Ok(StatusCode::OK)
}

/// Describe the tensors of a model
#[utoipa::path(
    get, path = "/v2/models/{model}", tag = "KServe v2",
    responses((
        status = 200, description = "Names, types and shapes; -1 is any length.", body = ModelMetadata
    ))
)]
pub(super) async fn metadata(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Result<Json<ModelMetadata>, Rejection> {
    let model = path.find(&app)?;
    let interface = Interface::of(model);
    Ok(Json(ModelMetadata {
        name: model.name.clone(),
        versions: [VERSION],
        platform: "kivu",
        inputs: interface.inputs,
        outputs: interface.outputs,
    }))
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelMetadata {
    name: String,
    #[schema(value_type = Vec<String>)]
    versions: [&'static str; 1],
    platform: &'static str,
    inputs: Vec<DeclaredTensor>,
    outputs: Vec<DeclaredTensor>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelConfig {
    name: String,
    platform: &'static str,
    backend: &'static str,
    max_batch_size: usize,
    input: Vec<ConfiguredTensor>,
    output: Vec<ConfiguredTensor>,
}

/// Describe a model as Triton's configuration
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "KServe v2",
    responses((
        status = 200, description = "Names, types and dimensions; -1 is any length.",
        body = ModelConfig
    ))
)]
pub(super) async fn config(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Result<Json<ModelConfig>, Rejection> {
    let model = path.find(&app)?;
    let interface = Interface::of(model);
    Ok(Json(ModelConfig {
        name: model.name.clone(),
        platform: "kivu",
        backend: "kivu",
        max_batch_size: 0,
        input: interface.inputs.into_iter().map(ConfiguredTensor::from).collect(),
        output: interface.outputs.into_iter().map(ConfiguredTensor::from).collect(),
    }))
}

/// Run a model on tensors
///
/// Tensors are sent in the JSON, or as binary data after it; `inference-header-content-length` is then the length of the
/// JSON in bytes.
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "KServe v2",
    request_body = InferRequest,
    responses((
        status = 200, description = "The output, in the JSON or as binary data after it.",
        content((message::InferResponse<'static> = "application/json"), (schemas::Bytes = "application/octet-stream"))
    ))
)]
pub(super) async fn infer(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
    request: Request,
) -> Result<Response, Rejection> {
    let model = path.find(&app)?;
    let (headers, body, deadline) = request::read_bytes(&app, request).await?;
    let request = InferRequest::parse(&headers, &body)?;
    let interface = Interface::of(model);
    let name = interface.output(&request).to_owned();
    let is_binary = request.is_binary_requested(&name)?;
    let output = tensors::run(&app, model, &interface, &request, deadline).await?;
    message::respond(&model.name, VERSION, request.id.as_deref(), is_binary, &name, &output)
}
