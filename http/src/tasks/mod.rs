//! Routes whose body and response depend on the model's task: TEI's `POST /`, with SageMaker's `/invocations` and
//! Vertex AI's `/vertex`, and the model hub's `POST /models/{model}`.

pub mod classification;
pub mod detection;
pub mod embedding;
pub mod extraction;
pub mod generation;
pub mod hub_body;
pub mod ranking;
pub mod restoration;
pub mod task_schemas;
pub mod token_classification;
pub mod tokens;
pub mod translation;

use axum::{
    body::Bytes,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
};
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::BodyExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use self::{
    classification::{classify_with, predict_with, zero_shot_with},
    embedding::{EmbedRequest, embed_by_default, similarity_request, similarity_with},
    generation::generate_with,
    hub_body::HubBody,
    ranking::rerank_with,
    task_schemas::DefaultRequest,
    token_classification::{FindEntitiesRequest, LabelTokensRequest, find_entities},
};
use super::{
    bodies::{
        inputs,
        rejection::{ApiResult, Rejection},
        request::{
            Context, JsonRequest, NameInPath, PiecewiseRequest, RequestBody, from_value, model_name,
        },
        response::{BACKEND, TRUNCATED, truncated_header},
    },
    fields::known,
};
use kivu::{
    Error, Result,
    json::{Known, Tree, check},
    model::{Model, Pipeline},
    task::labels,
};

// Bodies are value trees, because their types depend on a model, whose name may be the last field.

/// Run the first model
///
/// Accepts the body for `/embed`, `/predict`, `/rerank`, zero-shot or token classification, or texts to generate
/// from, depending on the first model's task, or the `/similarity` body if `inputs` has a `source_sentence`. Returns
/// that route's response.
pub async fn default_task(JsonRequest(context, Tree(body)): JsonRequest<Tree>) -> ApiResult {
    run_default(&context, body).await
}

async fn run_default(context: &Context, body: Value) -> ApiResult {
    if is_similarity(&body) {
        let request = similarity_request(body)?;
        let name = request.model().map(str::to_owned);
        let (_, pipeline) = context.embedding(name.as_deref()).await?;
        return similarity_with(context, pipeline, name.as_deref(), request).await;
    }
    let name = model_name(&body)?;
    let model = context.model(name.as_deref()).await?;
    if name.is_none() {
        check_default(context, model, &body)?;
    }
    run_task(
        context,
        Selected {
            model,
            name: name.as_deref(),
        },
        body,
        Form::Tei,
    )
    .await
}

/// The form of the bodies of classification and ranking.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As in `/predict` and `/rerank`.
    Tei,
    /// The model hub's.
    Hub,
}

/// A model, and the name that selects it in the request.
struct Selected<'a> {
    model: &'a Model,
    name: Option<&'a str>,
}

/// Runs a model's task.
async fn run_task(
    context: &Context,
    Selected { model, name }: Selected<'_>,
    body: Value,
    form: Form,
) -> ApiResult {
    let scope = context.scope();
    check_parameters(model, &body)?;
    check(&body, known_fields(&model.pipeline, form)?)?;
    let body = with_options(&model.pipeline, body, form)?;
    match &model.pipeline {
        Pipeline::Embedding(pipeline) => {
            let mut body: EmbedRequest = from_value(body)?;
            body.name = name.map(str::to_owned);
            embed_by_default(context, pipeline, body).await
        }
        Pipeline::Classification(pipeline) => match form {
            Form::Tei => predict_with(context, pipeline, None, from_value(body)?).await,
            Form::Hub => classify_with(context, pipeline, from_value(body)?).await,
        },
        Pipeline::TokenClassification(pipeline) => {
            let LabelTokensRequest { inputs, parameters } = from_value(body)?;
            let prepare = || parameters.unwrap_or_default().prepare(pipeline, &scope);
            find_entities(context, inputs, prepare).await
        }
        Pipeline::ZeroShotEntities(pipeline) => {
            let FindEntitiesRequest { inputs, parameters } = from_value(body)?;
            find_entities(context, inputs, || parameters.prepare(pipeline, &scope)).await
        }
        Pipeline::ZeroShot(pipeline) => zero_shot_with(context, pipeline, from_value(body)?).await,
        Pipeline::Ranking(pipeline) => rerank_with(context, pipeline, from_value(body)?).await,
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
            generate_with(context, pipeline, model.manifest.task, body).await
        }
    }
}

