//! Reading requests: bodies within the limit, as JSON, with errors that name the field.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT},
        request::Parts,
    },
};
use http_body_util::BodyExt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{
    app::App,
    content_encoding::{ContentEncoding, too_long},
    rejection::Rejection,
};
use crate::{backend::Deadline, error::Error, json};

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced, since ids are logged.
const MAX_REQUEST_ID_CHARS: usize = 128;

/// The id that the client gave, or a new one, which is added to the headers.
pub(super) fn request_id(headers: &mut HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|id| {
        (1..=MAX_REQUEST_ID_CHARS).contains(&id.len())
            && id.to_str().is_ok_and(|id| id.chars().all(|c| c.is_ascii_graphic()))
    });
    let id = given.cloned().or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
    let id = id.unwrap_or_else(|| HeaderValue::from_static("unknown"));
    headers.insert(REQUEST_ID, id.clone());
    id
}

/// Path parameters.
pub(super) struct InPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let Path(parameters) = Path::<T>::from_request_parts(parts, state)
            .await
            .map_err(|_| Error::malformed("expected UTF-8 in the path, but found other bytes"))?;
        Ok(Self(parameters))
    }
}

/// A request with a JSON body, and the context in which it is handled.
///
/// The request is rejected if
/// - its content type is not JSON (415),
/// - its body is longer than the limit (413) or ends too early (400),
/// - the body is not JSON (400), or JSON of another shape (422).
pub(super) struct Call<T>(pub(super) Context, pub(super) T);

/// The state, deadline and start time of a request.
pub(super) struct Context {
    pub(super) app: Arc<App>,
    pub(super) deadline: Deadline,
    /// When the headers of the request had been read.
    pub(super) started: Instant,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Call<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Rejection> {
        let started = Instant::now();
        require_json(request.headers())?;
        let (_, bytes, deadline) = read_bytes(app, request).await?;
        let body = parse(&bytes)?;
        Ok(Self(Context { app: Arc::clone(app), deadline, started }, body))
    }
}

/// A request whose body is an object in JSON or a form, and the context in which it is answered. Fields of a form that
/// occur several times are lists.
pub(super) struct Submitted(pub(super) Context, pub(super) Value);

impl FromRequest<Arc<App>> for Submitted {
    type Rejection = Rejection;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Rejection> {
        if essence(request.headers()) != "application/x-www-form-urlencoded" {
            let Call(context, body) = Call::from_request(request, app).await?;
            return Ok(Self(context, body));
        }
        let started = Instant::now();
        let (_, bytes, deadline) = read_bytes(app, request).await?;
        let mut fields: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(&bytes) {
            fields.entry(name.into_owned()).or_default().push(value.into_owned());
        }
        let value = |mut values: Vec<String>| match values.len() {
            1 => Value::from(values.remove(0)),
            _ => Value::from(values),
        };
        let body = fields.into_iter().map(|(name, values)| (name, value(values))).collect();
        Ok(Self(Context { app: Arc::clone(app), deadline, started }, Value::Object(body)))
    }
}

/// Deserializes an optional object; derived implementations would also accept a list of its values.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    deserializer.deserialize_option(Object(PhantomData))
}

/// The headers, decompressed body and deadline of a request.
pub(super) async fn read_bytes(app: &App, request: Request) -> Result<(HeaderMap, Vec<u8>, Deadline), Error> {
    let deadline = Deadline::within(app.limits.timeout());
    // A platform that ends the process at a fixed time, like Lambda, sets its own deadline.
    let deadline = match request.extensions().get::<Deadline>() {
        Some(platform) => deadline.or_earlier(*platform),
        None => deadline,
    };
    let (parts, body) = request.into_parts();
    let encoding = ContentEncoding::of(&parts.headers)?;
    let limit = app.limits.body_bytes;
    if let Some(announced) = announced(&parts.headers).filter(|bytes| *bytes > limit as u64) {
        return Err(Error::too_large(format!(
            "expected a body of at most {limit} bytes, but found a `content-length` of {announced}"
        )));
    }
    let bytes = deadline.bound(collect(body, limit)).await?;
    // The limit applies to the compressed and to the decompressed body.
    Ok((parts.headers, encoding.decode(bytes, limit)?, deadline))
}

/// The length of a body that the client sends after `100 Continue` only, as curl does above one megabyte.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let is_pending = headers.get(EXPECT)?.as_bytes().eq_ignore_ascii_case(b"100-continue");
    let length = headers.get(CONTENT_LENGTH).filter(|_| is_pending)?;
    length.to_str().ok()?.parse().ok()
}

/// The whole body.
///
/// A body beyond the limit is read on for a while and discarded: most clients read a response only after they have
/// sent their request, and would see a broken connection instead.
async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, Error> {
    /// How much is read, as a multiple of the limit.
    const MAX_DISCARDED: usize = 4;
    let (mut bytes, mut found) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let truncated = |_| Error::malformed("the body is incomplete");
        let Ok(data) = frame.map_err(truncated)?.into_data() else { continue };
        found = found.saturating_add(data.len());
        if found <= limit {
            bytes.extend_from_slice(&data);
        } else if found > limit.saturating_mul(MAX_DISCARDED) {
            break;
        }
    }
    if found > limit {
        return Err(too_long(limit));
    }
    Ok(bytes)
}

