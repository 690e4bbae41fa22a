//! Origins whose pages may read responses.

use http::uri::Authority;
use serde::{Deserialize, Deserializer, de::Error};

/// Deserializes origins.
pub fn origins<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let origins = Vec::<String>::deserialize(value)?;
    origins
        .iter()
        .try_for_each(|origin| check(origin))
        .map_err(D::Error::custom)?;
    Ok(origins)
}

/// Checks that a browser may send the origin in this form, since it is compared as a whole.
fn check(found: &str) -> Result<(), String> {
    let wrong = |hint: &str| {
        let found = found.escape_debug();
        Err(format!(
            "expected an origin such as `https://example.com` or `app://obsidian.md`, but found `{found}`; {hint}"
        ))
    };
    if found == "*" {
        return wrong("list the origins: with `*`, every page could use the models");
    }
    let Some((scheme, host)) = found.split_once("://") else {
        return wrong("begin it with its scheme");
    };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.'));
    let Some(authority) = host.parse::<Authority>().ok().filter(|_| is_scheme) else {
        return wrong("leave out what follows the host and the port, also a slash");
    };
    if host.contains(['@', '*', '%']) || found.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return wrong("write it in lower case, without a user or wildcards");
    }
    let port = host
        .strip_prefix(authority.host())
        .and_then(|rest| rest.strip_prefix(':'))
        .map(|port| port.parse().unwrap_or(0));
    match (scheme, port) {
        ("http", Some(80)) | ("https", Some(443)) => {
            wrong("browsers leave out a scheme's default port")
        }
        (_, Some(0_u16)) => wrong("a port is a number from 1 to 65535"),
        _ if authority.host().is_empty() => wrong("name the host"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_the_form_in_which_browsers_send_them() {
        for origin in [
            "https://example.com",
            "http://localhost:3000",
            "http://[::1]:8080",
            "app://obsidian.md",
            "vscode-file://vscode-app",
            "chrome-extension://abcdefghijklmnop",
            "capacitor://localhost",
        ] {
            assert_eq!(check(origin), Ok(()), "{origin}");
        }
        for wrong in [
            "",
            "*",
            "null",
            "example.com",
            "https://",
            "file://",
            "://example.com",
            "https://example.com/",
            "https://example.com/page",
            "https://example.com?x",
            "https://*.example.com",
            "https://user@example.com",
            "https://Example.com",
            "HTTPS://example.com",
            "https://example.com:443",
            "http://example.com:80",
            "https://example.com:",
            "https://example.com:0",
            "https://example.com:70000",
            "https://exämple.com",
            "https://example.com ",
            " https://example.com",
            "https://a.com,https://b.com",
        ] {
            let error = check(wrong).unwrap_err();
            assert!(error.contains(&format!("found `{wrong}`; ")), "{error}");
        }
    }
}
