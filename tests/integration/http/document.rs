//! The OpenAPI document, which is made from the table of routes, and to which every response conforms.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use kivu::{
    cloud::Cloud,
    config::{AuthConfig, Limits},
};
use kivu_http::{App, BindScope, Guard, below, make_key, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::{document, document_of, operations, scripted},
    messages::answer,
    models::runtime,
    server::{Server, kivu},
    tools::{interpreter, root, succeed},
};

async fn get(router: Router, path: &str) -> (StatusCode, Value) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    answer(router.oneshot(request).await.unwrap()).await
}

#[tokio::test]
async fn references_have_targets() {
    let document = document().await;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    let named: BTreeSet<&str> = text
        .split("#/components/schemas/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let known: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
    assert_eq!(named, known);
}

/// Adds the paths of fields without a description, of their own or of their type.
fn add_undescribed(document: &Value, place: &str, schema: &Value, found: &mut Vec<String>) {
    let Some(schema) = schema.as_object() else {
        return;
    };
    for (name, field) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let place = format!("{place}.{name}");
        if !is_described(document, field) {
            found.push(place.clone());
        }
        add_undescribed(document, &place, field, found);
    }
    let lists = ["oneOf", "anyOf", "allOf"]
        .into_iter()
        .filter_map(|key| schema.get(key)?.as_array());
    let single = ["items", "additionalProperties"]
        .into_iter()
        .filter_map(|key| schema.get(key));
    lists
        .flatten()
        .chain(single)
        .for_each(|inner| add_undescribed(document, place, inner, found));
}

fn is_described(document: &Value, field: &Value) -> bool {
    let null = json!({ "type": "null" });
    let described = |inner: &Value| is_described(document, inner);
    field["description"].is_string()
        || field["$ref"].as_str().is_some_and(|target| {
            described(document.pointer(target.trim_start_matches('#')).unwrap())
        })
        || field["anyOf"].as_array().is_some_and(|any| {
            let mut others = any.iter().filter(|inner| **inner != null);
            others.next().is_some_and(described) && others.next().is_none()
        })
}

#[tokio::test]
async fn every_field_and_parameter_is_described() {
    let document = document().await;
    let mut found = Vec::new();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        add_undescribed(&document, name, schema, &mut found);
    }
    for (method, path, operation) in operations(&document) {
        let responses = operation["responses"].as_object().unwrap().values();
        for body in responses.chain([&operation["requestBody"]]) {
            for media in body["content"]
                .as_object()
                .into_iter()
                .flat_map(|content| content.values())
            {
                add_undescribed(
                    &document,
                    &format!("{method} {path}"),
                    &media["schema"],
                    &mut found,
                );
            }
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let undescribed = parameters.filter(|parameter| !parameter["description"].is_string());
        found
            .extend(undescribed.map(|parameter| format!("{method} {path}: {}", parameter["name"])));
    }
    assert!(
        found.is_empty(),
        "expected doc comments for all fields, but found none for {found:#?}"
    );
}

