//! What all routes have in common: how they refuse, who may ask, and the headers of their answers.

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
        auth::{Asks, Guard, OPEN_PATHS, WHERE_KEYS_GO},
        dialect::Dialect,
        kserve, openai,
        rejection::Rejection,
        rerank, tei,
    },
    error::Error,
};

const BEARER: &str = "key";
const HEADER: &str = "key-in-a-header";
const GATEWAY: &str = "gateway";

/// The document of routes with what holds for all of them behind a guard.
pub(super) fn complete(mut document: OpenApi, guard: &Guard) -> OpenApi {
    let asks = guard.asks();
    let components = document.components.get_or_insert_with(Components::new);
    components.schemas.extend(failures());
    let schemes = schemes(asks).into_iter().map(|(name, scheme)| (name.to_owned(), RefOr::T(scheme)));
    components.security_schemes.extend(schemes);
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in [(Method::Get, &mut item.get), (Method::Post, &mut item.post)] {
            if let Some(operation) = operation {
                finish(path, method, operation, asks);
            }
        }
    }
    document
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Post,
}

/// The shapes of errors, which no handler names.
fn failures() -> Vec<(String, RefOr<Schema>)> {
    fn add<T: ToSchema>(shapes: &mut Vec<(String, RefOr<Schema>)>) {
        shapes.push((T::name().into_owned(), T::schema()));
        T::schemas(shapes);
    }
    let mut shapes = Vec::new();
    add::<tei::FailureBody>(&mut shapes);
    add::<openai::FailureBody>(&mut shapes);
    add::<kserve::FailureBody>(&mut shapes);
    add::<rerank::CohereFailureBody>(&mut shapes);
    add::<rerank::JinaFailureBody>(&mut shapes);
    shapes
}

/// The ways to say who asks.
fn schemes(asks: Asks) -> Vec<(&'static str, SecurityScheme)> {
    let header =
        |name, text| SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(name, text)));
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A key that `kivu key` made, as `authorization: Bearer KEY`."));
    match asks {
        Asks::Nothing => Vec::new(),
        Asks::Key => vec![
            (BEARER, SecurityScheme::Http(bearer.build())),
            (HEADER, header("x-api-key", "The same key by itself.")),
        ],
        Asks::Gateway => {
            vec![(GATEWAY, header("authorization", "What API Gateway checks: a signature or a token."))]
        }
    }
}

fn finish(path: &str, method: Method, operation: &mut Operation, asks: Asks) {
    let is_open = method == Method::Get && OPEN_PATHS.contains(&path);
    if !is_open {
        let requirement = |(name, _): (&str, _)| SecurityRequirement::new::<_, [&str; 0], &str>(name, []);
        let requirements: Vec<_> = schemes(asks).into_iter().map(requirement).collect();
        operation.security = Some(requirements).filter(|requirements| !requirements.is_empty());
    }
    for (status, why, rejection) in refusals(path, method, is_open) {
        let responses = &mut operation.responses.responses;
        // KServe tells of a wrong value by the same status as of bytes that cannot be read.
        match responses.get_mut(status.as_str()) {
            Some(RefOr::T(known)) => known.description = format!("{} {why}", known.description),
            _ => {
                let response = refusal(Dialect::of(path), why, &rejection);
                responses.insert(status.as_str().to_owned(), RefOr::T(response));
            }
        }
    }
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        response
            .headers
            .insert("x-request-id".into(), RefOr::T(header("The request's own id, or a new one.")));
    }
    if let Some(RefOr::T(answer)) = operation.responses.responses.get_mut("200") {
        for (name, text) in told(path, method) {
            answer.headers.insert((*name).into(), RefOr::T(header(text)));
        }
    }
}