/// The content type without its parameters, in lower case.
fn essence(headers: &HeaderMap) -> String {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("none");
    found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn require_json(headers: &HeaderMap) -> Result<(), Rejection> {
    let essence = essence(headers);
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(Rejection::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!("expected the content type `application/json`, but found `{}`", essence.escape_default()),
    ))
}

/// Parses JSON; errors name the field.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    if !json::is_light(bytes) {
        return Err(Error::too_large(format!(
            "expected JSON of texts and numbers, but found too many lists, objects or numbers for {} bytes; send \
             fewer at once",
            bytes.len()
        )));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        let at = format!("line {}, column {}", cause.line(), cause.column());
        if cause.is_data() {
            wrong_value(&path, &cause)
        } else if bytes.trim_ascii().is_empty() {
            Error::malformed("expected JSON, but found an empty body")
        } else if cause.is_eof() {
            Error::malformed(format!("expected JSON, but the body ends too early ({at})"))
        } else {
            Error::malformed(format!("the body is not JSON: {}", json::syntax(&cause)))
        }
    })?;
    deserializer.end().map_err(|cause| {
        let (line, column) = (cause.line(), cause.column());
        Error::malformed(format!("expected one JSON value, but found more at line {line}, column {column}"))
    })?;
    Ok(parsed)
}

/// The error of a value that does not fit its field.
fn wrong_value(path: &str, cause: &serde_json::Error) -> Error {
    let cause = redacted(&cause.to_string());
    let is_body = path == ".";
    let field = if is_body { "the body".to_owned() } else { format!("`{path}`") };
    if let Some(name) = cause.strip_prefix("missing field `") {
        let parent = if is_body { String::new() } else { format!("{path}.") };
        return Error::invalid(format!("expected the field `{parent}{name}, but found none"));
    }
    if let Some((_, known)) =
        cause.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "))
    {
        let known = known.strip_prefix("one of ").unwrap_or(known);
        return Error::invalid(format!("unknown field {field}; known fields: {known}"));
    }
    let prefixes = ["invalid type: ", "invalid value: ", "unknown variant: "];
    let described = prefixes.iter().find_map(|prefix| cause.strip_prefix(prefix)?.split_once(", expected "));
    Error::invalid(match described {
        Some((found, expected)) => {
            format!("expected {field} to be {}, but found {}", in_json(expected), in_json(found))
        }
        None => format!("wrong value in {field}: {cause}"),
    })
}

/// The terms of JSON for those of serde and of Rust.
fn in_json(kind: &str) -> &str {
    match kind {
        "u8" => "an integer from 0 to 255",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer from 0 on",
        "i64" => "an integer",
        "f32" | "f64" => "a number",
        "sequence" | "a sequence" => "a list",
        "map" | "a map" => "an object",
        _ => kind.split_once(' ').filter(|(kind, _)| *kind == "integer").map_or(kind, |(_, number)| number),
    }
}

/// The cause without its line and column, which are useless where a program wrote the JSON, and without the string
/// that was found, which may be a client's text.
fn redacted(cause: &str) -> String {
    let without = |start: &str, end: &str, instead: &str| {
        let (from, to) = (cause.find(start)?, cause.rfind(end)?);
        (from < to).then(|| format!("{}{instead}{}", &cause[..from], &cause[to + 1..]))
    };
    let redacted = without("string \"", "\", expected ", "a string")
        .or_else(|| without("unknown variant `", "`, expected ", "unknown variant: another value"))
        .unwrap_or_else(|| cause.to_owned());
    redacted.split(" at line ").next().unwrap_or_default().to_owned()
}

/// Deserializes parsed JSON; errors name the field.
pub(super) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        wrong_value(&path, error.inner())
    })
}

/// Deserializes a parsed object; derived implementations would also accept a list of its values.
pub(super) fn from_object<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    match value {
        Value::Object(_) => from_value(value),
        _ => Err(Error::invalid("expected an object, but found another value")),
    }
}

/// The model that a body names.
pub(super) fn model_name(body: &Value) -> Option<&str> {
    body.get("model").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_do_not_repeat_texts() {
        let texts = ["a text", "at line 5, \", expected or not", "string \"", ""];
        for text in texts {
            let error = from_value::<bool>(text.into()).unwrap_err().to_string();
            assert_eq!(error, "expected the body to be a boolean, but found a string", "{text}");
            let error =
                parse::<bool>(serde_json::json!(text).to_string().as_bytes()).unwrap_err().to_string();
            assert_eq!(error, "expected the body to be a boolean, but found a string", "{text}");
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
            assert_eq!(error, "expected the body to be `a` or `b`, but found another value", "{text}");
        }
        let error = from_value::<u8>((-1).into()).unwrap_err().to_string();
        assert_eq!(error, "expected the body to be an integer from 0 to 255, but found `-1`");
    }
}
