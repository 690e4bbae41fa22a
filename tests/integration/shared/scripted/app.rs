//! The HTTP API with the scripted model, and its OpenAPI document.

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use kivu::config::Limits;
use kivu_http::{App, router};
use serde_json::Value;
use tower::ServiceExt;

use crate::{messages::answer, scripted::scripted_model};

pub(crate) fn scripted(limits: Limits) -> App {
    App::new(vec![scripted_model()], limits)
}

pub(crate) async fn document_of(app: App) -> Value {
    let request = Request::get("/openapi.json").body(Body::empty()).unwrap();
    let (status, document) = answer(router(app).oneshot(request).await.unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    document
}

pub(crate) async fn document() -> Value {
    document_of(scripted(Limits::default())).await
}

/// Every operation's method, path and declaration.
pub(crate) fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, item)| {
        item.as_object()
            .unwrap()
            .iter()
            .map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    });
    operations.collect()
}

/// Method and path of every operation, for a served model.
pub(crate) async fn routes() -> Vec<(String, String)> {
    let named = |path: &str| {
        path.replace("{model}", "tiny")
            .replace("{version}", "1")
            .replace("{resource}", "a")
    };
    let document = document().await;
    let all = operations(&document).into_iter();
    all.map(|(method, path, _)| (method.to_uppercase(), named(path)))
        .collect()
}