/// How a path may refuse: status, what it means, an example.
fn refusals(path: &str, method: Method, is_open: bool) -> Vec<(StatusCode, &'static str, Rejection)> {
    let made = |status, message: &str| Rejection::new(status, message);
    let not_found = || Error::UnknownModel { name: "bert".into(), known: vec!["minilm".into()] }.into();
    let mut refusals: Vec<(&'static str, Rejection)> = vec![(
        "The fault is the server's; its log says more.",
        made(StatusCode::INTERNAL_SERVER_ERROR, "the request failed"),
    )];
    if !is_open {
        refusals.extend([
            ("No key that is known here.", made(StatusCode::UNAUTHORIZED, WHERE_KEYS_GO)),
            (
                "It did not come through the front door, where there is one.",
                made(
                    StatusCode::FORBIDDEN,
                    "expected a request that came through the front door; ask at its address",
                ),
            ),
            (
                "A fleet, or who may ask, cannot be looked up at the moment.",
                Error::unavailable("the fleet of `minilm` cannot be reached").into(),
            ),
        ]);
    }
    if path.contains('{') {
        refusals.push((
            "A part of the path that cannot be used.",
            Error::malformed("expected UTF-8 in the path, but found other bytes").into(),
        ));
    }
    if method == Method::Post {
        refusals.push(("More requests at once than the limit.", Error::Overloaded { limit: 512 }.into()));
    }
    if method == Method::Post && path != "/v2/repository/index" {
        refusals.extend([
            (
                "The body is not JSON, or is cut short.",
                Error::malformed("the body is not JSON: expected value at line 1 column 1").into(),
            ),
            ("No model of that name is served.", not_found()),
            (
                "More texts, tokens or bytes than a limit.",
                Error::too_large("expected 1 to 1024 `inputs`, but found 2000").into(),
            ),
            (
                "A value that cannot be used.",
                Error::invalid("expected a text in `inputs[1]`, but found an empty one").into(),
            ),
            ("The model failed.", Error::inference("the model failed to run").into()),
            ("No answer in time.", Error::DeadlineExceeded { after: Duration::from_secs(30) }.into()),
        ]);
        if Dialect::of(path) != Dialect::KServe {
            refusals.push((
                "The body is of another content type.",
                made(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "expected the content type `application/json`, but found `text/plain`",
                ),
            ));
        }
    } else if path.contains("{model}") {
        refusals.push(("No model of that name is served.", not_found()));
    }
    if matches!(path, "/metrics" | "/docs" | "/openapi.json") {
        refusals.push(("This server has none.", made(StatusCode::NOT_FOUND, &format!("no route `{path}`"))));
    }
    let dialect = Dialect::of(path);
    refusals.into_iter().map(|(why, rejection)| (dialect.status(rejection.status), why, rejection)).collect()
}

fn refusal(dialect: Dialect, why: &str, rejection: &Rejection) -> Response {
    let response = ResponseBuilder::new().description(why);
    let response = match dialect.body(rejection) {
        None => response,
        Some((shape, example)) => {
            let content =
                ContentBuilder::new().schema(Some(Ref::from_schema_name(shape))).example(Some(example));
            response.content("application/json", content.build())
        }
    };
    let response = match rejection.status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            response.header("retry-after", header("Seconds after which to come again."))
        }
        StatusCode::UNAUTHORIZED => response.header("www-authenticate", header("`Bearer`.")),
        _ => response,
    };
    response.build()
}

/// The headers of an answer that say what was done.
fn told(path: &str, method: Method) -> &'static [(&'static str, &'static str)] {
    const RAN: (&str, &str) =
        ("x-backend", "Where the model ran: `onnx` in the server, `triton` on a fleet.");
    const ALL: [(&str, &str); 10] = [
        RAN,
        ("x-truncated", "The places of the texts that were cut, counted from 0; not there when none was."),
        ("x-compute-type", "`cpu`."),
        ("x-compute-characters", "The characters of all texts."),
        ("x-compute-tokens", "The tokens that went into the model."),
        ("x-tokenization-time", "Milliseconds spent on tokenising."),
        ("x-inference-time", "Milliseconds in the model, waiting for it included."),
        ("x-compute-time", "The two together."),
        ("x-total-time", "Milliseconds from the request's headers to its answer."),
        ("server-timing", "The same times with parts of milliseconds."),
    ];
    let runs = method == Method::Post && !matches!(path, "/tokenize" | "/decode" | "/v2/repository/index");
    match Dialect::of(path) {
        Dialect::Tei | Dialect::Hub if runs => &ALL,
        _ if runs => &ALL[..1],
        _ => &[],
    }
}

fn header(text: &str) -> Header {
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .description(Some(text))
        .build()
}
