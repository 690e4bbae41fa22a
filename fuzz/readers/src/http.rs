//! Request readers: every route, with a scripted model for every task.

use std::{collections::BTreeSet, sync::OnceLock};

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
};
use tower_service::Service;

use kivu::{
    cloud::Cloud,
    config::{AuthConfig, Limits},
};
use kivu_http::{
    App, BindScope, Guard, router, routes,
    service::route::{Route, RouteMethod},
};

use crate::models::{MODELS, models};

/// A line with a path, and a body.
pub fn request(bytes: &[u8]) {
    if let Some((path, body)) = split_path(bytes) {
        post(path, "identity", body);
    }
}

/// A byte that selects the content encoding, a line with a path, and a body.
pub fn packed_request(bytes: &[u8]) {
    let Some((encoding, rest)) = bytes.split_first() else {
        return;
    };
    let encoding = ["gzip", "deflate", "identity", "gzip, gzip"][usize::from(*encoding) % 4];
    if let Some((path, body)) = split_path(rest) {
        post(path, encoding, body);
    }
}

fn post(path: &str, encoding: &str, body: &[u8]) {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .header("content-encoding", encoding)
        .body(Body::from(body.to_vec()));
    if let Ok(request) = request {
        send(request);
    }
}

/// The path in an input's first line, and the rest. A line that is no path selects a route by its bytes, so that
/// mutated lines reach handlers, too.
fn split_path(bytes: &[u8]) -> Option<(&'static str, &[u8])> {
    let place = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, body) = (&bytes[..place], &bytes[place + 1..]);
    let known = paths().iter().find(|path| path.as_bytes() == line);
    let by_bytes =
        || &paths()[line.iter().map(|byte| usize::from(*byte)).sum::<usize>() % paths().len()];
    Some((known.unwrap_or_else(by_bytes).as_str(), body))
}

/// A path in which the model has two segments, as in an ARN, if the route has such a path.
fn arn_path(route: &Route, model: &str) -> String {
    route
        .path
        .replace("{model}/{resource}", &format!("arn:/{model}"))
}

/// Paths for POST, of each model where they name one.
fn paths() -> &'static [String] {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    let of_models = |route: &Route| {
        MODELS.map(|[model, ..]| {
            arn_path(route, model)
                .replace("{model}", model)
                .replace("{version}", "1")
        })
    };
    PATHS.get_or_init(|| {
        let all: BTreeSet<String> = routes::with_method(RouteMethod::Post)
            .flat_map(of_models)
            .collect();
        all.into_iter().collect()
    })
}

/// Two bytes with the JSON length, and a message with binary tensors.
pub fn tensors(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk() else {
        return;
    };
    let length = match u16::from_le_bytes(*length) {
        u16::MAX => usize::MAX,
        length => length.into(),
    };
    for model in [
        "embedding",
        "zero-shot",
        "ranking",
        "translation",
        "token-classification",
    ] {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("/v2/models/{model}/infer"))
            .header("inference-header-content-length", length)
            .body(Body::from(body.to_vec()));
        if let Ok(request) = request {
            send(request);
        }
    }
}

/// Keys as in a file or a secret, and headers.
pub fn keys(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // An error is a valid outcome.
    let _ = Guard::new(
        &AuthConfig {
            keys: vec![text.to_string()],
            ..AuthConfig::default()
        },
        BindScope::ApiGateway,
        &Cloud::default(),
    );
    let (name, value) = text.split_once('\n').unwrap_or(("authorization", &text));
    let request = Request::builder()
        .method(Method::POST)
        .uri("/embed")
        .header(name, value);
    if let Ok(request) = request.body(Body::empty()) {
        send(request);
    }
}

/// Sends a request and checks that the response does not report a panic.
fn send(request: Request<Body>) {
    static ROUTER: OnceLock<Option<Router>> = OnceLock::new();
    thread_local! {
        static RUNTIME: Option<tokio::runtime::Runtime> =
            tokio::runtime::Builder::new_current_thread().enable_all().build().ok();
    }
    let limits = Limits {
        requests: 4,
        ..Limits::default()
    };
    let router =
        ROUTER.get_or_init(|| models().ok().map(|models| router(App::new(models, limits))));
    let Some(mut router) = router.clone() else {
        return;
    };
    RUNTIME.with(|runtime| {
        let answer = runtime
            .as_ref()
            .map(|runtime| runtime.block_on(router.call(request)));
        if let Some(Ok(answer)) = answer {
            assert_ne!(
                answer.status(),
                StatusCode::INTERNAL_SERVER_ERROR,
                "the server failed"
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn each_route_has_an_input() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/request");
        let inputs: Vec<Vec<u8>> = fs::read_dir(folder)
            .unwrap()
            .map(|file| fs::read(file.unwrap().path()).unwrap())
            .collect();
        let has_input = |route: &Route| {
            inputs
                .iter()
                .filter_map(|input| split_path(input))
                .any(|(path, _)| route.matches(path))
        };
        let without: Vec<_> = routes::with_method(RouteMethod::Post)
            .filter(|route| !has_input(route))
            .map(|route| route.path)
            .collect();
        assert!(
            without.is_empty(),
            "`fuzz/corpus/request` lacks {without:?}"
        );
    }
}
