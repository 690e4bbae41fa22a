//! Response parts that several dialects share: usage headers, predictions and ranks.

use std::time::Duration;

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, IntoResponseParts, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::request::Context;
use kivu::{
    Result,
    backend::{Engine, routing::Location},
    pipeline::{Usage, classification::scores::descending},
};

/// One item for a request with one input, or a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn new(items: Vec<T>, is_single: bool) -> Self {
        match <[T; 1]>::try_from(items) {
            Ok([only]) if is_single => Self::One(only),
            Ok(only) => Self::Many(only.into()),
            Err(items) => Self::Many(items),
        }
    }

    pub fn into_items(self) -> Vec<T> {
        match self {
            Self::One(item) => vec![item],
            Self::Many(items) => items,
        }
    }
}

/// A label's score.
#[derive(Serialize, JsonSchema)]
pub struct Prediction<'a> {
    /// The label's share or probability from 0 to 1; with `raw_scores`, its logit.
    score: f32,
    /// A label of the model or of the request.
    label: &'a str,
}

/// The `top` labels with the highest scores, in descending order.
pub fn predictions<'a>(
    labels: &'a [String],
    scores: &[f32],
    top: Option<usize>,
) -> Vec<Prediction<'a>> {
    let best = descending(scores)
        .into_iter()
        .take(top.unwrap_or(usize::MAX));
    best.map(|label| Prediction {
        score: scores[label],
        label: &labels[label],
    })
    .collect()
}

/// Rejects predictions that are too long for the response, before they are computed.
pub fn check_predictions(
    context: &Context,
    texts: usize,
    labels: &[String],
    top: Option<usize>,
) -> Result<()> {
    /// A prediction without its label, as JSON in a JSON string, with the shortest score.
    const MIN_BYTES: usize = r#"{\"score\":0.0,\"label\":\"\"},"#.len();
    let mut labels: Vec<usize> = labels.iter().map(String::len).collect();
    labels.sort_unstable();
    let labels = labels.iter().take(top.unwrap_or(usize::MAX));
    context.check_response(texts.saturating_mul(labels.map(|label| label + MIN_BYTES).sum()))
}

/// A ranked text's score.
#[derive(Serialize, JsonSchema)]
pub struct Rank<'a> {
    /// The text's position in the request, from 0.
    pub index: usize,
    /// A score from 0 to 1, unless `raw_scores` is true.
    pub score: f32,
    /// The text, if `return_text` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
}

/// Token counts, as OpenAI, Jina and Voyage name them.
#[derive(Serialize, JsonSchema)]
pub struct TokenUsage {
    /// Input tokens, special tokens included.
    pub prompt_tokens: usize,
    /// The same as `prompt_tokens`.
    pub total_tokens: usize,
}

impl TokenUsage {
    pub fn of(usage: &Usage) -> Self {
        Self {
            prompt_tokens: usage.tokens,
            total_tokens: usage.tokens,
        }
    }
}

/// Header that reports where the model ran.
pub const BACKEND: HeaderName = HeaderName::from_static("x-backend");

/// Header that lists truncated texts.
pub const TRUNCATED: &str = "x-truncated";

/// The headers of all responses by models: where the model ran, and which texts were truncated.
pub fn model_headers(usage: &Usage) -> impl IntoResponseParts + use<> {
    let backend = HeaderValue::from_static(match usage.location {
        Location::Local(Engine::Native) => "native",
        Location::Local(Engine::Onnx) => "onnx",
        Location::Remote => "triton",
    });
    ([(BACKEND, backend)], truncated_header(&usage.truncated))
}

/// A model's JSON response.
pub fn by_model<B: Serialize>(body: &B, usage: &Usage) -> Response {
    /// Most responses with one vector need no more.
    const BYTES: usize = 8 << 10;
    let mut bytes = Vec::with_capacity(BYTES);
    if let Err(error) = serde_json::to_writer(&mut bytes, body) {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (model_headers(usage), json, bytes).into_response()
}

/// A model's JSON response with TEI's usage headers and `server-timing`.
pub fn with_usage<B: Serialize>(context: &Context, body: &B, usage: &Usage) -> Response {
    let total = context.started.elapsed();
    let (tokenization, inference) = (usage.tokenization, usage.inference);
    let headers = [
        ("x-compute-type", "cpu".to_owned()),
        (
            "x-compute-characters",
            context.texts.characters().to_string(),
        ),
        ("x-compute-tokens", usage.tokens.to_string()),
        (
            "x-compute-time",
            (tokenization + inference).as_millis().to_string(),
        ),
        ("x-total-time", total.as_millis().to_string()),
        ("x-tokenization-time", tokenization.as_millis().to_string()),
        ("x-inference-time", inference.as_millis().to_string()),
        (
            "server-timing",
            server_timing(tokenization, inference, total),
        ),
    ];
    (headers, by_model(body, usage)).into_response()
}

/// Response stages in HTTP's own format, which browsers display.
fn server_timing(tokenization: Duration, inference: Duration, total: Duration) -> String {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    format!(
        "tokenization;dur={:.3}, inference;dur={:.3}, total;dur={:.3}",
        ms(tokenization),
        ms(inference),
        ms(total)
    )
}

/// Indexes of truncated texts, if there are any.
pub fn truncated_header(truncated: &[usize]) -> Option<[(&'static str, String); 1]> {
    /// API Gateway limits header size: beyond this many indexes, only their number is given.
    const MAX_POSITIONS: usize = 256;
    let listed: Vec<String> = truncated
        .iter()
        .take(MAX_POSITIONS)
        .map(usize::to_string)
        .collect();
    let listed = listed.join(",");
    let listed = match truncated.len() {
        0 => return None,
        1..=MAX_POSITIONS => listed,
        count => format!("{listed}, {count} in all"),
    };
    Some([(TRUNCATED, listed)])
}
