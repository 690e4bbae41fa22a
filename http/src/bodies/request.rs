//! Reading requests: bodies within the limit, as JSON, with errors that name the field.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE, request::Parts},
};
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use super::context::Context;
use super::{
    body::{self, ReadBody},
    inputs::one_value,
    rejection::Rejection,
};
use crate::{auth, fields, service::app::App};
pub use kivu::json::{from_known, from_value};
use kivu::{
    Error,
    json::{self, Budget, Tree},
};

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced, since ids are logged.
const MAX_REQUEST_ID_CHARS: usize = 128;

/// The id that the client gave, or a new one, which is added to the headers.
pub fn request_id(headers: &mut HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|id| {
        (1..=MAX_REQUEST_ID_CHARS).contains(&id.len())
            && id
                .to_str()
                .is_ok_and(|id| id.chars().all(|c| c.is_ascii_graphic()))
    });
    let id = given
        .cloned()
        .or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
    let id = id.unwrap_or_else(|| HeaderValue::from_static("unknown"));
    headers.insert(REQUEST_ID, id.clone());
    id
}

/// Path parameters.
pub struct InPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let Path(parameters) = Path::<T>::from_request_parts(parts, state)
            .await
            .map_err(|_| Error::malformed("expected UTF-8 in the path, but found other bytes"))?;
        Ok(Self(parameters))
    }
}

/// A name in the path, such as `ORG/NAME`: its slash may be the path's own, since clients, and API Gateway, do not encode it.
pub struct NameInPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for NameInPath {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let InPath(segments) =
            InPath::<Vec<(String, String)>>::from_request_parts(parts, state).await?;
        let segments: Vec<_> = segments.into_iter().map(|(_, segment)| segment).collect();
        Ok(Self(segments.join("/")))
    }
}

/// A request's JSON body.
pub trait RequestBody: DeserializeOwned + Send + 'static {
    /// The set of its fields in `fields.json`, if they do not depend on the model.
    const FIELDS: &str;
}

impl RequestBody for Tree {
    const FIELDS: &str = fields::ANY;
}

/// When a body's values are used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Once,
    /// Piece by piece while the request runs.
    Piecewise,
}

