//! The OpenAPI document at `/openapi.json`.
//!
//! Each handler declares its request and response; [`examples`] adds examples, and [`responses`] errors, headers,
//! path parameters and security schemes.

mod examples;
mod responses;
pub(super) mod schemas;

use std::{
    mem,
    sync::{Arc, OnceLock},
};

use axum::{
    Extension,
    extract::State,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use utoipa::openapi::{InfoBuilder, License, OpenApi, OpenApiBuilder, Server, tag::TagBuilder};
use utoipa_axum::router::UtoipaMethodRouter;

use super::{app::App, rejection::Rejection};

/// The document, written when it is first requested.
pub(super) struct Document {
    /// Collects the declarations of all routes.
    pub(super) routes: fn() -> OpenApi,
    pub(super) json: OnceLock<String>,
}

/// General information, without any route.
pub(super) fn info() -> OpenApi {
    let description = "Transformer models behind the APIs that clients already speak: text-embeddings-inference \
        (TEI), OpenAI, the model hub, Cohere, Jina and KServe v2. Unknown fields are ignored, and `null` is the same \
        as a missing field. Bodies may be compressed with gzip or deflate. `GET /models` returns the limits on texts \
        and bytes of a request.";
    let info = InfoBuilder::new()
        .title("Kivu")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(description))
        .license(Some(License::new("Apache-2.0")));
    let tags = [
        ("TEI", "Embeddings, classification, ranking and tokens in the API of text-embeddings-inference."),
        ("OpenAI", "Embeddings in OpenAI's API."),
        ("model hub", "Every task in the API of the model hub's inference endpoints."),
        ("Cohere", "Ranking in Cohere's API."),
        ("Jina", "Ranking in Jina's API."),
        ("KServe v2", "Metadata, readiness and inference by tensors, for clients of Triton."),
        ("Kivu", "Translation with all its options."),
        ("server", "Models, health and metrics."),
    ];
    let tags = tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build());
    OpenApiBuilder::new()
        .info(info)
        // Relative to the document, so that a stage of API Gateway or a prefix needs no setting.
        .servers(Some([Server::new("./")]))
        .tags(Some(tags))
        .build()
}

/// The same handler at another path, with its own operation id.
pub(super) fn at(
    path: &str,
    (schemas, mut paths, router): UtoipaMethodRouter<Arc<App>>,
) -> UtoipaMethodRouter<Arc<App>> {
    let words = path.split('/').map(|word| word.trim_matches(['{', '}'])).filter(|word| !word.is_empty());
    let id = words.collect::<Vec<_>>().join("_");
    let items = mem::take(&mut paths.paths).into_values().map(|mut item| {
        for operation in item.get.iter_mut().chain(item.post.iter_mut()) {
            operation.operation_id = Some(id.clone());
        }
        (path.to_owned(), item)
    });
    paths.paths = items.collect();
    (schemas, paths, router)
}

/// The OpenAPI document
///
/// Describes the requests, responses and errors of each route, with examples.
#[utoipa::path(
    get, path = "/openapi.json", tag = "server",
    responses((status = 200, description = "This document.", body = Object))
)]
pub(super) async fn openapi(
    State(app): State<Arc<App>>,
    Extension(document): Extension<Arc<Document>>,
) -> Result<Response, Rejection> {
    app.require_page("/openapi.json")?;
    let write = || {
        let mut document = (document.routes)();
        examples::add(&mut document.paths);
        responses::complete(document, app.guard.access()).to_json().unwrap_or_default()
    };
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, document.json.get_or_init(write).clone()).into_response())
}
