//! The description of the API that `/openapi.json` answers, made of what stands beside each handler.
//!
//! A handler says what it reads and answers; [`responses`] adds what all of them have in common.

mod responses;
pub(super) mod schemas;

use std::{mem, sync::Arc};

use axum::{
    extract::State,
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use utoipa::openapi::{
    InfoBuilder, License, OpenApi, OpenApiBuilder, PathItem, RefOr, Required, Server,
    path::{Operation, ParameterBuilder, ParameterIn},
    schema::{ObjectBuilder, Type},
    tag::TagBuilder,
};
use utoipa_axum::router::UtoipaMethodRouter;

use super::{App, dialect::Dialect, rejection::Rejection, routes};

/// What the document says before anything is said of routes.
pub(super) fn head() -> OpenApi {
    let description = "Transformer models, in the dialects that clients speak already: text-embeddings-inference \
        (TEI), OpenAI, the model hub, Cohere, Jina and KServe v2. A field that is not named here is ignored, and \
        `null` is the same as leaving a field out. A body may be compressed with gzip or deflate. How many texts \
        and bytes a request may have is told by `GET /models`.";
    let info = InfoBuilder::new()
        .title("Kivu")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(description))
        .license(Some(License::new("Apache-2.0")));
    let tags = [
        ("TEI", "What text-embeddings-inference answers."),
        ("OpenAI", "Embeddings as OpenAI's clients ask for them."),
        ("model hub", "What the model hub's inference API answers."),
        ("Cohere", "Ranking as Cohere's clients ask for it."),
        ("Jina", "Ranking as Jina's API answers it."),
        ("KServe v2", "Metadata, readiness and inference by tensors, as Triton's clients ask for them."),
        ("Kivu", "Translation with all that can be said of it."),
        ("server", "What is served, how it is, and what was counted."),
    ];
    let tags = tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build());
    OpenApiBuilder::new()
        .info(info)
        // Relative to this document, so that a stage of API Gateway or a prefix needs no setting.
        .servers(Some([Server::new("./")]))
        .tags(Some(tags))
        .build()
}

/// The same routes at another path; its parameters that the first has not are texts.
pub(super) fn at(
    path: &str,
    (schemas, mut paths, router): UtoipaMethodRouter<Arc<App>>,
) -> UtoipaMethodRouter<Arc<App>> {
    paths.paths = mem::take(&mut paths.paths)
        .into_values()
        .map(|mut item| {
            for operation in operations(&mut item) {
                name_version(path, operation);
            }
            (path.to_owned(), item)
        })
        .collect();
    (schemas, paths, router)
}

/// Gives an operation a name of its own, and the parameter of its path that the first path has not.
fn name_version(path: &str, operation: &mut Operation) {
    let words = path.split('/').map(|word| word.trim_matches(['{', '}'])).filter(|word| !word.is_empty());
    operation.operation_id = Some(words.collect::<Vec<_>>().join("_"));
    if path.contains("{version}") {
        let version = ParameterBuilder::new()
            .name("version")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some("`1`: there is no other."))
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
            .build();
        operation.parameters.get_or_insert_default().push(RefOr::T(version));
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    item.get.iter_mut().chain(item.post.iter_mut())
}

/// The description of this API, in OpenAPI's form
///
/// It says of each route what it reads, answers and refuses, with examples.
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses((
    status = 200, description = "This document.", body = Object
)))]
pub(super) async fn openapi(State(app): State<Arc<App>>) -> Response {
    if !app.has_page {
        return no_page("/openapi.json");
    }
    let write = || responses::complete(routes().into_openapi(), &app.guard).to_json().unwrap_or_default();
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
    (headers, app.document.get_or_init(write).clone()).into_response()
}

/// What those hear who ask for a page that this server is told not to have.
pub(super) fn no_page(path: &str) -> Response {
    let message = format!("no route `{path}`: `page` is off");
    Dialect::of(path).respond(Rejection::new(StatusCode::NOT_FOUND, message))
}