/// The fields of bodies for a model's task.
fn known_fields(pipeline: &Pipeline, form: Form) -> Result<Known> {
    known(match pipeline {
        Pipeline::Classification(_) if form == Form::Tei => "body.predict",
        Pipeline::Ranking(_) if form == Form::Tei => "body.tei_rerank",
        Pipeline::Embedding(_) => "body.features",
        Pipeline::Classification(_) => "body.classification",
        Pipeline::TokenClassification(_) => "body.tokens",
        Pipeline::ZeroShotEntities(_) => "body.entities",
        Pipeline::ZeroShot(_) => "body.zero_shot",
        Pipeline::Ranking(_) => "body.ranking",
        Pipeline::Translation(_) | Pipeline::TextToText(_) => "body.generation",
    })
}

/// The body with all options in one place: those in the model hub's `parameters`, and those beside them. TEI's own bodies
/// for embedding, classification and ranking have them in one place only.
fn with_options(pipeline: &Pipeline, body: Value, form: Form) -> Result<Value> {
    let has_parameters = body.get("parameters").is_some();
    let is_read = match pipeline {
        Pipeline::Embedding(_) => form == Form::Hub || has_parameters,
        Pipeline::Classification(_) | Pipeline::Ranking(_) => form == Form::Hub,
        _ => true,
    };
    let found = match body {
        Value::Object(fields) if is_read => HubBody::read(fields, pipeline.generator())?,
        other => return Ok(other),
    };
    match pipeline {
        Pipeline::Ranking(_) => found.in_inputs(),
        Pipeline::Embedding(_) => Ok(found.beside_inputs()),
        _ => Ok(found.in_parameters()),
    }
}

/// Refuses requests for another task, whose response their client would misread, and unknown options for generated texts.
fn check_parameters(model: &Model, body: &Value) -> Result<()> {
    let given = body
        .get("parameters")
        .filter(|parameters| !parameters.is_null());
    let mut fields = [Some(body), given]
        .into_iter()
        .flatten()
        .filter_map(Value::as_object);
    fields.try_for_each(|fields| labels::refuse_unused(model, fields))?;
    model
        .pipeline
        .generator()
        .map_or(Ok(()), |_| generation::check_parameters(body))
}

/// Refuses the model hub's body where it reaches the first of several models, and that model embeds texts: hub clients
/// send no `parameters` with texts to embed.
fn check_default(context: &Context, model: &Model, body: &Value) -> Result<()> {
    let is_hub_body = body.get("parameters").is_some_and(Value::is_object);
    if is_hub_body && model.pipeline.embedding().is_some() && context.models.list().len() > 1 {
        return Err(Error::invalid(format!(
            "`parameters` is not supported: `{}`, the first model, is for `{}`",
            model.name, model.manifest.task
        ))
        .with_hint("a client for another model needs its address, with the path `/models/NAME`"));
    }
    Ok(())
}

fn is_similarity(body: &Value) -> bool {
    body.get("inputs")
        .is_some_and(|inputs| inputs.get("source_sentence").is_some())
}

/// A request's instances that run at the same time.
const CONCURRENT_INSTANCES: usize = 8;
/// Response bytes that take as much memory as a value.
const BYTES_PER_VALUE: usize = 12;

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `instances`")]
pub struct VertexRequest {
    /// Bodies for `POST /`.
    #[schemars(with = "Vec<DefaultRequest>", length(min = 1))]
    instances: Vec<Tree>,
}

impl RequestBody for VertexRequest {
    const FIELDS: &str = "Vertex AI.vertex";
}

