//! Requests that a web page may have sent to a server on a loopback address.
//!
//! Browsers let every page send simple requests to other sites, such as uploads, and a name that an attacker resolves to
//! 127.0.0.1 makes the server's responses readable to the attacker's page (DNS rebinding). Programs on this machine use an
//! address or a local name, and send no `origin`. Images and scripts of pages have none either: there, browsers say with
//! `sec-fetch-site` (Fetch Metadata) that another site's page is asking.

use std::net::IpAddr;

use axum::http::{
    HeaderMap, HeaderName,
    header::{HOST, ORIGIN},
    request::Parts,
    uri::Authority,
};

/// Fetch Metadata: whether the page is of the same origin, of the same site or of another.
const SITE: &str = "sec-fetch-site";
const OTHER_HOST: &str = "expected an address or `localhost` as the host, but found another name: a server without keys answers \
     this machine only; configure keys, or `auth.mode = \"none\"` to answer under any name";
const OTHER_ORIGIN: &str = "expected no `origin`, or one of this machine, but found another: a server without keys does not answer \
     other sites' pages; add the origin to `cors_origins`, configure keys, or `auth.mode = \"none\"` to answer all pages";

/// Refuses a request under a name that other machines may have, or from a page of another site. `pages` are origins
/// whose pages are answered.
pub fn check(request: &Parts, pages: &[String]) -> Result<(), &'static str> {
    let host = host(request)?;
    // Only names can be resolved to another address later, so every address is one that the client connected to.
    let is_known = |name: String| is_this_machine(&name) || name.parse::<IpAddr>().is_ok();
    if host.is_some_and(|host| !host.is_empty() && !name(host).is_some_and(is_known)) {
        return Err(OTHER_HOST);
    }
    let is = |name, value| {
        request
            .headers
            .get(name)
            .is_some_and(|found| found == value)
    };
    match text(&request.headers, &ORIGIN)? {
        Some(origin) if pages.iter().any(|page| page == origin) => Ok(()),
        Some(origin) if is_other_page(origin, host) => Err(OTHER_ORIGIN),
        // A link to the server's page may be on any site.
        None if is(SITE, "cross-site") && !is("sec-fetch-dest", "document") => Err(OTHER_ORIGIN),
        _ => Ok(()),
    }
}

/// Whether a page of another site may have sent a request. Browsers send the `origin` of such a page with every POST, and
/// since 2023 all of them say with `sec-fetch-site` if it is another site's.
pub fn may_be_of_other_page(request: &Parts) -> bool {
    match (text(&request.headers, &ORIGIN), host(request)) {
        (Ok(Some(origin)), Ok(host)) => is_other_page(origin, host),
        (Ok(None), Ok(_)) => request
            .headers
            .get(SITE)
            .is_some_and(|site| site != "same-origin" && site != "none"),
        _ => true,
    }
}

/// Whether an origin is neither the server's own nor this machine's.
fn is_other_page(origin: &str, host: Option<&str>) -> bool {
    let origin = origin.to_ascii_lowercase();
    match origin.split_once("://") {
        Some(("http" | "https", site)) => {
            let is_own = host.is_some_and(|host| host.eq_ignore_ascii_case(site));
            !is_own && !name(site).is_some_and(|name| is_this_machine(&name))
        }
        // A sandboxed page's origin is `null`; those of extensions have their own schemes.
        found => found.is_none(),
    }
}

/// The name or address, and port, that the client connected to.
fn host(request: &Parts) -> Result<Option<&str>, &'static str> {
    match request.uri.authority() {
        Some(authority) => Ok(Some(authority.as_str())),
        None => text(&request.headers, &HOST),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, &'static str> {
    let value = headers.get(name).map(|value| value.to_str());
    value.transpose().map_err(|_| OTHER_HOST)
}

/// The name or address in `host`, without a port and brackets.
fn name(host: &str) -> Option<String> {
    let authority: Authority = host.parse().ok()?;
    let name = authority
        .host()
        .trim_end_matches('.')
        .trim_start_matches('[')
        .trim_end_matches(']');
    Some(name.to_ascii_lowercase())
}

