//! The OpenAPI document at `/openapi.json`, made from the route table, the schemas of its types, and `routes/texts.json`.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    body::Bytes,
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::IntoResponse,
};
use schemars::{
    Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    app::App,
    route::{Api, Content, QueryParameter, Route, RouteMethod, Runs},
};
use crate::{
    auth::{Access, NO_KEY, NOT_PROXIED},
    bodies::{
        content_encoding::unsupported,
        rejection::{ApiResult, Rejection},
    },
    dialects::{Dialect, ErrorBody},
};
use kivu::{Error, Result};

/// What the document says, in `routes/texts.json`.
#[derive(Deserialize)]
struct Texts {
    description: String,
    /// By name, their clients.
    apis: BTreeMap<String, String>,
    headers: BTreeMap<String, Header>,
    /// By operation: summary, description and examples. `success` describes the response; `requests` and `responses` have
    /// several examples by name.
    routes: Map<String, Value>,
}

impl Texts {
    fn read() -> Result<Self> {
        serde_json::from_str(include_str!("../routes/texts.json")).map_err(|error| {
            Error::model_because("cannot read the texts of the OpenAPI document", error)
        })
    }

    /// The headers with their meanings.
    fn headers(&self) -> impl Iterator<Item = (&str, &Sent, Value)> {
        self.headers.iter().map(|(name, header)| {
            let schema = json!({ "type": "string" });
            let described = json!({ "description": header.description, "schema": schema });
            (name.as_str(), &header.sent, described)
        })
    }
}

/// A response header.
#[derive(Deserialize)]
struct Header {
    description: String,
    sent: Sent,
}

/// The responses that have a header.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sent {
    Always,
    WithStatuses(Vec<String>),
    ByModels,
    WithUsage,
}

/// Responds with the document, which is made for the first request.
pub fn respond(app: &App, apis: &[Api]) -> ApiResult {
    app.require_page("/openapi.json")?;
    let json: &Bytes = match app.document.get() {
        Some(json) => json,
        None => {
            let json = document(apis, app.guard.access())?.to_string();
            app.document.get_or_init(|| json.into())
        }
    };
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, json.clone()).into_response())
}

/// The document for a server with this access control.
fn document(apis: &[Api], access: &Access) -> Result<Value> {
    let texts = Texts::read()?;
    let mut generators = Generators::new();
    let schemes = security_schemes(access);
    let security: Vec<Value> = schemes.keys().map(|name| json!({ name: [] })).collect();
    let mut paths = Map::new();
    for api in apis {
        for route in api.routes {
            let mut operation = operation(api, route, &texts, &mut generators);
            if !route.is_open && !security.is_empty() {
                operation["security"] = security.clone().into();
            }
            let path = paths.entry(route.path).or_insert_with(|| json!({}));
            path[route.method.name()] = operation;
        }
    }
    let headers = texts.headers();
    let headers: Map<String, Value> = headers
        .map(|(name, _, header)| (name.to_owned(), header))
        .collect();
    let tag = |api: &Api| json!({ "name": api.name, "description": texts.apis.get(api.name) });
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Kivu",
            "version": env!("CARGO_PKG_VERSION"),
            "description": texts.description,
            "license": { "name": "Apache-2.0" },
        },
        "servers": [{ "url": "./" }],
        "tags": apis.iter().map(tag).collect::<Vec<_>>(),
        "paths": paths,
        "components": { "headers": headers, "schemas": generators.schemas()? },
    });
    if !schemes.is_empty() {
        document["components"]["securitySchemes"] = schemes.into();
    }
    Ok(document)
}

/// Schema generators, one per direction: fields with defaults are optional in requests only.
struct Generators {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let generator = |mut settings: SchemaSettings| {
            settings.definitions_path = "/components/schemas".into();
            settings.with_transform(Tidy).into_generator()
        };
        let settings = SchemaSettings::draft2020_12;
        let responses = settings()
            .for_serialize()
            .with_transform(AbsentInsteadOfNull);
        Self {
            requests: generator(settings()),
            responses: generator(responses),
        }
    }

    /// All schemas that others refer to.
    fn schemas(mut self) -> Result<Map<String, Value>> {
        let mut schemas = self.requests.take_definitions(true);
        for (name, schema) in self.responses.take_definitions(true) {
            if *schemas.entry(&name).or_insert_with(|| schema.clone()) != schema {
                return Err(Error::config(format!(
                    "expected one schema `{name}`, but found others in requests and responses"
                ))
                .with_hint("rename one of the types"));
            }
        }
        Ok(schemas)
    }
}

/// Removes what readers without the source do not need.
#[derive(Clone, Debug)]
struct Tidy;

impl Transform for Tidy {
    fn transform(&mut self, schema: &mut Schema) {
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
        // Comments are wrapped.
        if let Some(Value::String(description)) = schema.get_mut("description") {
            *description = description.replace('\n', " ");
        }
        transform_subschemas(self, schema);
    }
}