/// A type for requests with JSON bodies, whose content type may be one of others.
macro_rules! json_request {
    ($(#[$doc:meta])* $name:ident, $others:expr, $use:expr) => {
        $(#[$doc])*
        pub struct $name<T>(pub Context, pub T);

        impl<T: RequestBody> FromRequest<Arc<App>> for $name<T> {
            type Rejection = Rejection;

            async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Rejection> {
                let request = require_json_or(&$others, request)?;
                let (context, body) = read_json(app, request, $use).await?;
                Ok(Self(context, body))
            }
        }
    };
}

json_request! {
    /// A request with a JSON body, and the context in which it is handled.
    ///
    /// The request is rejected if
    /// - its content type is not JSON (415),
    /// - its body is longer than the limit (413) or ends too early (400),
    /// - the body is not JSON (400), or JSON with another shape (422).
    JsonRequest, [], Use::Once
}
json_request! {
    /// A [`JsonRequest`] whose body is used piece by piece while the request runs.
    PiecewiseRequest, [], Use::Piecewise
}
json_request! {
    /// A [`JsonRequest`] whose content type may be missing or `application/octet-stream`, the default of AWS SDKs for
    /// bodies that the client has written.
    UntypedRequest, ["none", "application/octet-stream"], Use::Once
}
json_request! {
    /// A [`JsonRequest`] for Ollama's routes, whose clients send no content type, text or curl's form type with their JSON.
    OllamaCall,
    ["none", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream"],
    Use::Once
}

/// Requires JSON's content type, or one of others, which pages of other sites may send without asking the server: from
/// them, only JSON's is accepted.
fn require_json_or(others: &[&str], request: Request) -> Result<Request, Rejection> {
    let (parts, body) = request.into_parts();
    let found = essence(&parts.headers);
    let is_other = others.iter().any(|other| found.eq_ignore_ascii_case(other));
    if !is_other || auth::may_be_of_other_page(&parts) {
        require_json(&parts.headers)?;
    }
    Ok(Request::from_parts(parts, body))
}

/// Reads a JSON body. Its values take more memory than its text: with [`Use::Once`], this memory no longer counts once the
/// body is read.
async fn read_json<T: RequestBody>(
    app: &Arc<App>,
    request: Request,
    values: Use,
) -> Result<(Context, T), Rejection> {
    let ReadBody { context, bytes, .. } = body::read(app, request).await?;
    let (size, max_texts) = (bytes.capacity(), app.limits.texts);
    let memory = Arc::clone(&context.memory);
    let work = move || {
        let held = Arc::clone(&memory);
        let hold = move |bytes| held.resize(size.saturating_add(bytes));
        let budget = Budget::new(bytes.len(), max_texts).held_by(hold);
        let body = parse(&bytes, budget)?;
        drop(bytes);
        if values == Use::Once {
            memory.resize(size)?;
        }
        Ok(body)
    };
    let body = context.deadline.run_sized(size, work).await?;
    Ok((context, body))
}

/// A request whose body is a JSON object or a form, and the context in which it is answered. Form fields that occur
/// several times are lists.
///
/// The body is a value tree, because its type, of the two that `/translate` takes, depends on a field that may be its
/// last one.
pub struct FormOrJson(pub Context, pub Value);

impl FromRequest<Arc<App>> for FormOrJson {
    type Rejection = Rejection;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Rejection> {
        const FORM: &str = "application/x-www-form-urlencoded";
        let request = require_json_or(&[FORM], request)?;
        if !essence(request.headers()).eq_ignore_ascii_case(FORM) {
            let JsonRequest(context, Tree(body)) = JsonRequest::from_request(request, app).await?;
            return Ok(Self(context, body));
        }
        let ReadBody { context, bytes, .. } = body::read(app, request).await?;
        let (size, max_texts) = (bytes.len(), app.limits.texts);
        let form = move || form(&bytes, max_texts);
        let form = context.deadline.run_sized(size, form).await?;
        Ok(Self(context, form))
    }
}

/// Form fields, as an object.
fn form(bytes: &[u8], max_texts: usize) -> Result<Value, Error> {
    /// Fields other than texts.
    const MAX_OTHERS: usize = 64;
    let (found, max) = (
        form_urlencoded::parse(bytes).count(),
        max_texts.saturating_add(MAX_OTHERS),
    );
    if found > max {
        return Err(Error::too_large(format!(
            "expected a form of at most {max} fields, but found {found}"
        ))
        .with_hint("send fewer texts at once"));
    }
    if percent_decode(bytes).decode_utf8().is_err() {
        return Err(Error::malformed(
            "expected UTF-8 in the form, but found other bytes",
        ));
    }
    let mut fields: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(bytes) {
        fields
            .entry(name.into_owned())
            .or_default()
            .push(value.into_owned());
    }
    let value = |mut values: Vec<String>| match values.len() {
        1 => Value::from(values.remove(0)),
        _ => Value::from(values),
    };
    Ok(Value::Object(
        fields
            .into_iter()
            .map(|(name, values)| (name, value(values)))
            .collect(),
    ))
}

/// The content type without its parameters.
fn essence(headers: &HeaderMap) -> &str {
    let found = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("none");
    found.split(';').next().unwrap_or_default().trim()
}

fn require_json(headers: &HeaderMap) -> Result<(), Rejection> {
    let essence = essence(headers);
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let essence = essence.to_ascii_lowercase();
    if essence.starts_with("application/") && essence.ends_with("+json") {
        return Ok(());
    }
    Err(Rejection::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!(
            "expected the content type `application/json`, but found `{}`",
            essence.escape_default()
        ),
    ))
}

/// Parses JSON; errors name the field.
pub fn parse<T: RequestBody>(bytes: &[u8], budget: Budget) -> Result<T, Error> {
    let known = fields::known(T::FIELDS)?;
    json::read_known(bytes, budget, known).map_err(|error| error.explain(bytes))
}

/// The model that a body, or its `parameters`, names.
pub fn model_name(body: &Value) -> Result<Option<String>, Error> {
    let named = |object: Option<&Value>, field: &str| match object.and_then(|it| it.get("model")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => Ok(Some(name.clone())),
        Some(other) => Err(Error::invalid(format!(
            "expected `{field}` to be a string, but found {}",
            json::kind(other)
        ))
        .in_field(field)),
    };
    one_value([
        ("model", named(Some(body), "model")?),
        (
            "parameters.model",
            named(body.get("parameters"), "parameters.model")?,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use axum::body::Body;
    use serde::{Deserialize, Deserializer, de::IgnoredAny};
    use serde_json::json;

    use super::*;
    use crate::service::models::caller_models::AllowedModels;
    use kivu::{config::Limits, task::text_to_text::TextToTextParameters};

    /// The thread that parses a body.
    struct ParsedBy(ThreadId);

    impl RequestBody for ParsedBy {
        const FIELDS: &str = fields::ANY;
    }

    impl RequestBody for bool {
        const FIELDS: &str = fields::ANY;
    }

    impl<'de> Deserialize<'de> for ParsedBy {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(deserializer).map(|_| Self(thread::current().id()))
        }
    }

    #[tokio::test]
    async fn long_bodies_are_parsed_on_other_threads() {
        let app = Arc::new(App::new(Vec::new(), Limits::default()));
        for (words, is_here) in [(1, true), (100_000, false)] {
            let body = serde_json::json!({ "inputs": "word ".repeat(words) }).to_string();
            let request = Request::post("/")
                .header(CONTENT_TYPE, "application/json")
                .extension(AllowedModels::All)
                .body(Body::from(body));
            let JsonRequest(_, ParsedBy(thread)) =
                JsonRequest::from_request(request.unwrap(), &app)
                    .await
                    .unwrap();
            assert_eq!(thread == thread::current().id(), is_here, "{words} words");
        }
    }

    #[test]
    fn forms_have_as_many_fields_as_a_request_has_texts() {
        assert_eq!(
            form(b"q=a&q=b&source=en", 2).unwrap(),
            serde_json::json!({ "q": ["a", "b"], "source": "en" })
        );
        let fields = "&a".repeat(1_000_000);
        let refusal = || form(fields.as_bytes(), 2).unwrap_err().to_string();
        insta::assert_snapshot!(refusal(), @"expected a form of at most 66 fields, but found 1000000; send fewer texts at once");
        assert!(allocation_counter::measure(|| drop(refusal())).bytes_max < 100_000);
    }

    #[test]
    fn forms_of_other_bytes_than_utf_8_are_refused() {
        for bytes in [&b"text=%ff%fe"[..], b"te%ffxt=a", b"text=\xff"] {
            let error = form(bytes, 2).unwrap_err().to_string();
            assert_eq!(error, "expected UTF-8 in the form, but found other bytes");
        }
        assert_eq!(
            form(b"text=ol%C3%A1+mundo", 2).unwrap(),
            json!({ "text": "ol\u{e1} mundo" })
        );
    }

    #[test]
    fn errors_do_not_repeat_texts() {
        let texts = ["a text", "at line 5, \", expected or not", "string \"", ""];
        for text in texts {
            let error = from_value::<bool>(text.into()).unwrap_err().to_string();
            assert_eq!(
                error, "expected the body to be a boolean, but found a string",
                "{text}"
            );
            let error = parse::<bool>(
                serde_json::json!(text).to_string().as_bytes(),
                Budget::new(0, 1),
            )
            .unwrap_err()
            .to_string();
            assert_eq!(
                error, "expected the body to be a boolean, but found a string",
                "{text}"
            );
        }
        #[derive(Debug, serde::Deserialize)]
        enum Closed {
            #[serde(rename = "a")]
            A,
            #[serde(rename = "b")]
            B,
        }
        for text in ["a text", "at line 5, `, expected", "`", ""] {
            let error = from_value::<Closed>(text.into()).unwrap_err().to_string();
            assert_eq!(
                error, "expected the body to be `a` or `b`, but found another value",
                "{text}"
            );
        }
        let error = from_value::<u8>((-1).into()).unwrap_err().to_string();
        assert_eq!(
            error,
            "expected the body to be an integer from 0 to 255, but found `-1`"
        );
    }
    #[test]
    fn errors_in_flattened_fields_name_the_field() {
        #[derive(Debug, Deserialize)]
        struct Outer {
            #[serde(rename = "own")]
            _own: Option<bool>,
            #[serde(flatten, deserialize_with = "json::flattened")]
            _parameters: TextToTextParameters,
            #[serde(rename = "inner")]
            _inner: Option<Box<Self>>,
        }
        impl RequestBody for Outer {
            const FIELDS: &str = fields::ANY;
        }
        let refusals = |body: Value| {
            let read = parse::<Outer>(body.to_string().as_bytes(), Budget::new(0, 1)).unwrap_err();
            assert_eq!(
                from_value::<Outer>(body).unwrap_err().to_string(),
                read.to_string()
            );
            read.to_string()
        };
        let bodies = [
            json!({ "truncate": 7 }),
            json!({ "split": 7, "own": true }),
            json!({ "generate_parameters": { "num_beams": "a text" } }),
            json!({ "inner": { "truncate": "a text" } }),
            json!({ "own": 7 }),
        ];
        insta::assert_snapshot!(bodies.map(refusals).join("\n"), @r"
        expected `truncate` to be a boolean, but found `7`
        expected `split` to be one of `sentences`, `when-long`, `never`, but found `7`
        expected `generate_parameters.num_beams` to be an integer from 0 on, but found a string
        expected `inner.truncate` to be a boolean, but found a string
        expected `own` to be a boolean, but found `7`
        ");
    }
}
