//! What all operations have in common: errors, security schemes, and the headers of responses.

use std::time::Duration;

use axum::http::StatusCode;
use utoipa::{
    ToSchema,
    openapi::{
        Components, ContentBuilder, Header, HeaderBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder,
        Schema,
        path::Operation,
        schema::{ObjectBuilder, Type},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use crate::{
    api::{
        auth::{Access, NO_KEY, NOT_PROXIED, OPEN_PATHS},
        dialect::{CohereError, Dialect, ErrorBody, JinaError, KServeError, OpenAiError, TeiError},
        rejection::Rejection,
    },
    error::Error,
};

/// Adds errors, headers and security schemes to the operations of a document.
pub(super) fn complete(mut document: OpenApi, access: &Access) -> OpenApi {
    let schemes = security_schemes(access);
    let requirement = |(name, _): &(&str, _)| SecurityRequirement::new::<_, [&str; 0], &str>(*name, []);
    let requirements: Vec<_> = schemes.iter().map(requirement).collect();
    for (path, item) in &mut document.paths.paths {
        for (is_post, operation) in [(false, &mut item.get), (true, &mut item.post)] {
            let Some(operation) = operation else { continue };
            let is_open = !is_post && OPEN_PATHS.contains(&path.as_str());
            if !is_open && !requirements.is_empty() {
                operation.security = Some(requirements.clone());
            }
            add_errors(path, is_post, is_open, operation);
            add_headers(path, is_post, operation);
        }
    }
    let components = document.components.get_or_insert_with(Components::new);
    components.schemas.extend(error_schemas());
    let schemes = schemes.into_iter().map(|(name, scheme)| (name.to_owned(), RefOr::T(scheme)));
    components.security_schemes.extend(schemes);
    document
}

fn error_schemas() -> Vec<(String, RefOr<Schema>)> {
    fn add<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
    let mut schemas = Vec::new();
    add::<TeiError>(&mut schemas);
    add::<OpenAiError>(&mut schemas);
    add::<KServeError>(&mut schemas);
    add::<CohereError>(&mut schemas);
    add::<JinaError>(&mut schemas);
    schemas
}

fn security_schemes(access: &Access) -> Vec<(&'static str, SecurityScheme)> {
    let header =
        |name, text| SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(name, text)));
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A key from `kivu key`, as `authorization: Bearer KEY`."));
    match access {
        Access::Open => Vec::new(),
        Access::Keys(_) => vec![
            ("key", SecurityScheme::Http(bearer.build())),
            ("key-in-a-header", header("x-api-key", "The key alone.")),
        ],
        Access::GatewayVerified => {
            vec![("gateway", header("authorization", "A signature or token, which API Gateway checks."))]
        }
    }
}

fn add_errors(path: &str, is_post: bool, is_open: bool, operation: &mut Operation) {
    let dialect = Dialect::of(path);
    let responses = &mut operation.responses.responses;
    for (meaning, rejection) in rejections(path, is_post, is_open) {
        let status = dialect.status(rejection.status);
        // KServe has one status for unreadable and for invalid bodies.
        match responses.get_mut(status.as_str()) {
            Some(RefOr::T(known)) => known.description = format!("{} {meaning}", known.description),
            _ => {
                let response = error_response(dialect, meaning, &rejection);
                responses.insert(status.as_str().to_owned(), RefOr::T(response));
            }
        }
    }
}