/// Makes optional response fields not nullable, since they are absent instead of `null`.
#[derive(Clone, Debug)]
struct AbsentInsteadOfNull;

impl Transform for AbsentInsteadOfNull {
    fn transform(&mut self, schema: &mut Schema) {
        let required = schema.get("required").cloned().unwrap_or_default();
        let is_required = |name: &str| {
            required
                .as_array()
                .is_some_and(|names| names.iter().any(|one| one == name))
        };
        if let Some(Value::Object(fields)) = schema.get_mut("properties") {
            let optional = fields.iter_mut().filter(|(name, _)| !is_required(name));
            optional.for_each(|(_, field)| remove_null(field));
        }
        transform_subschemas(self, schema);
    }
}

/// Undoes what `Option` adds to a schema.
fn remove_null(field: &mut Value) {
    if let Some(Value::Array(types)) = field.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            field["type"] = only.clone();
        }
    }
    let null = json!({ "type": "null" });
    let Some(Value::Array(schemas)) = field.get_mut("anyOf") else {
        return;
    };
    schemas.retain(|schema| *schema != null);
    if let [Value::Object(only)] = schemas.as_slice() {
        let only = only.clone();
        let Value::Object(field) = field else { return };
        field.remove("anyOf");
        for (name, value) in only {
            field.entry(name).or_insert(value);
        }
    }
}

fn operation(api: &Api, route: &Route, texts: &Texts, generators: &mut Generators) -> Value {
    let text = |name: &str| {
        [route.id, route.texts]
            .iter()
            .find_map(|id| texts.routes.get(*id)?.get(name))
    };
    let mut operation =
        json!({ "tags": [api.name], "summary": text("summary"), "operationId": route.id });
    if let Some(description) = text("description") {
        operation["description"] = description.clone();
    }
    let parameters = parameters(route, text("query"), &mut generators.requests);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = &route.request {
        let examples = [text("request"), text("requests")];
        let content = content(body, examples, &mut generators.requests);
        operation["requestBody"] = json!({ "content": content, "required": true });
    }
    let responses = &mut operation["responses"];
    responses["200"] = json!({ "description": text("success") });
    if let Some(body) = &route.response {
        let examples = [text("response"), text("responses")];
        responses["200"]["content"] = content(body, examples, &mut generators.responses);
    }
    if route.has_binary_response {
        responses["200"]["content"]["application/octet-stream"] =
            json!({ "schema": { "type": "string", "format": "binary" } });
    }
    add_errors(api.dialect, route, &mut generators.responses, responses);
    add_headers(route, texts, responses);
    operation
}

fn parameters(route: &Route, texts: Option<&Value>, generator: &mut SchemaGenerator) -> Vec<Value> {
    let in_path = |name| {
        let description = match name {
            "model" => "A served model's name.",
            "resource" => "What follows the slash in a model's name or ARN.",
            _ => "Always `1`.",
        };
        json!({
            "name": name, "in": "path", "description": description, "required": true, "schema": { "type": "string" },
        })
    };
    let in_query = route.query.into_iter().flatten().map(|QueryParameter { name, schema }| {
        let description = texts.and_then(|texts| texts.get(name));
        json!({
            "name": name, "in": "query", "description": description, "required": false, "schema": schema(generator),
        })
    });
    route.parameters().map(in_path).chain(in_query).collect()
}

/// A body by its media type, with one example, or several by name.
fn content(
    body: &Content,
    [example, examples]: [Option<&Value>; 2],
    generator: &mut SchemaGenerator,
) -> Value {
    let mut schema = (body.schema)(generator);
    Tidy.transform(&mut schema);
    let mut media = json!({ "schema": schema });
    if let Some(example) = example {
        media["example"] = example.clone();
    }
    for (name, example) in examples.and_then(Value::as_object).into_iter().flatten() {
        media["examples"][name]["value"] = example.clone();
    }
    json!({ body.media_type: media })
}

fn security_schemes(access: &Access) -> Map<String, Value> {
    let header =
        |name, text| json!({ "type": "apiKey", "in": "header", "name": name, "description": text });
    let bearer = "A key from `kivu key`, as `authorization: Bearer KEY`.";
    let schemes = match access {
        Access::Open | Access::Local => Vec::new(),
        Access::Keys(_) => vec![
            (
                "key",
                json!({ "type": "http", "scheme": "bearer", "description": bearer }),
            ),
            ("key-in-a-header", header("x-api-key", "The key alone.")),
        ],
        Access::GatewayVerified => {
            vec![(
                "gateway",
                header(
                    "authorization",
                    "A signature or token, which API Gateway checks.",
                ),
            )]
        }
    };
    schemes
        .into_iter()
        .map(|(name, scheme)| (name.to_owned(), scheme))
        .collect()
}

