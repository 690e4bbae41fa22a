//! KServe v2, the API of Triton's clients: metadata, readiness and inference by tensors.

mod message;
mod seq2seq;
mod tensors;
mod token_classification;
mod vectors;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use serde::Deserialize;
use serde_json::{Value, json};

use self::{
    message::InferRequest,
    tensors::{DeclaredTensor, Interface},
};
use super::{
    app::App,
    body::{self, ReadBody},
    rejection::Reply,
    request::InPath,
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
pub(super) async fn server() -> Json<Value> {
    let extensions = ["binary_tensor_data", "model_configuration", "model_repository"];
    Json(json!({ "name": "kivu", "version": env!("CARGO_PKG_VERSION"), "extensions": extensions }))
}

/// List the models
pub(super) async fn index(State(app): State<Arc<App>>) -> Json<Vec<Value>> {
    let entry = |model: &Model| json!({ "name": model.name, "state": "READY", "version": VERSION });
    Json(app.models().map(entry).collect())
}

/// Check that a model is ready
pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Reply<StatusCode> {
    path.find(&app)?;
    Ok(StatusCode::OK)
}

/// Describe the tensors of a model
pub(super) async fn metadata(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Reply<Json<Value>> {
    let model = path.find(&app)?;
    let Interface { inputs, outputs, .. } = Interface::of(model);
    Ok(Json(json!({
        "name": model.name, "versions": [VERSION], "platform": "kivu", "inputs": inputs, "outputs": outputs,
    })))
}

/// Describe a model as Triton's configuration
pub(super) async fn config(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
) -> Reply<Json<Value>> {
    let model = path.find(&app)?;
    let Interface { inputs, outputs, .. } = Interface::of(model);
    let configuration =
        |tensors: &[DeclaredTensor]| tensors.iter().map(DeclaredTensor::configuration).collect::<Vec<_>>();
    Ok(Json(json!({
        "name": model.name,
        "platform": "kivu",
        "backend": "kivu",
        "max_batch_size": 0,
        "input": configuration(&inputs),
        "output": configuration(&outputs),
    })))
}

/// Run a model on tensors
///
/// Tensors are sent in the JSON, or as binary data after it; `inference-header-content-length` is then the length of the
/// JSON in bytes.
pub(super) async fn infer(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
    request: Request,
) -> Reply {
    let model = path.find(&app)?;
    let ReadBody { headers, bytes, deadline, mut memory } = body::read(&app, request).await?;
    let size = bytes.len();
    let parse = move || Ok((InferRequest::parse(&headers, &bytes, &mut memory)?, memory));
    let (mut request, _memory) = deadline.run_sized(size, parse).await?;
    if let Some(prompt) = app.named_prompt(Some(&path.model)) {
        request.parameters.entry("prompt_name".to_owned()).or_insert(prompt.into());
    }
    let interface = Interface::of(model);
    let outputs = tensors::run(&app, model, &interface, &request, deadline).await?;
    message::respond(&model.name, VERSION, &request, &outputs)
}
