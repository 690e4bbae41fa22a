//! KServe v2, the API that Triton's clients use: metadata, readiness and inference by tensors.

mod message;
mod outputs;
mod tensors;
mod vectors;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::message::{InferRequest, InferResponse};
use self::tensors::{ConfiguredTensor, DeclaredTensor, Interface};
use crate::{
    bodies::{
        body::{self, ReadBody},
        inputs,
        rejection::ApiResult,
        request::{self, Context, InPath, RequestBody},
    },
    fields,
    service::{app::App, models::caller_models::CallerModels},
    tasks::check_same,
};
use kivu::{
    Error, Result,
    backend::Deadline,
    json::Budget,
    model::{Entry, ModelState},
};

/// The only version per model: bundles are immutable.
const VERSION: &str = "1";

/// A path with an encoded slash in the model's name, if there is one in its place: Triton's clients do not encode it, and API
/// Gateway decodes it.
pub fn with_encoded_name(path: &str) -> Option<String> {
    let (models, rest) = ["/v2/models/", "/v2/repository/models/"]
        .into_iter()
        .find_map(|models| Some((models, path.strip_prefix(models)?)))?;
    let ends = |segments: &[&str]| match segments {
        [] | ["versions", _] => true,
        [last] | ["versions", _, last] => matches!(
            *last,
            "config"
                | "generate"
                | "generate_stream"
                | "infer"
                | "load"
                | "ready"
                | "stats"
                | "unload"
        ),
        _ => false,
    };
    let segments: Vec<&str> = rest.split('/').collect();
    let [first, second, end @ ..] = segments.as_slice() else {
        return None;
    };
    let is_name = ![first, second].iter().any(|part| part.is_empty());
    (is_name && !ends(&segments[1..]) && ends(end)).then(|| {
        let end: String = end.iter().map(|segment| format!("/{segment}")).collect();
        format!("{models}{first}%2F{second}{end}")
    })
}

#[derive(Deserialize)]
pub struct ModelPath {
    model: String,
    version: Option<String>,
}

impl ModelPath {
    async fn find(&self, app: &App, models: &CallerModels) -> Result<Arc<Entry>> {
        let model = models
            .find_new(Some(&self.model), Deadline::within(app.limits.timeout()))
            .await?;
        check_version(&model.name, self.version.as_deref())?;
        Ok(model)
    }
}

fn check_version(model: &str, version: Option<&str>) -> Result<()> {
    match version {
        None | Some(VERSION) => Ok(()),
        Some(version) => Err(Error::invalid(format!(
            "expected version {VERSION} of `{model}`, but found `{}`",
            version.escape_default()
        ))),
    }
}