fn add_errors(
    dialect: Dialect,
    route: &Route,
    generator: &mut SchemaGenerator,
    responses: &mut Value,
) {
    for (meaning, rejection) in rejections(dialect, route) {
        let response = &mut responses[dialect.status(rejection.status).as_str()];
        // KServe has one status for unreadable and for invalid bodies.
        if let Some(known) = response["description"].as_str() {
            response["description"] = format!("{known} {meaning}").into();
            continue;
        }
        *response = json!({ "description": meaning });
        let ErrorBody { json, schema } = dialect.body(&rejection);
        let body = json!({ "schema": schema(generator), "example": json });
        response["content"]["application/json"] = body;
    }
}

/// A route's possible rejections: their meaning and an example.
fn rejections(dialect: Dialect, route: &Route) -> Vec<(&'static str, Rejection)> {
    let new = |status, message: &str| Rejection::new(status, message);
    let (is_post, has_body) = (route.method == RouteMethod::Post, route.request.is_some());
    let has_content_type = has_body && dialect != Dialect::KServe;
    let path_error = Error::malformed("expected UTF-8 in the path, but found other bytes");
    let fleet_error = Error::unavailable("the fleet of `minilm` cannot be reached");
    let json_error = Error::malformed("the body is not JSON: expected value at line 1 column 1");
    let unknown_model = Error::UnknownModel {
        name: "bert".into(),
        known: vec!["minilm".into()],
    };
    let too_large = Error::too_large("expected 1 to 1024 `inputs`, but found 2000");
    let invalid = Error::invalid("expected a text in `inputs[1]`, but found an empty one");
    let failed = Error::inference("the model failed to run");
    let timeout = Error::DeadlineExceeded {
        after: Duration::from_secs(30),
    };
    let wrong_type = "expected the content type `application/json`, but found `text/plain`";
    [
        (
            true,
            "Internal error; see the log.",
            new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed"),
        ),
        (
            !route.is_open,
            "Missing or unknown key.",
            new(StatusCode::UNAUTHORIZED, NO_KEY),
        ),
        (
            !route.is_open,
            "Not through the trusted proxy, if one is configured.",
            new(StatusCode::FORBIDDEN, NOT_PROXIED),
        ),
        (
            !route.is_open,
            "The fleet or the source of keys is unavailable.",
            fleet_error.into(),
        ),
        (
            route.parameters().next().is_some(),
            "Invalid path parameter.",
            path_error.into(),
        ),
        (
            is_post,
            "Too many concurrent requests.",
            Error::Overloaded {
                limit: 512,
                unit: "requests",
            }
            .into(),
        ),
        (
            has_body,
            "The body is incomplete or not JSON.",
            json_error.into(),
        ),
        (
            has_body || route.parameters().any(|name| name == "model"),
            "Unknown model.",
            unknown_model.into(),
        ),
        (
            has_body,
            "Too many texts, tokens or bytes.",
            too_large.into(),
        ),
        (
            has_body || route.query[0].is_some(),
            "Invalid value.",
            invalid.into(),
        ),
        (has_body, "The model failed.", failed.into()),
        (has_body, "Timeout.", timeout.into()),
        (
            has_content_type,
            "Wrong content type.",
            new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wrong_type),
        ),
        (
            has_body,
            "Unsupported content encoding.",
            new(StatusCode::UNSUPPORTED_MEDIA_TYPE, &unsupported("br")),
        ),
        (
            route.is_optional,
            "Turned off on this server.",
            new(StatusCode::NOT_FOUND, &format!("no route `{}`", route.path)),
        ),
    ]
    .into_iter()
    .filter_map(|(applies, meaning, rejection)| applies.then_some((meaning, rejection)))
    .collect()
}

fn add_headers(route: &Route, texts: &Texts, responses: &mut Value) {
    for (status, response) in responses.as_object_mut().into_iter().flatten() {
        for (name, sent, header) in texts.headers() {
            let is_sent = match sent {
                Sent::Always => true,
                Sent::WithStatuses(statuses) => statuses.contains(status),
                Sent::ByModels => status == "200" && route.runs != Runs::NoModel,
                Sent::WithUsage => status == "200" && route.runs == Runs::ModelWithUsage,
            };
            if is_sent {
                response["headers"][name] = header;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes;

    #[test]
    fn routes_have_texts_and_texts_have_routes() {
        let texts = Texts::read().unwrap();
        let routes: Vec<_> = [RouteMethod::Get, RouteMethod::Post]
            .into_iter()
            .flat_map(routes::with_method)
            .collect();
        let ids: BTreeSet<_> = routes.iter().map(|route| route.id).collect();
        for api in routes::APIS {
            assert!(texts.apis.contains_key(api.name), "{}", api.name);
        }
        for route in &routes {
            let own = texts.routes.get(route.texts).unwrap();
            assert!(
                own["summary"].is_string() && own["success"].is_string(),
                "{}",
                route.id
            );
        }
        for (id, own) in &texts.routes {
            assert!(ids.contains(id.as_str()), "{id}");
            let known = [
                "summary",
                "description",
                "query",
                "request",
                "requests",
                "success",
                "response",
                "responses",
            ];
            let names = own.as_object().unwrap().keys();
            assert!(
                names.into_iter().all(|name| known.contains(&name.as_str())),
                "{id}"
            );
        }
    }
}
