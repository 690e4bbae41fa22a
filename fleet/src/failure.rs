//! Failed attempts: their kinds, retries, and resulting errors.

use std::{fmt, net::IpAddr};

use kivu_base::Error;

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection could be made.
    Unreachable,
    /// The connection ended before the response was complete.
    ConnectionLost,
    /// No response arrived in time.
    Timeout,
    /// The server does not accept the request now: it is starting or stopping, or its queue is full.
    NotReady,
    /// The server does not have the model, or not that version.
    Missing,
    /// The server rejects the request.
    Refused,
    /// The model ran and failed.
    ModelError,
    /// The response cannot be decoded.
    InvalidResponse,
}

use FailureKind::{
    ConnectionLost, InvalidResponse, Missing, ModelError, NotReady, Refused, Timeout, Unreachable,
};

impl FailureKind {
    /// Metrics label, and the error message's verb.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Unreachable => ("unreachable", "cannot be reached for"),
            ConnectionLost => ("connection_lost", "closed the connection while running"),
            Timeout => ("timeout", "did not respond in time for"),
            NotReady => ("not_ready", "is not ready for"),
            Missing => ("missing", "does not have"),
            Refused => ("refused", "refused a request to"),
            ModelError => ("model_error", "failed to run"),
            InvalidResponse => ("invalid_response", "sent an invalid response for"),
        }
    }

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        self.texts().0
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(self) -> bool {
        self == NotReady || self.is_unhealthy()
    }

    /// Whether the request may succeed on another server.
    pub fn may_succeed_elsewhere(self) -> bool {
        self.is_transient() || self == Missing
    }

    /// Whether the failure is a sign of an unhealthy server, rather than of a bad request or a full queue.
    pub fn is_unhealthy(self) -> bool {
        matches!(
            self,
            Unreachable | ConnectionLost | Timeout | InvalidResponse
        )
    }

    /// Whether the server may have replaced the model since its signature was read.
    pub fn suggests_stale_signature(self) -> bool {
        matches!(self, Missing | Refused | InvalidResponse)
    }
}

/// Fragments from Triton's messages about requests that do not fit a model.
const REFUSALS: [&str; 7] = [
    "unexpected shape for input",
    "unexpected inference input",
    "unexpected inference output",
    "inference request batch-size must be",
    "inputs but model",
    "data-type for input",
    "byte size",
];

pub type Attempt<T> = Result<T, AttemptFailure>;

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct AttemptFailure {
    pub kind: FailureKind,
    /// Details that may be shown to clients.
    details: Option<String>,
}

impl From<FailureKind> for AttemptFailure {
    fn from(kind: FailureKind) -> Self {
        Self {
            kind,
            details: None,
        }
    }
}

impl AttemptFailure {
    /// A failure with the server's message.
    ///
    /// The message may be more specific than the status that `kind` was derived from. It is dropped if a model's code
    /// may have written it, since it may quote the text.
    pub fn reported(kind: FailureKind, message: &str) -> Self {
        let lower = message.to_ascii_lowercase();
        let mentions = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        let kind = if mentions(&[
            "unknown model",
            "not at ready state",
            "no available versions",
            "version not ready",
        ]) {
            Missing
        } else if mentions(&[
            "timeout expired",
            "maximum queue size",
            "server is stopping",
            "not ready",
        ]) {
            NotReady
        } else {
            kind
        };
        let is_from_triton = match kind {
            NotReady | Missing => true,
            Refused => mentions(&REFUSALS),
            _ => false,
        };
        let details = is_from_triton
            .then(|| sanitized(message))
            .filter(|details| !details.is_empty());
        Self { kind, details }
    }

    /// A response that cannot be decoded; `details` say why.
    pub fn invalid_response(details: impl Into<String>) -> Self {
        Self {
            kind: InvalidResponse,
            details: Some(details.into()),
        }
    }

    /// The error for a request to `model` after the last of `attempts`.
    pub fn into_error(self, model: &str, attempts: usize) -> Error {
        let attempts = if attempts == 1 {
            String::new()
        } else {
            format!(" ({attempts} tries)")
        };
        let details = self
            .details
            .map(|details| format!(": {details}"))
            .unwrap_or_default();
        let message = format!(
            "the fleet {} `{model}`{attempts}{details}",
            self.kind.texts().1
        );
        match self.kind {
            Refused | ModelError | InvalidResponse => Error::inference(message),
            _ => Error::unavailable(message),
        }
    }
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        self.details
            .iter()
            .try_for_each(|details| write!(f, ": {details}"))
    }
}

/// First line of a server's message, without addresses, paths and anything that looks like a secret.
fn sanitized(message: &str) -> String {
    const MAX_CHARS: usize = 240;
    let message = message.trim_start_matches("[request id: <id_unknown>] ");
    let words = message
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let line = words
        .map(|word| if is_sensitive(word) { "…" } else { word })
        .collect::<Vec<_>>()
        .join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Whether a word may be an address, a path or a secret.
fn is_sensitive(word: &str) -> bool {
    let bare =
        word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '/' | ':' | '[' | ']'));
    let bare = bare.trim_matches([':', '[', ']', '\'']);
    let (host, port) = bare.rsplit_once(':').unwrap_or((bare, ""));
    let has_port =
        !host.is_empty() && !port.is_empty() && port.chars().all(|digit| digit.is_ascii_digit());
    let is_ip = |text: &str| text.parse::<IpAddr>().is_ok();
    let lower = bare.to_ascii_lowercase();
    let names_secret = [
        "bearer", "password", "passwd", "secret", "token=", "key=", "akia",
    ]
    .iter()
    .any(|part| lower.contains(part));
    // Long runs of letters and digits are keys more often than words.
    let is_key = bare.len() >= 32
        && bare
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '=' | '-'));
    bare.contains("://")
        || bare.matches('/').count() > 1
        || has_port
        || names_secret
        || is_key
        || is_ip(host.trim_matches(['[', ']']))
        || is_ip(bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_paths_and_secrets_are_removed_from_messages() {
        let message = sanitized(
            "[request id: <id_unknown>] failed to connect to all addresses; ipv4:10.0.3.7:8001: refused, \
             see http://admin:pw@triton.internal:8000/v2 or /opt/models/zst/1 at fe80::1 Bearer \
             eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9\nTraceback",
        );
        insta::assert_snapshot!(message, @"failed to connect to all addresses; … refused, see … or … at … … …");
        let kept =
            "unexpected shape for input 'input__0' for model 'zst'. Expected [1,256], got [1,5]";
        assert_eq!(sanitized(kept), kept);
        assert_eq!(sanitized(&"word ".repeat(100)).chars().count(), 241);
    }

    #[test]
    fn messages_from_model_code_are_dropped() {
        let failure =
            AttemptFailure::reported(ModelError, "ValueError: cannot read 'my secret diary'");
        insta::assert_snapshot!(failure.into_error("m", 1), @"the fleet failed to run `m`");
        let failure = AttemptFailure::reported(NotReady, "Exceeds maximum queue size");
        insta::assert_snapshot!(failure.into_error("m", 3), @"the fleet is not ready for `m` (3 tries): Exceeds maximum queue size");
    }
}