/// Errors have the body of the path's API, also where there is no route.
#[tokio::test]
async fn unknown_paths_have_the_errors_of_their_prefix() {
    let router = router(scripted(Limits::default()));
    let mut fields = Vec::new();
    for path in [
        "/nowhere",
        "/v1/nowhere",
        "/v2/nowhere",
        "/api/nowhere",
        "/models/a/b/c",
        "/models//",
        "/v1",
    ] {
        let (status, body) = get(router.clone(), path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        let names: Vec<&str> = body
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        fields.push(format!(
            "{path}: {}{}",
            names.join(", "),
            if body["error"].is_object() {
                " {…}"
            } else {
                ""
            }
        ));
    }
    insta::assert_snapshot!(fields.join("\n"), @r"
    /nowhere: error, error_type
    /v1/nowhere: error {…}
    /v2/nowhere: error
    /api/nowhere: error, error_type
    /models/a/b/c: error, error_type
    /models//: error, error_type
    /v1: error, error_type
    ");
}

#[tokio::test]
async fn docs_list_every_route() {
    let document = document().await;
    let paths: BTreeSet<&str> = operations(&document)
        .into_iter()
        .map(|(_, path, _)| path)
        .collect();
    let text = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let named = |path: &&str| text.contains(&format!("{path}`")) || path.starts_with("/v2/");
    let missing: Vec<_> = paths.iter().filter(|path| !named(path)).collect();
    assert!(missing.is_empty(), "docs/api.md does not name {missing:?}");
}

#[tokio::test]
async fn each_operation_has_a_summary_and_examples() {
    let document = document().await;
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let place = format!("{method} {path}");
        assert!(
            operation["summary"].is_string() && operation["tags"].is_array(),
            "{place}"
        );
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{place} has the id of another operation"
        );
        let content = &operation["requestBody"]["content"];
        // A form has no example in JSON.
        let is_form = content.get("multipart/form-data").is_some();
        let content = &content["application/json"];
        let has_example =
            |content: &Value| content.get("example").or(content.get("examples")).is_some();
        assert!(
            operation.get("requestBody").is_none() || is_form || has_example(content),
            "{place} has no example request"
        );
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses {
            let json = &response["content"]["application/json"];
            let has_one = json.is_null() || has_example(json) || path == "/openapi.json";
            assert!(has_one, "{place} has no example for {status}");
        }
        assert!(responses.contains_key("500"), "{place} lacks 500");
    }
}

#[tokio::test]
async fn descriptions_are_for_readers_without_the_source() {
    let document = document().await.to_string();
    assert!(!document.contains("[`"), "a link of rustdoc");
}

/// Names of fields without a description in an object, or in the objects that it is made from.
fn undescribed(document: &Value, schema: &Value, depth: usize) -> Vec<String> {
    if let Some(target) = schema["$ref"].as_str() {
        return undescribed(document, document.pointer(&target[1..]).unwrap(), depth);
    }
    let parts = ["allOf", "oneOf", "anyOf"]
        .into_iter()
        .filter_map(|name| schema[name].as_array())
        .flatten();
    let mut found: Vec<String> = parts
        .flat_map(|part| undescribed(document, part, depth))
        .collect();
    if depth == 0 {
        return found;
    }
    found.extend(undescribed(document, &schema["items"], depth - 1));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let target = field["$ref"]
            .as_str()
            .and_then(|target| document.pointer(&target[1..]));
        if field["description"].is_null()
            && target.is_none_or(|target| target["description"].is_null())
        {
            found.push(name.clone());
        }
        found.extend(undescribed(document, field, depth - 1));
    }
    found
}

