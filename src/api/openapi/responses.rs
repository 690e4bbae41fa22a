//! Parts that all operations share: path parameters, errors, security schemes and response headers.

use std::time::Duration;

use axum::http::StatusCode;
use utoipa::{
    ToSchema,
    openapi::{
        Components, ContentBuilder, Header, HeaderBuilder, OpenApi, Ref, RefOr, Required, Response,
        ResponseBuilder, Schema,
        path::{Operation, ParameterBuilder, ParameterIn},
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
            add_parameters(path, operation);
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
    let mut schemas = Vec::new();
    ErrorBody::schemas(&mut schemas);
    schemas
}

fn add_parameters(path: &str, operation: &mut Operation) {
    for (name, description) in [("model", "The name of a served model."), ("version", "Always `1`.")] {
        if path.contains(&format!("{{{name}}}")) {
            let parameter = ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(Some(description))
                .schema(Some(ObjectBuilder::new().schema_type(Type::String)));
            operation.parameters.get_or_insert_default().push(RefOr::T(parameter.build()));
        }
    }
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
    let has_body = is_post && path != "/v2/repository/index";
    let has_content_type = has_body && Dialect::of(path) != Dialect::KServe;
    let is_optional = matches!(path, "/metrics" | "/docs" | "/openapi.json");
    let path_error = Error::malformed("expected UTF-8 in the path, but found other bytes");
    let fleet_error = Error::unavailable("the fleet of `minilm` cannot be reached");
    let json_error = Error::malformed("the body is not JSON: expected value at line 1 column 1");
    let unknown_model = Error::UnknownModel { name: "bert".into(), known: vec!["minilm".into()] };
    let too_large = Error::too_large("expected 1 to 1024 `inputs`, but found 2000");
    let invalid = Error::invalid("expected a text in `inputs[1]`, but found an empty one");
    let failed = Error::inference("the model failed to run");
    let timeout = Error::DeadlineExceeded { after: Duration::from_secs(30) };
    let wrong_type = "expected the content type `application/json`, but found `text/plain`";
    [
        (true, "Internal error; see the log.", new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed")),
        (!is_open, "Missing or unknown key.", new(StatusCode::UNAUTHORIZED, NO_KEY)),
        (
            !is_open,
            "Not through the trusted proxy, if one is configured.",
            new(StatusCode::FORBIDDEN, NOT_PROXIED),
        ),
        (!is_open, "The fleet or the source of keys is unavailable.", fleet_error.into()),
        (path.contains('{'), "Invalid path parameter.", path_error.into()),
        (is_post, "Too many concurrent requests.", Error::Overloaded { limit: 512 }.into()),
        (has_body, "The body is incomplete or not JSON.", json_error.into()),
        (has_body || path.contains("{model}"), "Unknown model.", unknown_model.into()),
        (has_body, "Too many texts, tokens or bytes.", too_large.into()),
        (has_body, "Invalid value.", invalid.into()),
        (has_body, "The model failed.", failed.into()),
        (has_body, "Timeout.", timeout.into()),
        (has_content_type, "Wrong content type.", new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wrong_type)),
        (
            is_optional,
            "Turned off on this server.",
            new(StatusCode::NOT_FOUND, &format!("no route `{path}`")),
        ),
    ]
    .into_iter()
    .filter_map(|(applies, meaning, rejection)| applies.then_some((meaning, rejection)))
    .collect()
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
