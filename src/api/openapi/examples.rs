//! Examples of requests and responses, from `examples.json`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::{
    Content, RefOr,
    example::ExampleBuilder,
    path::{Operation, Paths},
};

const JSON: &str = "application/json";

/// The examples of an operation, by name.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Examples {
    request: BTreeMap<String, Value>,
    response: BTreeMap<String, Value>,
}

/// Adds the examples of all operations.
pub(super) fn add(paths: &mut Paths) {
    let all: BTreeMap<String, Examples> =
        serde_json::from_str(include_str!("examples.json")).unwrap_or_default();
    for (path, item) in &mut paths.paths {
        // A version changes nothing.
        let path = path.replace("/versions/{version}", "");
        for (method, operation) in [("get", &mut item.get), ("post", &mut item.post)] {
            if let (Some(operation), Some(examples)) = (operation, all.get(&format!("{method} {path}"))) {
                add_to(operation, examples);
            }
        }
    }
}

fn add_to(operation: &mut Operation, examples: &Examples) {
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && let Some(RefOr::T(content)) = body.content.get_mut(JSON)
    {
        set(content, &examples.request);
    }
    if let Some(RefOr::T(response)) = operation.responses.responses.get_mut("200")
        && let Some(RefOr::T(content)) = response.content.get_mut(JSON)
    {
        set(content, &examples.response);
    }
}

fn set(content: &mut Content, examples: &BTreeMap<String, Value>) {
    if examples.len() == 1 {
        content.example = examples.values().next().cloned();
        return;
    }
    let example = |value: &Value| RefOr::T(ExampleBuilder::new().value(Some(value.clone())).build());
    content.examples = examples.iter().map(|(name, value)| (name.clone(), example(value))).collect();
}
