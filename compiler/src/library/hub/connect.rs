//! Connections to the hub: TCP and TLS, directly or through the proxy in `HTTPS_PROXY`.

use std::{
    error::Error as StdError,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Uri;
use http_body_util::Empty;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{
            Client,
            connect::{HttpConnector, proxy::Tunnel},
        },
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tower_service::Service;

use kivu::{Error, Result};

pub use hyper_util::client::legacy::Error as ClientError;

pub type HttpClient = Client<HttpsConnector<ProxyConnector>, Empty<Bytes>>;

/// Creates a client that trusts the system's certificates, or the ones in `SSL_CERT_FILE`.
pub fn client() -> Result<HttpClient> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    direct.set_nodelay(true);
    let connector = ProxyConnector {
        direct,
        proxies: Arc::new(Matcher::from_env()),
    };
    let tls = HttpsConnectorBuilder::new().with_provider_and_native_roots(ring::default_provider());
    let tls = tls.map_err(|error| {
        Error::io("cannot read trusted certificates")(error).with_hint("set SSL_CERT_FILE")
    })?;
    let https = tls.https_or_http().enable_http1().wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(https))
}

/// Opens TCP connections; for HTTPS through a proxy, if the environment names one for the host.
#[derive(Clone, Debug)]
pub struct ProxyConnector {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

type ConnectError = Box<dyn StdError + Send + Sync>;

impl Service<Uri> for ProxyConnector {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let is_https = target.scheme_str() == Some("https");
        match self.proxies.intercept(&target).filter(|_| is_https) {
            None => {
                let connecting = self.direct.call(target);
                Box::pin(async { connecting.await.map_err(Into::into) })
            }
            // The connection to a proxy has no TLS: a password would be sent in plain text.
            Some(proxy) if proxy.uri().scheme_str() != Some("http") => {
                let scheme = proxy.uri().scheme_str().unwrap_or_default();
                let error = format!(
                    "the proxy's scheme `{scheme}` in HTTPS_PROXY, of which only `http` is supported"
                );
                Box::pin(async { Err(error.into()) })
            }
            Some(proxy) => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), self.direct.clone());
                if let Some(authorization) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(authorization.clone());
                }
                let connecting = tunnel.call(target);
                Box::pin(async { connecting.await.map_err(Into::into) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_password_is_sent_to_a_proxy_that_expects_tls() {
        for scheme in ["https", "socks5"] {
            let proxy = format!("{scheme}://user:password@127.0.0.1:1");
            let mut connector = ProxyConnector {
                direct: HttpConnector::new(),
                proxies: Arc::new(Matcher::builder().https(proxy).build()),
            };
            let error = connector
                .call(Uri::from_static("https://hub.invalid"))
                .await
                .unwrap_err();
            let expected = format!(
                "the proxy's scheme `{scheme}` in HTTPS_PROXY, of which only `http` is supported"
            );
            assert_eq!(error.to_string(), expected);
        }
    }
}
