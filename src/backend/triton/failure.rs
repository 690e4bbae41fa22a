//! Why a try at a server came to nothing, and whether another may do better.

use std::{fmt, net::IpAddr};

use crate::error::Error;

/// What became of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No connection came about.
    Unreachable,
    /// The connection ended before the answer was there.
    Cut,
    /// No answer came in time.
    Late,
    /// The server is there, but does not take the request now: it starts, stops, or its queue is full.
    NotReady,
    /// The server does not have the model, or not that version.
    Missing,
    /// The server will not take such a request.
    Refused,
    /// The model ran and failed.
    Broken,
    /// The answer makes no sense.
    Garbled,
}

impl Kind {
    /// Its name among what is counted.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Cut => "cut",
            Self::Late => "late",
            Self::NotReady => "not_ready",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Garbled => "garbled",
        }
    }

    /// Whether the same request may fare better a moment later.
    pub(super) fn may_pass(self) -> bool {
        matches!(self, Self::Unreachable | Self::Cut | Self::Late | Self::NotReady | Self::Garbled)
    }

    /// Whether the request may fare better at another server.
    pub(super) fn may_differ_elsewhere(self) -> bool {
        self.may_pass() || self == Self::Missing
    }

    /// Whether it tells of a server that is ill, rather than of a request or a queue.
    pub(super) fn is_illness(self) -> bool {
        matches!(self, Self::Unreachable | Self::Cut | Self::Late | Self::Garbled)
    }

    /// Whether the server may have changed its model since its signature was read.
    pub(super) fn doubts_the_signature(self) -> bool {
        matches!(self, Self::Missing | Self::Refused | Self::Garbled)
    }
}

/// What Triton says of requests that do not fit a model, in its own words.
const REFUSALS: [&str; 7] = [
    "unexpected shape for input",
    "unexpected inference input",
    "unexpected inference output",
    "inference request batch-size must be",
    "inputs but model",
    "data-type for input",
    "byte size",
];

/// A try that came to nothing.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    /// What the server said, fit to be told; nothing where it may quote a text or the server's insides.
    words: Option<String>,
}

impl Failure {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, words: None }
    }

    /// A failure that the server put into words.
    ///
    /// Words that a model's own code may have written are left out: they may quote the text.
    pub(super) fn told(kind: Kind, words: &str) -> Self {
        let is_servers_own = match kind {
            Kind::NotReady | Kind::Missing => true,
            Kind::Refused => REFUSALS.iter().any(|part| words.contains(part)),
            _ => false,
        };
        let words = is_servers_own.then(|| presentable(words)).filter(|words| !words.is_empty());
        Self { kind, words }
    }

    /// An answer that makes no sense, and why.
    pub(super) fn garbled(why: impl Into<String>) -> Self {
        Self { kind: Kind::Garbled, words: Some(why.into()) }
    }

    /// What Triton's words say beyond the status that comes with them.
    pub(super) fn refined(kind: Kind, words: &str) -> Kind {
        let said = words.to_ascii_lowercase();
        let any = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
        if any(&["unknown model", "not at ready state", "no available versions", "version not ready"]) {
            Kind::Missing
        } else if any(&["timeout expired", "maximum queue size", "server is stopping", "not ready"]) {
            Kind::NotReady
        } else {
            kind
        }
    }

    /// The error of a request that was given up after `tries` tries at `model`.
    pub(super) fn into_error(self, model: &str, tries: usize) -> Error {
        let tries = if tries == 1 { String::new() } else { format!(" ({tries} tries)") };
        let words = self.words.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
        let because = |what: &str| format!("the fleet {what} `{model}`{tries}{words}");
        match self.kind {
            Kind::Unreachable => Error::unavailable(because("cannot be reached for")),
            Kind::Cut => Error::unavailable(because("broke off while it ran")),
            Kind::Late => Error::unavailable(because("did not answer in time for")),
            Kind::NotReady => Error::unavailable(because("is not ready for")),
            Kind::Missing => Error::unavailable(because("does not have")),
            Kind::Refused => Error::Inference { message: because("refused a request to"), source: None },
            Kind::Broken => Error::Inference { message: because("failed to run"), source: None },
            Kind::Garbled => {
                Error::Inference { message: because("gave an answer that cannot be read from"), source: None }
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        self.words.iter().try_for_each(|words| write!(f, ": {words}"))
    }
}

/// A server's words on one line, without addresses, paths and what looks like a secret.
fn presentable(words: &str) -> String {
    const LONGEST: usize = 240;
    let words = words.trim_start_matches("[request id: <id_unknown>] ");
    let first_line = words.lines().next().unwrap_or_default();
    let kept = first_line.split_whitespace().map(|word| if is_telltale(word) { "…" } else { word });
    let line = kept.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn is_telltale(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '/' | ':' | '[' | ']'));
    let bare = bare.trim_matches(|c| matches!(c, ':' | '[' | ']' | '\''));
    let host = bare.rsplit_once(':').map_or(bare, |(host, _)| host).trim_matches(['[', ']']);
    let has_port = bare.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.chars().all(|digit| digit.is_ascii_digit())
    });
    let is_path = bare.matches('/').count() > 1;
    let lower = bare.to_ascii_lowercase();
    let is_secret = ["bearer", "password", "passwd", "secret", "token=", "key=", "akia"]
        .iter()
        .any(|part| lower.contains(part))
        // Long runs of letters and digits are keys more often than words.
        || (bare.len() >= 32 && bare.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '=' | '-')));
    bare.contains("://")
        || has_port
        || is_path
        || is_secret
        || host.parse::<IpAddr>().is_ok()
        || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_server_lose_what_is_not_for_everyone() {
        let words = presentable(
            "[request id: <id_unknown>] failed to connect to all addresses; ipv4:10.0.3.7:8001: refused, \
             see http://admin:pw@triton.internal:8000/v2 or /opt/models/zst/1 at fe80::1 Bearer \
             eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9\nTraceback",
        );
        insta::assert_snapshot!(words, @"failed to connect to all addresses; … refused, see … or … at … … …");
        let kept = "unexpected shape for input 'input__0' for model 'zst'. Expected [1,256], got [1,5]";
        assert_eq!(presentable(kept), kept);
        assert_eq!(presentable(&"word ".repeat(100)).chars().count(), 241);
    }

    #[test]
    fn a_models_own_words_are_kept_back() {
        let failure = Failure::told(Kind::Broken, "ValueError: cannot read 'my secret diary'");
        insta::assert_snapshot!(failure.into_error("m", 1), @"the fleet failed to run `m`");
        let failure = Failure::told(Kind::NotReady, "Exceeds maximum queue size");
        insta::assert_snapshot!(failure.into_error("m", 3), @"the fleet is not ready for `m` (3 tries): Exceeds maximum queue size");
    }
}