/// Run the first model for several requests, as Vertex AI does
///
/// The instances share the request's limits and turns.
pub async fn vertex(
    PiecewiseRequest(context, VertexRequest { instances }): PiecewiseRequest<VertexRequest>,
) -> ApiResult {
    inputs::count("instances", instances.len(), context.app.limits.texts)?;
    let count = instances.len();
    let deadline = context.deadline.shared_by(count.min(CONCURRENT_INSTANCES));
    let context = &Context {
        deadline,
        ..context
    };
    let limits = &context.app.limits;
    let (mut predictions, mut size) = (vec![Bytes::new(); count], 0);
    let (mut backend, mut truncated) = (None, Vec::new());
    let runs = instances
        .into_iter()
        .enumerate()
        .map(|(index, Tree(instance))| async move {
            let response = run_default(&context.of_part(count), instance).await;
            let response = response.map_err(|rejection| in_instance(rejection, index, count))?;
            Ok::<_, Rejection>((index, response.into_parts()))
        });
    // The first error ends all instances.
    let mut runs = stream::iter(runs).buffer_unordered(CONCURRENT_INSTANCES);
    while let Some((index, (parts, body))) = runs.try_next().await? {
        // Model responses are in memory, so that reading one does not wait.
        let body = body
            .collect()
            .await
            .map_err(|_| Error::inference("a response is incomplete"))?
            .to_bytes();
        size += body.len();
        if size > limits.values.saturating_mul(BYTES_PER_VALUE) {
            return Err(Error::too_large("expected fewer texts in all `instances`")
                .with_hint("send fewer at once")
                .into());
        }
        predictions[index] = body;
        backend = parts.headers.get(BACKEND).cloned();
        truncated.extend(parts.headers.contains_key(TRUNCATED).then_some(index));
    }
    let body = [
        br#"{"predictions":["#.as_slice(),
        &predictions.join(b",".as_slice()),
        b"]}",
    ]
    .concat();
    let backend = backend.map(|backend| [(BACKEND, backend)]);
    truncated.sort_unstable();
    Ok((
        backend,
        truncated_header(&truncated),
        [(CONTENT_TYPE, "application/json")],
        body,
    )
        .into_response())
}

/// Names the instance, of several, that an error is about. Limits are shared by all.
fn in_instance(mut rejection: Rejection, index: usize, count: usize) -> Rejection {
    let its_own = [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::NOT_FOUND];
    if count > 1 && its_own.contains(&rejection.status) {
        rejection.message = format!("in `instances[{index}]`: {}", rejection.message);
    }
    rejection
}

/// Refuses a body whose `field` names another model than the path, or another prompt.
pub fn check_same(context: &Context, path: &str, field: &str, body: &str) -> Result<()> {
    let named = |name: &str| {
        let model = context.models.find(Some(name)).ok()?;
        Some((model.name.clone(), context.models.named_prompt(Some(name))))
    };
    if path == body || named(path).is_some_and(|found| named(body) == Some(found)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "`{field}` is `{}`, but the path names `{}`",
        body.escape_debug(),
        path.escape_debug()
    ))
    .in_field(field)
    .with_hint(format!("leave `{field}` out, or change the path")))
}

