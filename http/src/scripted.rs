//! Requests to a server with one scripted model per task.

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use kivu::config::Limits;
use serde_json::Value;
use tower_service::Service;

use crate::{App, router};

#[path = "../../fuzz/readers/src/models.rs"]
mod models;

pub use models::models;

pub async fn ask(path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    let mut router = router(App::new(models().unwrap(), Limits::default()));
    let response = router.call(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}