/// Whether a name or an address can only be this machine's. Resolvers never ask others for `localhost` names (RFC 6761);
/// `.internal` is for all machines in a network.
fn is_this_machine(name: &str) -> bool {
    let is_loopback = name
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    is_loopback || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn only_programs_and_pages_of_this_machine_are_answered() {
        let found = |uri: &str, headers: &[(&str, &str)]| {
            let request = headers
                .iter()
                .fold(Request::post(uri), |request, (name, value)| {
                    request.header(*name, *value)
                });
            let (parts, ()) = request.body(()).unwrap().into_parts();
            check(&parts, &["https://notes.example".to_owned()])
        };
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:80",
            "[::1]:8080",
            "10.0.0.1",
            "kivu.localhost",
        ] {
            assert_eq!(found("/v1/embeddings", &[("host", host)]), Ok(()), "{host}");
            let origin = format!("http://{host}");
            assert_eq!(
                found("/v1/embeddings", &[("host", host), ("origin", &origin)]),
                Ok(()),
                "{host}"
            );
        }
        assert_eq!(found("/v1/embeddings", &[]), Ok(()), "HTTP/1.0");
        assert_eq!(
            found("http://127.0.0.1:8080/v1/embeddings", &[]),
            Ok(()),
            "HTTP/2"
        );
        let extension = [("host", "localhost"), ("origin", "chrome-extension://abc")];
        assert_eq!(found("/v1/embeddings", &extension), Ok(()));
        let page = |site, destination| {
            let own = [
                ("host", "localhost"),
                ("sec-fetch-site", site),
                ("sec-fetch-dest", destination),
            ];
            found("/models", &own)
        };
        for site in ["same-origin", "same-site", "none"] {
            assert_eq!(page(site, "image"), Ok(()), "{site}");
        }
        assert_eq!(page("cross-site", "document"), Ok(()));
        for destination in ["image", "script", "iframe", "empty"] {
            assert_eq!(
                page("cross-site", destination),
                Err(OTHER_ORIGIN),
                "{destination}"
            );
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.internal",
            "host.docker.internal:80",
            "LOCALHOST.INTERNAL.",
            "evil.example@localhost x",
        ] {
            assert_eq!(
                found("/v1/embeddings", &[("host", host)]),
                Err(OTHER_HOST),
                "{host}"
            );
        }
        assert_eq!(
            found(
                "http://evil.example/v1/embeddings",
                &[("host", "localhost")]
            ),
            Err(OTHER_HOST)
        );
        let page = [("host", "localhost"), ("origin", "https://notes.example")];
        assert_eq!(found("/v1/embeddings", &page), Ok(()));
        let rebound = [
            ("host", "evil.example"),
            ("origin", "https://notes.example"),
        ];
        assert_eq!(found("/v1/embeddings", &rebound), Err(OTHER_HOST));
        for origin in [
            "https://evil.example",
            "https://notes.example.evil.example",
            "http://notes.example",
            "null",
            "http://10.0.0.1",
            "http://localhost.evil.example",
            "http://evil.internal",
            "HTTPS://EVIL.EXAMPLE",
            "",
        ] {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            assert_eq!(
                found("/v1/embeddings", &headers),
                Err(OTHER_ORIGIN),
                "{origin}"
            );
        }
    }

    #[test]
    fn browsers_tell_which_requests_other_pages_send() {
        let may = |headers: &[(&str, &str)]| {
            let request = headers
                .iter()
                .fold(Request::post("/api/embed"), |request, (name, value)| {
                    request.header(*name, *value)
                });
            may_be_of_other_page(&request.body(()).unwrap().into_parts().0)
        };
        let host = ("host", "kivu.example:8080");
        for others in [
            [host, ("origin", "https://evil.example")],
            [host, ("origin", "http://kivu.example")],
            [host, ("origin", "null")],
            [host, ("sec-fetch-site", "cross-site")],
            [host, ("sec-fetch-site", "same-site")],
        ] {
            assert!(may(&others), "{others:?}");
        }
        assert!(may(&[
            host,
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-dest", "document")
        ]));
        for own in [
            [host, ("user-agent", "curl/8.5.0")],
            [host, ("origin", "http://kivu.example:8080")],
            [host, ("origin", "http://localhost:3000")],
            [host, ("origin", "vscode-file://vscode-app")],
            [host, ("sec-fetch-site", "same-origin")],
        ] {
            assert!(!may(&own), "{own:?}");
        }
    }
}