/// The possible rejections of an operation: their meaning and an example.
fn rejections(path: &str, is_post: bool, is_open: bool) -> Vec<(&'static str, Rejection)> {
    let new = |status, message: &str| Rejection::new(status, message);
    let unknown_model = || {
        let error = Error::UnknownModel { name: "bert".into(), known: vec!["minilm".into()] };
        ("Unknown model.", error.into())
    };
    let mut rejections =
        vec![("Internal error; see the log.", new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed"))];
    if !is_open {
        rejections.extend([
            ("Missing or unknown key.", new(StatusCode::UNAUTHORIZED, NO_KEY)),
            ("Not through the trusted proxy, if one is configured.", new(StatusCode::FORBIDDEN, NOT_PROXIED)),
            (
                "The fleet or the source of keys is unavailable.",
                Error::unavailable("the fleet of `minilm` cannot be reached").into(),
            ),
        ]);
    }
    if path.contains('{') {
        let error = Error::malformed("expected UTF-8 in the path, but found other bytes");
        rejections.push(("Invalid path parameter.", error.into()));
    }
    if is_post {
        rejections.push(("Too many concurrent requests.", Error::Overloaded { limit: 512 }.into()));
    }
    if is_post && path != "/v2/repository/index" {
        rejections.extend([
            (
                "The body is incomplete or not JSON.",
                Error::malformed("the body is not JSON: expected value at line 1 column 1").into(),
            ),
            unknown_model(),
            (
                "Too many texts, tokens or bytes.",
                Error::too_large("expected 1 to 1024 `inputs`, but found 2000").into(),
            ),
            (
                "Invalid value.",
                Error::invalid("expected a text in `inputs[1]`, but found an empty one").into(),
            ),
            ("The model failed.", Error::inference("the model failed to run").into()),
            ("Timeout.", Error::DeadlineExceeded { after: Duration::from_secs(30) }.into()),
        ]);
        if Dialect::of(path) != Dialect::KServe {
            let message = "expected the content type `application/json`, but found `text/plain`";
            rejections.push(("Wrong content type.", new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)));
        }
    } else if path.contains("{model}") {
        rejections.push(unknown_model());
    }
    if matches!(path, "/metrics" | "/docs" | "/openapi.json") {
        let message = format!("no route `{path}`");
        rejections.push(("Turned off on this server.", new(StatusCode::NOT_FOUND, &message)));
    }
    rejections
}

fn error_response(dialect: Dialect, meaning: &str, rejection: &Rejection) -> Response {
    let mut response = ResponseBuilder::new().description(meaning);
    if let Some(body) = dialect.body(rejection) {
        let schema = match body {
            ErrorBody::Tei(_) => TeiError::name(),
            ErrorBody::OpenAi(_) => OpenAiError::name(),
            ErrorBody::KServe(_) => KServeError::name(),
            ErrorBody::Cohere(_) => CohereError::name(),
            ErrorBody::Jina(_) => JinaError::name(),
        };
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(schema)))
            .example(serde_json::to_value(body).ok());
        response = response.content("application/json", content.build());
    }
    match rejection.status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            response.header("retry-after", header("Seconds to wait before a retry.")).build()
        }
        StatusCode::UNAUTHORIZED => response.header("www-authenticate", header("`Bearer`.")).build(),
        _ => response.build(),
    }
}

fn add_headers(path: &str, is_post: bool, operation: &mut Operation) {
    const USAGE: [(&str, &str); 10] = [
        ("x-backend", "Where the model ran: `onnx` for this server, `triton` for a fleet."),
        ("x-truncated", "The positions of truncated texts, from 0; absent if there are none."),
        ("x-compute-type", "`cpu`."),
        ("x-compute-characters", "Characters of all texts."),
        ("x-compute-tokens", "Tokens read by the model."),
        ("x-tokenization-time", "Milliseconds of tokenization."),
        ("x-inference-time", "Milliseconds of inference, including the wait for it."),
        ("x-compute-time", "Milliseconds of tokenization and inference."),
        ("x-total-time", "Milliseconds from the request's headers to the response."),
        ("server-timing", "The same durations with fractions of milliseconds."),
    ];
    let runs_model = is_post && !matches!(path, "/tokenize" | "/decode" | "/v2/repository/index");
    let usage = match Dialect::of(path) {
        _ if !runs_model => &[],
        Dialect::Tei | Dialect::Hub => &USAGE[..],
        _ => &USAGE[..1],
    };
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let mut add = |name: &str, text| response.headers.insert(name.into(), RefOr::T(header(text)));
        add("x-request-id", "The id of the request: the client's own, or a new one.");
        if status == "200" {
            for (name, text) in usage {
                add(name, text);
            }
        }
    }
}

fn header(text: &str) -> Header {
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .description(Some(text))
        .build()
}