#[tokio::test]
async fn all_fields_of_requests_have_a_description() {
    let document = document().await;
    let mut missing = BTreeSet::new();
    for (_, path, operation) in operations(&document) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        missing.extend(
            undescribed(&document, schema, 4)
                .into_iter()
                .map(|name| format!("{path} {name}")),
        );
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[tokio::test]
async fn each_dialect_has_its_own_errors() {
    let document = document().await;
    let refusal = |path: &str, status: &str| {
        let content =
            &document["paths"][path]["post"]["responses"][status]["content"]["application/json"];
        format!(
            "{} {}",
            content["schema"]["$ref"].as_str().unwrap_or("no body"),
            content["example"]
        )
    };
    insta::assert_snapshot!(refusal("/embed", "422"), @r##"#/components/schemas/TeiError {"error":"expected a text in `inputs[1]`, but found an empty one","error_type":"Validation"}"##);
    insta::assert_snapshot!(refusal("/embed", "401"), @r##"#/components/schemas/KServeError {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}"##);
    insta::assert_snapshot!(refusal("/models/{model}", "401"), @r##"#/components/schemas/KServeError {"error":"expected a key in the header `authorization` as `Bearer KEY`, or in `x-api-key`, but found none"}"##);
    insta::assert_snapshot!(refusal("/v1/embeddings", "404"), @r##"#/components/schemas/OpenAiError {"error":{"code":"model_not_found","message":"unknown model `bert`; known models: `minilm`","param":null,"type":"invalid_request_error"}}"##);
    insta::assert_snapshot!(refusal("/v1/rerank", "413"), @r##"#/components/schemas/JinaError {"detail":"expected 1 to 1024 `inputs`, but found 2000"}"##);
    insta::assert_snapshot!(refusal("/v2/rerank", "429"), @r##"#/components/schemas/CohereError {"message":"expected at most 512 requests at once, but found more; try again in a moment"}"##);
    insta::assert_snapshot!(refusal("/v2/models/{model}/infer", "400"), @r##"#/components/schemas/KServeError {"error":"expected UTF-8 in the path, but found other bytes"}"##);
    assert!(
        document["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
            .get("422")
            .is_none()
    );
}

#[tokio::test]
async fn operations_declare_whether_they_need_a_key() {
    let (_, line) = make_key("alice").unwrap();
    let config = AuthConfig {
        keys: vec![line],
        ..AuthConfig::default()
    };
    let guard = Guard::new(&config, BindScope::ApiGateway, &Cloud::default()).unwrap();
    let locked = document_of(App {
        guard,
        ..scripted(Limits::default())
    })
    .await;
    let schemes: Vec<_> = locked["components"]["securitySchemes"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(schemes, ["key", "key-in-a-header"]);
    let open: Vec<_> = operations(&locked)
        .into_iter()
        .filter(|(_, _, operation)| operation.get("security").is_none())
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect();
    let expected = [
        "/",
        "/docs",
        "/health",
        "/healthz",
        "/openapi.json",
        "/ping",
        "/v2/health/live",
        "/v2/health/ready",
    ];
    assert_eq!(open, expected.map(|path| format!("get {path}")));

    let unlocked = document().await;
    assert!(
        operations(&unlocked)
            .iter()
            .all(|(_, _, operation)| operation.get("security").is_none())
    );
}

#[tokio::test]
async fn the_documents_follow_the_page_setting_and_the_prefix() {
    for path in ["/docs", "/openapi.json"] {
        let without = router(App {
            has_page: false,
            ..scripted(Limits::default())
        });
        let (status, body) = get(without, path).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(body["error"], format!("no route `{path}`: `page` is off"));
        let below = below(Some("/prod"), router(scripted(Limits::default())));
        assert_eq!(get(below, &format!("/prod{path}")).await.0, StatusCode::OK);
    }
    for (path, status) in [
        ("/prod", StatusCode::OK),
        ("/prod/", StatusCode::OK),
        ("/prod/nowhere", StatusCode::NOT_FOUND),
    ] {
        let below = below(Some("/prod"), router(scripted(Limits::default())));
        assert_eq!(get(below, path).await.0, status, "{path}");
    }
    assert_eq!(
        document().await["servers"][0]["url"],
        "./",
        "relative to the document"
    );
}

/// Valid and invalid requests that schemathesis generates from the document: every response is declared, and none is a
/// server error.
#[test]
fn every_response_conforms_to_the_document() {
    let Some(python) = interpreter("TEST_DOCUMENT", "schemathesis") else {
        return;
    };
    runtime().expect("`make test` installs ONNX Runtime");
    let folder = tempfile::tempdir().unwrap();
    let (key, line) = make_key("tester").unwrap();
    let bundles = root().join(".kivu/bundles");
    let mut serve = kivu(&bundles);
    let server = Server::wait(
        serve
            .env("KIVU_AUTH__KEYS", line)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut test = Command::new(python);
    test.args(["-m", "schemathesis.cli", "--config-file"])
        .arg(root().join("tests/document/schemathesis.toml"))
        .args([
            "run",
            &format!("http://{}/openapi.json", server.address),
            "--no-color",
        ])
        .env("TEST_KEY", key)
        .current_dir(folder.path());
    succeed(&mut test);
}
