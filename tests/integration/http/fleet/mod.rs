//! Models on a real Triton server: five published articles' fleets, and server failures.

mod entities;
mod faults;
mod proxy;
mod refusals;
mod repositories;
mod seeds;
mod server;
mod telemetry;
mod text_to_text;
mod together;
mod translation;

use std::path::Path;

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request},
};
use http_body_util::BodyExt;
use kivu::{
    cloud::Cloud,
    config::{Config, ModelConfig, Policy},
    model::Model,
};
use kivu_http::{App, router};
use serde_json::Value;
use tower::ServiceExt;

/// A model in this process, or on servers at `urls` as `remote`.
fn model(bundle: &Path, policy: Policy, remote: &str, urls: &[&str]) -> ModelConfig {
    ModelConfig {
        policy: Some(policy),
        remote: Some(remote.to_owned()),
        urls: Some(urls.iter().map(|url| (*url).to_owned()).collect()),
        ..ModelConfig::from(bundle.to_owned())
    }
}

fn app(config: &Config) -> Router {
    router(App::new(
        Model::open_all(config, &Cloud::default()).unwrap(),
        config.limits.clone(),
    ))
}

fn app_of(model: ModelConfig) -> Router {
    app(&Config {
        models: vec![model],
        ..crate::models::config()
    })
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    /// Where the model ran, from the header `x-backend`.
    fn backend(&self) -> &str {
        self.headers
            .get("x-backend")
            .map_or("none", |value| value.to_str().unwrap())
    }
}

async fn post(app: &Router, path: &str, body: &Value) -> Answer {
    let request = Request::post(path).header("content-type", "application/json");
    let response = app
        .clone()
        .oneshot(request.body(Body::from(body.to_string())).unwrap())
        .await
        .unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body,
    }
}

/// Whether two responses are equal, with a tolerance for numbers.
fn agree(left: &Value, right: &Value) -> bool {
    const TOLERANCE: f64 = 1e-5;
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            (left.as_f64().unwrap() - right.as_f64().unwrap()).abs() <= TOLERANCE
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| agree(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, value)| right.get(key).is_some_and(|other| agree(value, other)))
        }
        _ => left == right,
    }
}