#[derive(Serialize, JsonSchema)]
pub struct ServerMetadata {
    /// Supported extensions of the protocol.
    extensions: [&'static str; 3],
    /// `kivu`.
    name: &'static str,
    /// Kivu's version.
    version: &'static str,
}

/// The body of `/v2/repository/index`, which may be empty.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
pub struct IndexRequest {
    /// Whether only loaded models are listed; false by default.
    ready: Option<bool>,
}

impl RequestBody for IndexRequest {
    const FIELDS: &str = "KServe v2.repository_index";
}

/// The body that loads or unloads a model, which may be empty.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
pub struct LoadRequest {
    /// Only `unload_dependents`, which has no effect: no model depends on another one.
    parameters: Option<Map<String, Value>>,
}

impl RequestBody for LoadRequest {
    // Other parameters than `unload_dependents` are refused.
    const FIELDS: &str = fields::ANY;
}

impl LoadRequest {
    /// Refuses another configuration or other files for the model.
    fn check(&self) -> Result<()> {
        let other = self
            .parameters
            .iter()
            .flatten()
            .map(|(name, _)| name)
            .find(|name| *name != "unload_dependents");
        match other {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "parameters are not supported, since bundles are immutable, but found `{}`",
                name.escape_debug()
            ))
            .with_hint("leave it out")),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub struct IndexEntry {
    /// The name in requests.
    name: String,
    /// Why the model is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// `READY`, `LOADING` or `UNAVAILABLE`.
    state: &'static str,
    /// Always `1`.
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
pub struct ModelMetadata {
    /// The tensors that a request may have.
    inputs: Vec<DeclaredTensor>,
    /// The name in requests.
    name: String,
    /// The tensors that a response may have.
    outputs: Vec<DeclaredTensor>,
    /// `kivu`.
    platform: &'static str,
    /// Always `["1"]`.
    versions: [&'static str; 1],
}

#[derive(Serialize, JsonSchema)]
pub struct ModelConfig {
    /// `kivu`.
    backend: &'static str,
    /// The tensors that a request may have.
    input: Vec<ConfiguredTensor>,
    /// Always 0: the first dimension counts the texts.
    max_batch_size: usize,
    /// The name in requests.
    name: String,
    /// The tensors that a response may have.
    output: Vec<ConfiguredTensor>,
    /// `kivu`.
    platform: &'static str,
}

pub async fn server() -> Json<ServerMetadata> {
    let extensions = [
        "binary_tensor_data",
        "model_configuration",
        "model_repository",
    ];
    Json(ServerMetadata {
        extensions,
        name: "kivu",
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// Reads a body that may be empty; clients send no content type.
async fn read_optional<T: RequestBody + Default>(
    app: &Arc<App>,
    request: Request,
) -> ApiResult<(Context, T)> {
    let ReadBody { context, bytes, .. } = body::read(app, request).await?;
    let body = match bytes.trim_ascii() {
        [] => T::default(),
        _ => request::parse(&bytes, Budget::new(bytes.len(), app.limits.texts))?,
    };
    Ok((context, body))
}

pub async fn index(
    State(app): State<Arc<App>>,
    request: Request,
) -> ApiResult<Json<Vec<IndexEntry>>> {
    let (context, IndexRequest { ready }) = read_optional(&app, request).await?;
    let is_listed = |model: &&Arc<Entry>| {
        !ready.unwrap_or(false) || matches!(model.state(), ModelState::Loaded)
    };
    let entry = |model: &Arc<Entry>| {
        let (state, reason) = match model.state() {
            ModelState::Loaded => ("READY", None),
            ModelState::Loading => ("LOADING", None),
            ModelState::Available => ("UNAVAILABLE", Some("the first request loads it")),
            ModelState::Failed => (
                "UNAVAILABLE",
                Some("it could not be loaded; the server's log has the cause"),
            ),
        };
        IndexEntry {
            name: model.name.clone(),
            reason,
            state,
            version: VERSION,
        }
    };
    Ok(Json(
        context
            .models
            .list()
            .iter()
            .filter(is_listed)
            .map(entry)
            .collect(),
    ))
}

pub async fn model_ready(
    State(app): State<Arc<App>>,
    models: CallerModels,
    InPath(path): InPath<ModelPath>,
) -> ApiResult<StatusCode> {
    // Other models are loaded by the request for which the client checks this.
    let model = path.find(&app, &models).await?;
    match model.state() {
        ModelState::Failed => Err(Error::unavailable(format!(
            "`{}` could not be loaded",
            model.name
        ))
        .with_hint("try again in a moment")
        .into()),
        _ => Ok(StatusCode::OK),
    }
}

/// Load a model
pub async fn load(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
    request: Request,
) -> ApiResult<StatusCode> {
    let (context, body) = read_optional::<LoadRequest>(&app, request).await?;
    body.check()?;
    context.model(Some(&path.model)).await?;
    Ok(StatusCode::OK)
}

/// Take a model out of memory
pub async fn unload(
    State(app): State<Arc<App>>,
    InPath(path): InPath<ModelPath>,
    request: Request,
) -> ApiResult<StatusCode> {
    let (context, body) = read_optional::<LoadRequest>(&app, request).await?;
    body.check()?;
    let model = path.find(&app, &context.models).await?;
    if !app.catalog.is_on_demand() {
        return Err(Error::invalid(format!(
            "expected a model that is loaded on demand, but `{}` is always loaded",
            model.name
        ))
        .with_hint("start the server with `load = \"on-demand\"`")
        .into());
    }
    app.catalog.unload(&model);
    Ok(StatusCode::OK)
}

pub async fn metadata(
    State(app): State<Arc<App>>,
    models: CallerModels,
    InPath(path): InPath<ModelPath>,
) -> ApiResult<Json<ModelMetadata>> {
    let model = path.find(&app, &models).await?;
    let Interface {
        inputs, outputs, ..
    } = Interface::of(&model.manifest);
    let (name, versions) = (model.name.clone(), [VERSION]);
    Ok(Json(ModelMetadata {
        inputs,
        name,
        outputs,
        platform: "kivu",
        versions,
    }))
}

pub async fn config(
    State(app): State<Arc<App>>,
    models: CallerModels,
    InPath(path): InPath<ModelPath>,
) -> ApiResult<Json<ModelConfig>> {
    let model = path.find(&app, &models).await?;
    let Interface {
        inputs, outputs, ..
    } = Interface::of(&model.manifest);
    let configuration =
        |tensors: &[DeclaredTensor]| tensors.iter().map(DeclaredTensor::configuration).collect();
    Ok(Json(ModelConfig {
        backend: "kivu",
        input: configuration(&inputs),
        max_batch_size: 0,
        name: model.name.clone(),
        output: configuration(&outputs),
        platform: "kivu",
    }))
}

pub async fn infer(
    State(app): State<Arc<App>>,
    models: CallerModels,
    InPath(path): InPath<ModelPath>,
    request: Request,
) -> ApiResult {
    path.find(&app, &models).await?;
    let ReadBody {
        context,
        headers,
        bytes,
    } = body::read(&app, request).await?;
    let (size, memory) = (bytes.len(), Arc::clone(&context.memory));
    let model = context.model(Some(&path.model)).await?;
    let parse = move || InferRequest::parse(&headers, &bytes, &memory);
    let mut request = context.deadline.run_sized(size, parse).await?;
    if let Some(name) = &request.model_name {
        check_same(&context, &path.model, "model_name", name)?;
    }
    let version = request.model_version.as_deref();
    check_version(&model.name, version.filter(|version| !version.is_empty()))?;
    if let Some(prompt) = context.models.named_prompt(Some(&path.model)) {
        let found = request
            .parameters
            .entry("prompt_name")
            .or_insert_with(Default::default);
        let own = found.as_str().map(str::to_owned);
        let prompt = inputs::one_role([("prompt_name", own), ("model", Some(prompt))])?;
        if found.is_null() {
            *found = prompt.into();
        }
    }
    let interface = Interface::of(&model.manifest);
    let outputs = tensors::run(&context, model, &interface, &request).await?;
    message::respond(&model.name, VERSION, &request, &outputs)
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use serde_json::json;
    use tower_service::Service;

    use super::with_encoded_name;
    use crate::{
        App, router,
        scripted::{ask, models},
    };

    #[tokio::test]
    async fn a_body_names_the_model_of_its_path() {
        let mut found = String::new();
        for (name, version) in [
            (json!("embedding"), json!("1")),
            (json!("embedding:latest"), json!("")),
            (json!("classification"), json!(null)),
            (json!("embedding"), json!("2")),
        ] {
            let tensor =
                json!({ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"] });
            let body = json!({ "model_name": name, "model_version": version, "inputs": [tensor] });
            let (status, answer) = ask("/v2/models/embedding/infer", &body).await;
            found += &format!("{} {}\n", status.as_u16(), answer["error"]);
        }
        insta::assert_snapshot!(found, @r#"
        200 null
        200 null
        400 "`model_name` is `classification`, but the path names `embedding`; leave `model_name` out, or change the path"
        400 "expected version 1 of `embedding`, but found `2`"
        "#);
    }

    #[tokio::test]
    async fn names_have_a_slash_of_their_own() {
        let mut models = models().unwrap();
        models[0].manifest.aliases = vec!["org/name".to_owned()];
        let mut router = router(App::new(models, Default::default()));
        let tensor = json!({ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"] });
        let body = json!({ "inputs": [tensor] }).to_string();
        for name in ["org/name", "org%2Fname", "org/name:latest", "embedding"] {
            for (method, end) in [
                ("GET", ""),
                ("GET", "/ready/"),
                ("GET", "/config?a=b"),
                ("POST", "/infer"),
                ("GET", "/versions/1"),
                ("GET", "/versions/1/ready"),
                ("POST", "/versions/1/infer"),
            ] {
                let target = format!("/v2/models/{name}{end}");
                let request = Request::builder().method(method).uri(&target);
                let request = request.body(Body::from(body.clone())).unwrap();
                let status = router.call(request).await.unwrap().status();
                assert_eq!(status, 200, "{method} {target}");
            }
        }
        let load = with_encoded_name("/v2/repository/models/org/name/load");
        assert_eq!(load.unwrap(), "/v2/repository/models/org%2Fname/load");
        for other in [
            "/v2/models/a/ready",
            "/v2/models/a/stats",
            "/v2/models/a/versions/1/infer",
            "/v2/models/a/b/c/infer",
            "/v2/models//a/infer",
            "/v2/repository/index",
        ] {
            assert_eq!(with_encoded_name(other), None, "{other}");
        }
    }

    /// Clients that write all fields of an object send `null` for those that are not set.
    #[tokio::test]
    async fn null_is_a_missing_field() {
        let of_input = json!({ "content_type": "str", "headers": null, "binary_data_size": null });
        for of_input in [json!(null), of_input] {
            let tensor = json!({ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"], "parameters": of_input });
            for outputs in [
                json!(null),
                json!([{ "name": "embedding", "parameters": null }]),
            ] {
                let body = json!({ "id": null, "parameters": null, "inputs": [tensor], "outputs": outputs });
                let (status, answer) = ask("/v2/models/embedding/infer", &body).await;
                assert_eq!(status, 200, "{body} {answer}");
            }
        }
        let both = json!([{ "name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"], "parameters": { "binary_data_size": 7 } }]);
        let (_, answer) = ask("/v2/models/embedding/infer", &json!({ "inputs": both })).await;
        assert_ne!(answer["error"], json!(null));
    }
}
