//! Where a server is: `http`, `https`, `grpc` or `grpcs`, a host and a port.

use std::{fmt, str::FromStr};

use http::Uri;

use crate::error::{Error, Result};

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// KServe v2 over HTTP, tensors as bytes.
    Http,
    /// KServe v2 over gRPC.
    Grpc,
}

/// The place of one server, or of several behind one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// A name, which may stand for several addresses, or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// What stands before every path, for servers behind a gateway; empty or beginning with a slash.
    pub prefix: String,
}

/// The port of Triton's HTTP service.
const HTTP_PORT: u16 = 8000;
/// The port of Triton's gRPC service.
const GRPC_PORT: u16 = 8001;
const HTTPS_PORT: u16 = 443;

impl FromStr for ServerUrl {
    type Err = Error;

    /// Reads a URL. The error does not repeat it, since it may hold a password.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |found: &str| {
            Error::config(format!(
                "expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found {found}"
            ))
        };
        let uri: Uri = text.parse().map_err(|_| wrong("something else"))?;
        let (protocol, tls, port) = match uri.scheme_str() {
            Some("http") => (Protocol::Http, false, HTTP_PORT),
            Some("https") => (Protocol::Http, true, HTTPS_PORT),
            Some("grpc") => (Protocol::Grpc, false, GRPC_PORT),
            Some("grpcs") => (Protocol::Grpc, true, HTTPS_PORT),
            Some(scheme) => return Err(wrong(&format!("the scheme `{scheme}`"))),
            None => return Err(wrong("no scheme")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a name or password in it; `fleet.token` is for that"));
        }
        let prefix = uri.path().trim_end_matches('/');
        if protocol == Protocol::Grpc && !prefix.is_empty() {
            return Err(wrong("a path, which gRPC has none of"));
        }
        Ok(Self {
            protocol,
            tls,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(port),
            prefix: prefix.to_owned(),
        })
    }
}

impl ServerUrl {
    /// Host and port as they stand in a URL.
    pub(super) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.protocol, self.tls) {
            (Protocol::Http, false) => "http",
            (Protocol::Http, true) => "https",
            (Protocol::Grpc, false) => "grpc",
            (Protocol::Grpc, true) => "grpcs",
        };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_can_be_used() {
        for (text, written) in [
            ("http://triton", "http://triton:8000"),
            ("https://models.example/a/b/", "https://models.example:443/a/b"),
            ("grpc://10.0.0.1", "grpc://10.0.0.1:8001"),
            ("grpcs://[::1]:9000", "grpcs://[::1]:9000"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn urls_that_cannot_are_refused_without_repeating_them() {
        let refused = |text: &str| text.parse::<ServerUrl>().unwrap_err().to_string();
        insta::assert_snapshot!(refused("triton:8000"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found no scheme");
        insta::assert_snapshot!(refused("ftp://triton"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found the scheme `ftp`");
        insta::assert_snapshot!(refused("http://me:word@triton"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found a name or password in it; `fleet.token` is for that");
        insta::assert_snapshot!(refused("grpc://triton/a"), @"expected a URL like `http://host:8000` or `grpc://host:8001` in `fleet.urls`, but found a path, which gRPC has none of");
    }
}
