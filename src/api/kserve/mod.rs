//! The dialect of KServe v2, which Triton's clients speak: metadata, readiness and inference by tensors.

mod message;
mod tensors;
mod translation;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use self::{
    message::{InferRequest, Output},
    tensors::Interface,
};
use super::{App, name_backend, rejection::Rejection, request};
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
        if rejection.status == StatusCode::UNPROCESSABLE_ENTITY {
            rejection.status = StatusCode::BAD_REQUEST;
        }
        Self(rejection)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.0.message });
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

pub(super) async fn server() -> Json<Value> {
    Json(json!({
        "name": "kivu",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data", "model_configuration", "model_repository"],
    }))
}

pub(super) async fn index(State(app): State<Arc<App>>) -> Json<Value> {
    let entry = |model: &Model| json!({ "name": model.name, "version": VERSION, "state": "READY" });
    Json(app.models.iter().map(entry).collect())
}

pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
) -> Result<StatusCode, Failure> {
    path.find(&app)?;
    Ok(StatusCode::OK)
}

pub(super) async fn metadata(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
) -> Result<Json<Value>, Failure> {
    let model = path.find(&app)?;
    let interface = Interface::of(model);
    Ok(Json(json!({
        "name": model.name,
        "versions": [VERSION],
        "platform": "kivu",
        "inputs": interface.inputs.iter().map(tensors::Spec::metadata).collect::<Vec<_>>(),
        "outputs": interface.outputs.iter().map(tensors::Spec::metadata).collect::<Vec<_>>(),
    })))
}

pub(super) async fn config(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
) -> Result<Json<Value>, Failure> {
    let model = path.find(&app)?;
    let interface = Interface::of(model);
    Ok(Json(json!({
        "name": model.name,
        "platform": "kivu",
        "backend": "kivu",
        "max_batch_size": 0,
        "input": interface.inputs.iter().map(tensors::Spec::config).collect::<Vec<_>>(),
        "output": interface.outputs.iter().map(tensors::Spec::config).collect::<Vec<_>>(),
    })))
}

pub(super) async fn infer(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
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
