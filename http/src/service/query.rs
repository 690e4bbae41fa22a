//! Query strings, of which routes read only the parameters in their tables.

use axum::http::{Method, request::Parts};

use crate::{fields, routes};
use kivu::{Error, Result};

/// What Azure's clients send, which is no field of Bedrock's bodies.
const VERSION: &str = "api-version";
/// Parameters that are compared with all fields.
const MAX_COMPARED: usize = 64;

/// Refuses query parameters with a body field's name, or nearly, since their sender expects an effect. Others are ignored, as
/// fields of bodies are, such as signatures in URLs.
pub fn check(request: &Parts) -> Result<()> {
    let path = request.uri.path();
    let Some(query) = request.uri.query() else {
        return Ok(());
    };
    let Some(read) = routes::query_parameters(path, &request.method) else {
        return Ok(());
    };
    let names = form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
    let unread = names.filter(|name| !read.contains(&&**name) && name != VERSION);
    let meant = unread
        .take(MAX_COMPARED)
        .find_map(|name| Some((fields::changes_results(&name)?, name)));
    let Some((field, name)) = meant else {
        return Ok(());
    };
    let hint = match request.method {
        Method::POST if name == field => "send it in the body".to_owned(),
        Method::POST => format!("send `{field}` in the body"),
        _ => "leave it out".to_owned(),
    };
    Err(Error::invalid(format!(
        "`{path}` does not read the query parameter `{}`",
        name.escape_debug()
    ))
    .with_hint(hint)
    .in_field(name))
}

#[cfg(test)]
mod tests {
    use axum::{
        body::Body,
        http::{Request, StatusCode},
    };
    use serde_json::json;
    use tower_service::Service;

    use super::*;
    use crate::{router, scripted, service::app::App};
    use kivu::config::Limits;

    async fn ask(method: Method, target: &str) -> (StatusCode, String) {
        let texts = if target.starts_with("/v1/") {
            "input"
        } else {
            "inputs"
        };
        let body = match method {
            Method::POST => json!({ texts: ["cat"] }).to_string(),
            _ => String::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("content-type", "application/json")
            .body(Body::from(body));
        let models = scripted::models().unwrap();
        let mut router = router(App::new(models, Limits::default()));
        let response = router.call(request.unwrap()).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        (status, String::from_utf8_lossy(&body.unwrap()).into_owned())
    }

    #[tokio::test]
    async fn fields_in_the_query_are_refused() {
        let mut found = String::new();
        for (method, target) in [
            (Method::POST, "/v1/embeddings?api-version=1&dimensions=2"),
            (Method::POST, "/embed?%74runcate=true"),
            (Method::POST, "/models/embedding?model=another"),
            (Method::POST, "/embed?key=1&Dimension=2"),
            (Method::POST, "/v2/embed?embedding_types=int8"),
            (Method::GET, "/info?model=another"),
            (Method::GET, "/v2/languages?target_lang=PT"),
        ] {
            let (status, body) = ask(method, target).await;
            found += &format!("{target}: {} {body}\n", status.as_u16());
        }
        insta::assert_snapshot!(found, @r#"
        /v1/embeddings?api-version=1&dimensions=2: 422 {"error":{"code":null,"message":"`/v1/embeddings` does not read the query parameter `dimensions`; send it in the body","param":"dimensions","type":"invalid_request_error"}}
        /embed?%74runcate=true: 422 {"error":"`/embed` does not read the query parameter `truncate`; send it in the body","error_type":"Validation"}
        /models/embedding?model=another: 422 {"error":"`/models/embedding` does not read the query parameter `model`; send it in the body","error_type":"Validation"}
        /embed?key=1&Dimension=2: 422 {"error":"`/embed` does not read the query parameter `Dimension`; send `dimensions` in the body","error_type":"Validation"}
        /v2/embed?embedding_types=int8: 422 {"message":"`/v2/embed` does not read the query parameter `embedding_types`; send it in the body"}
        /info?model=another: 422 {"error":"`/info` does not read the query parameter `model`; leave it out","error_type":"Validation"}
        /v2/languages?target_lang=PT: 422 {"message":"`/v2/languages` does not read the query parameter `target_lang`; leave it out"}
        "#);
    }

    #[tokio::test]
    async fn other_parameters_are_ignored() {
        for (method, target) in [
            (Method::POST, "/v1/embeddings?api-version=2024-10-21"),
            (Method::POST, "/embed?X-Amz-Signature=0&X-Amz-Date=0"),
            (Method::POST, "/embed?token=0&state=0&retry=1&date=0"),
            (Method::POST, "/embed?"),
            (Method::GET, "/v2/languages?type=target"),
            (Method::GET, "/?model=embedding"),
            (Method::GET, "/health?text"),
        ] {
            let (status, body) = ask(method, target).await;
            assert_eq!(status, StatusCode::OK, "{target}: {body}");
        }
        for (method, target, status) in [
            (Method::POST, "/none?model=a", StatusCode::NOT_FOUND),
            (
                Method::GET,
                "/embed?model=a",
                StatusCode::METHOD_NOT_ALLOWED,
            ),
        ] {
            assert_eq!(ask(method, target).await.0, status, "{target}");
        }
    }
}