/// Run a model
pub async fn infer(
    NameInPath(name): NameInPath,
    JsonRequest(context, Tree(body)): JsonRequest<Tree>,
) -> ApiResult {
    if !body.is_object() {
        return Err(Error::invalid("expected an object with `inputs`, but found none").into());
    }
    let model = context.model(Some(&name)).await?;
    if let Some(other) = model_name(&body)? {
        check_same(&context, &name, "model", &other)?;
    }
    if let Some(pipeline) = model.pipeline.embedding().filter(|_| is_similarity(&body)) {
        return similarity_with(&context, pipeline, Some(&name), similarity_request(body)?).await;
    }
    run_task(
        &context,
        Selected {
            model,
            name: Some(&name),
        },
        body,
        Form::Hub,
    )
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::scripted::ask;

    #[tokio::test]
    async fn a_body_names_the_models_of_its_path() {
        let parameters = json!({ "model": "classification" });
        let mut found = String::new();
        for (path, body) in [
            (
                "/models/embedding",
                json!({ "inputs": "a", "model": "classification" }),
            ),
            (
                "/models/embedding",
                json!({ "inputs": "a", "model": "nothing" }),
            ),
            (
                "/models/embedding",
                json!({ "inputs": "a", "model": "embedding:query" }),
            ),
            (
                "/models/classification",
                json!({ "inputs": "a", "model": 7 }),
            ),
            (
                "/models/token-classification",
                json!({ "inputs": "a", "parameters": parameters }),
            ),
            (
                "/models/nothing",
                json!({ "inputs": "a", "model": "embedding" }),
            ),
            ("/", json!({ "inputs": "a", "model": 7 })),
            (
                "/",
                json!({ "inputs": "a", "model": "embedding", "parameters": parameters }),
            ),
            (
                "/vertex",
                json!({ "instances": [{ "inputs": "a", "model": ["embedding"] }] }),
            ),
        ] {
            let (status, answer) = ask(path, &body).await;
            found += &format!(
                "{path}: {} {}\n",
                status.as_u16(),
                answer["error"].as_str().unwrap_or_default()
            );
        }
        insta::assert_snapshot!(found, @r"
        /models/embedding: 422 `model` is `classification`, but the path names `embedding`; leave `model` out, or change the path
        /models/embedding: 422 `model` is `nothing`, but the path names `embedding`; leave `model` out, or change the path
        /models/embedding: 422 `model` is `embedding:query`, but the path names `embedding`; leave `model` out, or change the path
        /models/classification: 422 expected `model` to be a string, but found a number
        /models/token-classification: 422 `model` is `classification`, but the path names `token-classification`; leave `model` out, or change the path
        /models/nothing: 404 unknown model `nothing`; known models: `embedding`, `classification`, `token-classification`, `zero-shot`, `ranking`, `translation`
        /: 422 expected `model` to be a string, but found a number
        /: 422 `model` and `parameters.model` have different values; leave one of them out
        /vertex: 422 expected `model` to be a string, but found a list
        ");
        let same = json!({ "inputs": "a", "model": "embedding:latest", "dimensions": 1 });
        assert_eq!(ask("/models/embedding", &same).await.1, json!([[1.0]]));
        // Labels may be beside `inputs`, under either name.
        let with = |more: Value| {
            let mut body = json!({ "inputs": "cat", "hypothesis_template": "{}" });
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            async move { ask("/models/zero-shot", &body).await }
        };
        let labels = json!(["a", "b"]);
        let expected = with(json!({ "parameters": { "candidate_labels": labels } })).await;
        assert_eq!(expected.0, 200, "{}", expected.1);
        for more in [
            json!({ "parameters": { "labels": labels } }),
            json!({ "labels": "a, b" }),
            json!({ "candidate_labels": labels, "parameters": null }),
        ] {
            assert_eq!(with(more.clone()).await, expected, "{more}");
        }
        let both = json!({ "candidate_labels": labels, "labels": ["c", "d"] });
        assert_eq!(with(both).await.0, 422);
        // The first model would return a vector.
        let named = json!({ "inputs": "a", "parameters": { "model": "token-classification" } });
        assert_eq!(ask("/", &named).await.1, json!([]));
    }

    #[tokio::test]
    async fn errors_name_the_instance_or_the_field() {
        let (one, rank) = (json!({ "inputs": "a" }), "/models/ranking");
        let mut found = String::new();
        for (path, body) in [
            ("/vertex", json!({ "instances": [one, { "inputs": "" }] })),
            (
                "/vertex",
                json!({ "instances": [one, { "inputs": "a", "model": "b" }] }),
            ),
            ("/vertex", json!({ "instances": [{ "inputs": "" }] })),
            (rank, json!({ "inputs": "a" })),
            (rank, json!({ "query": "a", "texts": ["b"] })),
        ] {
            let (status, answer) = ask(path, &body).await;
            let error = answer["error"].as_str().unwrap_or_default();
            found += &format!("{} {error}\n", status.as_u16());
        }
        insta::assert_snapshot!(found, @r"
        422 in `instances[1]`: expected a text in `inputs`, but found an empty one
        404 in `instances[1]`: unknown model `b`; known models: `embedding`, `classification`, `token-classification`, `zero-shot`, `ranking`, `translation`
        422 expected a text in `inputs`, but found an empty one
        422 expected `inputs` to be an object with `query` and `texts`, but found a string
        422 expected `inputs` to be an object with `query` and `texts`, but found null
        ");
    }
}
