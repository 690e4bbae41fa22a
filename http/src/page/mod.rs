//! The pages at `/`, for trying models in a browser, and at `/docs`, which shows the API. Each is a single document that
//! loads nothing else.

use std::sync::{Arc, LazyLock};

use axum::{
    body::Bytes,
    extract::State,
    http::{
        HeaderMap,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
            X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

use super::{bodies::rejection::ApiResult, service::app::App};

const STYLE: &str = include_str!("style.css");

/// An HTML document, with a content security policy that allows its own style and script, and requests to its server.
struct Page {
    /// Shared by all responses, so that unread ones take no memory.
    html: Bytes,
    policy: String,
}

impl Page {
    fn new(html: &str, style: &str, script: &str) -> Self {
        let html = html
            .replace("/*style*/", style)
            .replace("/*script*/", script);
        let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
        let (style, script) = (hash(style), hash(script));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        Self {
            html: html.into(),
            policy,
        }
    }

    fn respond(&self) -> Response {
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_SECURITY_POLICY, self.policy.as_str()),
            (CACHE_CONTROL, "no-cache"),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (VARY, "accept"),
        ];
        (headers, self.html.clone()).into_response()
    }
}

static TRY: LazyLock<Page> =
    LazyLock::new(|| Page::new(include_str!("index.html"), STYLE, include_str!("script.js")));

static DOCS: LazyLock<Page> = LazyLock::new(|| {
    let style = [STYLE, include_str!("docs.css")].concat();
    Page::new(include_str!("docs.html"), &style, include_str!("docs.js"))
});

pub async fn page_or_health(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    /// The answer by which clients recognize Ollama.
    const RUNNING: &str = "Ollama is running";
    match (app.has_page, accepts_html(&headers)) {
        (true, true) => TRY.respond(),
        (true, false) => ([(VARY, "accept")], RUNNING).into_response(),
        (false, _) => RUNNING.into_response(),
    }
}

pub async fn docs(State(app): State<Arc<App>>) -> ApiResult {
    app.require_page("/docs")?;
    Ok(DOCS.respond())
}

/// Whether `accept` lists `text/html`: health checks send `*/*`.
fn accepts_html(headers: &HeaderMap) -> bool {
    let ranges = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    ranges.flat_map(|ranges| ranges.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts
            .next()
            .is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        let weight = parts
            .find_map(|part| part.strip_prefix("q="))
            .and_then(|weight| weight.parse().ok());
        is_html && weight.unwrap_or(1.0) > 0.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size per page, in bytes.
    const MAX_BYTES: usize = 60_000;

    #[test]
    fn the_pages_are_small_and_complete() {
        for page in [&*TRY, &*DOCS] {
            let html = std::str::from_utf8(&page.html).unwrap();
            assert!(html.len() <= MAX_BYTES, "{} bytes", html.len());
            assert!(html.contains(STYLE) && html.contains("\"use strict\""));
            assert!(!html.contains("/*style*/") && !html.contains("/*script*/"));
            for closing in ["</style", "</script"] {
                assert_eq!(
                    html.matches(closing).count(),
                    1,
                    "{closing} may only occur in the HTML"
                );
            }
        }
    }

    #[test]
    fn only_clients_that_accept_html_get_a_page() {
        struct Case(&'static str, bool);
        let cases = [
            Case("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", true),
            Case("application/json, Text/HTML ; q=0.1", true),
            Case("*/*", false),
            Case("text/*", false),
            Case("text/html;q=0", false),
            Case("application/json", false),
        ];
        for Case(accept, expected) in cases {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(accepts_html(&headers), expected, "{accept}");
        }
        assert!(!accepts_html(&HeaderMap::new()));
    }
}
