//! Reading a request: its body within the limit, as JSON, with errors that name the field.

use std::{fmt, marker::PhantomData};

use axum::{
    body::Body,
    extract::{FromRequestParts, Path, Request},
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT},
        request::Parts,
    },
    response::Response,
};
use http_body_util::BodyExt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    App,
    content_encoding::{ContentEncoding, too_long},
    dialect::Dialect,
    rejection::Rejection,
};
use crate::{backend::Deadline, error::Error, json};

/// What a path names, refused in its dialect where it cannot be read.
pub(super) struct InPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Path(named) = Path::<T>::from_request_parts(parts, state).await.map_err(|_| {
            let error = Error::malformed("expected UTF-8 in the path, but found other bytes");
            Dialect::of(parts.uri.path()).respond(error.into())
        })?;
        Ok(Self(named))
    }
}

/// An object, or nothing: by itself serde takes a list of an object's values for the object.
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

/// A request's body as `T`, and the moment by which it wants its answer.
///
/// The request is rejected if
/// - its content type is not JSON (415),
/// - its body is longer than the limit (413) or ends too early (400),
/// - the body is not JSON (400), or JSON of another shape (422).
pub(crate) async fn read<T: DeserializeOwned>(
    app: &App,
    request: Request,
) -> Result<(T, Deadline), Rejection> {
    require_json(request.headers())?;
    let (_, bytes, deadline) = read_bytes(app, request).await?;
    Ok((parse(&bytes)?, deadline))
}

/// A request's headers and body as they are, and the moment by which it wants its answer.
pub(super) async fn read_bytes(app: &App, request: Request) -> Result<(HeaderMap, Vec<u8>, Deadline), Error> {
    let deadline = Deadline::within(app.limits.timeout());
    // A platform that ends the process at a moment of its own says so beforehand.
    let deadline = match request.extensions().get::<Deadline>() {
        Some(platform) => deadline.or_earlier(*platform),
        None => deadline,
    };
    let (parts, body) = request.into_parts();
    let encoding = ContentEncoding::of(&parts.headers)?;
    let limit = app.limits.body_bytes;
    if let Some(announced) = announced(&parts.headers).filter(|bytes| *bytes > limit as u64) {
        return Err(Error::too_large(format!(
            "expected a body of at most {limit} bytes, but found one of {announced} announced"
        )));
    }
    let bytes = deadline.bound(collect(body, limit)).await?;
    // The limit holds for a body as it is sent, and for what comes out of it.
    Ok((parts.headers, encoding.decode(bytes, limit)?, deadline))
}

/// The length of a body that is only sent once the caller is told to go on, as curl does with those of a megabyte.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let waits = headers.get(EXPECT)?.as_bytes().eq_ignore_ascii_case(b"100-continue");
    let length = headers.get(CONTENT_LENGTH).filter(|_| waits)?;
    length.to_str().ok()?.parse().ok()
}

/// The whole body.
///
/// One that is too long is heard out for a while, though not kept: most clients listen only when they have
/// said all, and would see a broken connection instead of the reason.
async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, Error> {
    const PATIENCE: usize = 4;
    let (mut bytes, mut found) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let cut_off = |_| Error::malformed("the body is cut short");
        let Ok(data) = frame.map_err(cut_off)?.into_data() else { continue };
        found = found.saturating_add(data.len());
        if found <= limit {
            bytes.extend_from_slice(&data);
        } else if found > limit.saturating_mul(PATIENCE) {
            break;
        }
    }
    if found > limit {
        return Err(too_long(limit));
    }
    Ok(bytes)
}

fn require_json(headers: &HeaderMap) -> Result<(), Rejection> {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("none");
    let essence = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(Rejection::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!("expected the content type `application/json`, but found `{}`", essence.escape_default()),
    ))
}

/// JSON as `T`, with errors that name the field.
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
        } else if cause.is_eof() {
            Error::malformed(format!("expected JSON, but the body ends too early ({at})"))
        } else {
            Error::malformed(format!("the body is not JSON: {cause}"))
        }
    })?;
    deserializer
        .end()
        .map_err(|cause| Error::malformed(format!("expected one JSON value, but found more: {cause}")))?;
    Ok(parsed)
}

fn wrong_value(path: &str, cause: &serde_json::Error) -> Error {
    let field = if path == "." { "the body".into() } else { format!("`{path}`") };
    Error::invalid(format!("wrong value in {field}: {}", without_what_was_said(&cause.to_string())))
}

/// The cause without " at line … column …", which means nothing where the JSON was written by a program, and
/// without a string that was found, which may be a text.
fn without_what_was_said(cause: &str) -> String {
    const FOUND: &str = "string \"";
    let told = match (cause.find(FOUND), cause.rfind("\", expected ")) {
        (Some(from), Some(to)) if from < to => format!("{}a string{}", &cause[..from], &cause[to + 1..]),
        _ => cause.to_owned(),
    };
    told.split(" at line ").next().unwrap_or_default().to_owned()
}

/// JSON that is read already, as `T`; its errors name the field as those of [`read`] do.
pub(crate) fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        wrong_value(&path, error.inner())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_repeat_what_was_said() {
        let said = ["a text", "at line 5, \", expected or not", "string \"", ""];
        for text in said {
            let error = from_value::<bool>(text.into()).unwrap_err().to_string();
            assert_eq!(
                error, "wrong value in the body: invalid type: a string, expected a boolean",
                "{text}"
            );
            let error =
                parse::<bool>(serde_json::json!(text).to_string().as_bytes()).unwrap_err().to_string();
            assert_eq!(
                error, "wrong value in the body: invalid type: a string, expected a boolean",
                "{text}"
            );
        }
        let error = from_value::<u8>((-1).into()).unwrap_err().to_string();
        assert_eq!(error, "wrong value in the body: invalid value: integer `-1`, expected u8");
    }
}
