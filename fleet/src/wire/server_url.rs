//! Server URLs: scheme, host, port and path prefix.

use std::{fmt, str::FromStr};

use http::Uri;

use kivu_base::{Error, Result};

/// The protocol that carries KServe v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// URL scheme, protocol, whether it uses TLS, and the default port: Triton's, or 443 for HTTPS.
const SCHEMES: [(&str, Protocol, bool, u16); 4] = [
    ("http", Protocol::Http, false, 8000),
    ("https", Protocol::Http, true, 443),
    ("grpc", Protocol::Grpc, false, 8001),
    ("grpcs", Protocol::Grpc, true, 443),
];

/// URL for one server, or for several behind one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    pub protocol: Protocol,
    pub tls: bool,
    /// A name, which may resolve to several addresses, or an IP address.
    pub host: String,
    pub port: u16,
    /// Path prefix in front of every route, for servers behind a gateway; empty, or with a leading slash.
    prefix: String,
}

impl FromStr for ServerUrl {
    type Err = Error;

    /// Parses a URL. The error does not quote the URL, since it may contain a password.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |found: &str| {
            Error::config(format!(
                "expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found {found}"
            ))
        };
        let uri: Uri = text.parse().map_err(|_| wrong("something else"))?;
        let scheme = uri.scheme_str().ok_or_else(|| wrong("no scheme"))?;
        let known = SCHEMES.iter().find(|(name, ..)| *name == scheme);
        let (_, protocol, tls, port) =
            *known.ok_or_else(|| wrong(&format!("the scheme `{scheme}`")))?;
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a user name or password in it").with_hint("use `fleet.token`"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        if protocol == Protocol::Grpc && !prefix.is_empty() {
            return Err(wrong("a path, which gRPC does not have"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Self {
            protocol,
            tls,
            host,
            port: authority.port_u16().unwrap_or(port),
            prefix,
        })
    }
}

/// Request URL, whose scheme is `http` or `https` for both protocols.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tls,
            host,
            port,
            prefix,
            ..
        } = self;
        let scheme = if *tls { "https" } else { "http" };
        let (open, close) = if host.contains(':') {
            ("[", "]")
        } else {
            ("", "")
        };
        write!(f, "{scheme}://{open}{host}{close}:{port}{prefix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_with_default_ports() {
        for (text, expected) in [
            ("http://triton", "http://triton:8000"),
            (
                "https://models.example/a/b/",
                "https://models.example:443/a/b",
            ),
            ("grpc://10.0.0.1", "http://10.0.0.1:8001"),
            ("grpcs://[::1]:9000", "https://[::1]:9000"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn invalid_urls_are_refused_without_repeating_them() {
        let refused = |text: &str| text.parse::<ServerUrl>().unwrap_err().to_string();
        insta::assert_snapshot!(refused("triton:8000"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found no scheme");
        insta::assert_snapshot!(refused("ftp://triton"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found the scheme `ftp`");
        insta::assert_snapshot!(refused("http://me:word@triton"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found a user name or password in it; use `fleet.token`");
        insta::assert_snapshot!(refused("grpc://triton/a"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found a path, which gRPC does not have");
    }
}
