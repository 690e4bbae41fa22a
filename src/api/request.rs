//! Reading a request: its body within the limit, as JSON, with errors that name the field.

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderMap, StatusCode, header::{CONTENT_LENGTH, CONTENT_TYPE}},
};
use serde::de::DeserializeOwned;

use super::{App, rejection::Rejection};
use crate::{backend::Deadline, error::Error};

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
    let deadline = Deadline::within(app.limits.timeout());
    // A platform that ends the process at a moment of its own says so beforehand.
    let deadline = match request.extensions().get::<Deadline>() {
        Some(platform) => deadline.or_earlier(*platform),
        None => deadline,
    };
    require_json(request.headers())?;
    let limit = app.limits.body_bytes;
    let announced = request.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if let Some(length) = announced.filter(|length| *length > limit) {
        return Err(too_long(limit, &format!("{length}")).into());
    }
    let bytes = deadline.bound(async { collect(request.into_body(), limit).await }).await?;
    Ok((parse(&bytes)?, deadline))
}

async fn collect(body: Body, limit: usize) -> Result<axum::body::Bytes, Error> {
    to_bytes(body, limit).await.map_err(|error| {
        let is_limit = std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("length limit"));
        if is_limit {
            too_long(limit, "more")
        } else {
            Error::malformed("the connection ended before the whole body was there")
        }
    })
}

fn too_long(limit: usize, found: &str) -> Error {
    Error::too_large(format!("expected a body of at most {limit} bytes, but found {found}"))
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

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
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
            Error::malformed(format!("expected JSON, but the body is none: {cause}"))
        }
    })?;
    deserializer
        .end()
        .map_err(|cause| Error::malformed(format!("expected one JSON value, but found more: {cause}")))?;
    Ok(parsed)
}

fn wrong_value(path: &str, cause: &serde_json::Error) -> Error {
    let field = if path == "." { "the body".into() } else { format!("`{path}`") };
    Error::invalid(format!("wrong value in {field}: {}", without_position(cause)))
}

/// The cause without " at line … column …", which means nothing where the JSON was written by a program.
fn without_position(cause: &serde_json::Error) -> String {
    let text = cause.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// JSON that is read already, as `T`; its errors name the field as those of [`read`] do.
pub(crate) fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        wrong_value(&path, error.inner())
    })
}

/// Runs work that takes its time off the threads that serve connections.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::inference("the work was cut short", error)))
}
