//! The dialect of KServe v2, which Triton's clients speak: metadata, readiness and inference by tensors.

mod message;
mod tensors;
mod translation;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use self::{
    message::{InferRequest, Output},
    tensors::Interface,
};
use super::{
    App,
    dialect::Dialect,
    name_backend,
    openapi::schemas,
    rejection::Rejection,
    request::{self, InPath},
};
use crate::{
    error::{Error, Result},
    model::Model,
};

/// The only version of a model that there is: bundles are never changed.
const VERSION: &str = "1";

/// An error in KServe's shape: `{"error": …}`. What a client can mend is 400, but for what is not there.
#[derive(Debug)]
pub(super) struct Failure(Rejection);

impl<E: Into<Rejection>> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut rejection: Rejection = error.into();
        rejection.status = Dialect::KServe.status(rejection.status);
        Self(rejection)
    }
}

/// An error of KServe's routes.
#[derive(Serialize, ToSchema)]
#[schema(as = KServeFailure)]
pub(super) struct FailureBody {
    pub(super) error: String,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = FailureBody { error: self.0.message.clone() };
        self.0.respond(&body)
    }
}

/// The name of a model, and its version where the path has one.
#[derive(Debug, serde::Deserialize)]
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

/// What the server is, and what it can do beyond the protocol
#[utoipa::path(get, path = "/v2", tag = "KServe v2", responses((
    status = 200, description = "Name, version and extensions.", body = ServerMetadata,
    example = json!({
        "name": "kivu", "version": "0.1.0",
        "extensions": ["binary_tensor_data", "model_configuration", "model_repository"]
    })
)))]
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

/// The models that are served
#[utoipa::path(post, path = "/v2/repository/index", tag = "KServe v2", responses((
    status = 200, description = "All of them are ready.", body = Vec<IndexEntry>,
    example = json!([{ "name": "minilm", "state": "READY", "version": "1" }])
)))]
pub(super) async fn index(State(app): State<Arc<App>>) -> Json<Vec<IndexEntry>> {
    let entry = |model: &Model| IndexEntry { name: model.name.clone(), state: "READY", version: VERSION };
    Json(app.models.iter().map(entry).collect())
}

/// Whether a model can be asked
#[utoipa::path(
    get, path = "/v2/models/{model}/ready", tag = "KServe v2",
    params(("model" = String, Path, description = "The name of a model that is served.")),
    responses((status = 200, description = "It can; no body."))
)]
pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Result<StatusCode, Failure> {
    path.find(&app)?;
    Ok(StatusCode::OK)
}

/// The tensors that a model takes and gives
#[utoipa::path(
    get, path = "/v2/models/{model}", tag = "KServe v2",
    params(("model" = String, Path, description = "The name of a model that is served.")),
    responses((
        status = 200, description = "Names, types and shapes; -1 is any length.", body = ModelMetadata,
        example = json!({
            "name": "minilm", "versions": ["1"], "platform": "kivu",
            "inputs": [{ "name": "TEXT", "datatype": "BYTES", "shape": [-1, 1] }],
            "outputs": [{ "name": "embedding", "datatype": "FP32", "shape": [-1, 384] }]
        })
    ))
)]
pub(super) async fn metadata(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Result<Json<ModelMetadata>, Failure> {
    let model = path.find(&app)?;
    let interface = Interface::of(model);
    Ok(Json(ModelMetadata {
        name: model.name.clone(),
        versions: vec![VERSION],
        platform: "kivu",
        inputs: interface.inputs.iter().map(tensors::Spec::metadata).collect(),
        outputs: interface.outputs.iter().map(tensors::Spec::metadata).collect(),
    }))
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelMetadata {
    name: String,
    versions: Vec<&'static str>,
    platform: &'static str,
    #[schema(value_type = Vec<Object>)]
    inputs: Vec<Value>,
    #[schema(value_type = Vec<Object>)]
    outputs: Vec<Value>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelConfig {
    name: String,
    platform: &'static str,
    backend: &'static str,
    max_batch_size: usize,
    #[schema(value_type = Vec<Object>)]
    input: Vec<Value>,
    #[schema(value_type = Vec<Object>)]
    output: Vec<Value>,
}

/// The same in the words of Triton's configuration
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "KServe v2",
    params(("model" = String, Path, description = "The name of a model that is served.")),
    responses((
        status = 200, description = "Names, types and sizes; -1 is any length.", body = ModelConfig,
        example = json!({
            "name": "minilm", "platform": "kivu", "backend": "kivu", "max_batch_size": 0,
            "input": [{ "name": "TEXT", "data_type": "TYPE_STRING", "dims": [-1, 1] }],
            "output": [{ "name": "embedding", "data_type": "TYPE_FP32", "dims": [-1, 384] }]
        })
    ))
)]
pub(super) async fn config(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Result<Json<ModelConfig>, Failure> {
    let model = path.find(&app)?;
    let interface = Interface::of(model);
    Ok(Json(ModelConfig {
        name: model.name.clone(),
        platform: "kivu",
        backend: "kivu",
        max_batch_size: 0,
        input: interface.inputs.iter().map(tensors::Spec::config).collect(),
        output: interface.outputs.iter().map(tensors::Spec::config).collect(),
    }))
}

/// Inference by tensors
///
/// Tensors come as JSON or as bytes behind it, whose JSON is as long as `inference-header-content-length` says.
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "KServe v2",
    params(("model" = String, Path, description = "The name of a model that is served.")),
    request_body(content((
        message::WrittenRequest = "application/json",
        example = json!({
            "inputs": [{ "name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["What is deep learning?"] }]
        })
    ))),
    responses((
        status = 200, description = "The output, as JSON or as bytes behind it.",
        content(
            (message::Answer<'static> = "application/json", example = json!({
                "model_name": "minilm", "model_version": "1",
                "outputs": [{ "name": "embedding", "datatype": "FP32", "shape": [1, 2], "data": [0.6, 0.8] }]
            })),
            (schemas::Bytes = "application/octet-stream")
        )
    ))
)]
pub(super) async fn infer(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
    request: Request,
) -> Result<Response, Failure> {
    let model = path.find(&app)?;
    let (headers, body, deadline) = request::read_bytes(&app, request).await?;
    let request = InferRequest::read(&headers, &body)?;
    let interface = Interface::of(model);
    let name = interface.output(&request).to_owned();
    let form = request.wanted_form(&name)?;
    let (shape, elements, place) = tensors::run(model, &interface, &request, &app.limits, deadline).await?;
    let output = Output { name, shape, elements };
    let mut response = message::respond(&model.name, VERSION, request.id.as_deref(), form, &output)?;
    name_backend(&mut response, place);
    Ok(response)
}
