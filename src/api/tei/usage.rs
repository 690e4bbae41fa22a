//! What was done to the texts of a request, in the headers of its answer.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use axum::{
    Json,
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::{
    api::name_backend,
    pipeline::{Usage, embedding::Input},
};

/// The characters of texts, for their headers; token ids have none.
pub(super) fn characters(inputs: &[Input]) -> usize {
    inputs
        .iter()
        .map(|input| match input {
            Input::Text(text) => text.chars().count(),
            Input::Ids(_) => 0,
        })
        .sum()
}

/// An answer with what was done to the texts in TEI's headers and our `x-truncated`.
pub(in crate::api) fn with_usage<B: Serialize>(
    body: &B,
    usage: &Usage,
    characters: usize,
    started: Instant,
) -> Response {
    let mut response = Json(body).into_response();
    let Usage { tokens, generated: _, truncated, tokenization, inference, location } = usage;
    let total = started.elapsed();
    let numbers: [(&'static str, u128); 6] = [
        ("x-compute-characters", characters as u128),
        ("x-compute-tokens", *tokens as u128),
        ("x-compute-time", (*tokenization + *inference).as_millis()),
        ("x-total-time", total.as_millis()),
        ("x-tokenization-time", tokenization.as_millis()),
        ("x-inference-time", inference.as_millis()),
    ];
    let headers = response.headers_mut();
    headers.insert("x-compute-type", HeaderValue::from_static("cpu"));
    name_stages(headers, usage, total);
    for (name, number) in numbers {
        if let Ok(value) = HeaderValue::from_str(&number.to_string()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    name_truncated(headers, truncated);
    name_backend(&mut response, *location);
    response
}

/// Says how long the stages took in the words of HTTP, which browsers show and which know parts of milliseconds.
fn name_stages(headers: &mut HeaderMap, usage: &Usage, total: Duration) {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let (tokenization, inference) = (ms(usage.tokenization), ms(usage.inference));
    let stages = format!(
        "tokenization;dur={tokenization:.3}, inference;dur={inference:.3}, total;dur={:.3}",
        ms(total)
    );
    if let Ok(value) = HeaderValue::from_str(&stages) {
        headers.insert("server-timing", value);
    }
}

/// Says which texts were shortened, by their places.
fn name_truncated(headers: &mut HeaderMap, truncated: &[usize]) {
    /// API Gateway bounds the headers of an answer; beyond this many places only their number is told.
    const MOST_PLACES: usize = 256;
    if truncated.is_empty() {
        return;
    }
    let mut places = String::new();
    for place in truncated.iter().take(MOST_PLACES) {
        let separator = if places.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(places, "{separator}{place}");
    }
    if truncated.len() > MOST_PLACES {
        let _ = write!(places, ", {} in all", truncated.len());
    }
    if let Ok(value) = HeaderValue::from_bytes(places.as_bytes()) {
        headers.insert("x-truncated", value);
    }
}
