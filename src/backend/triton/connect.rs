//! Connections to one address: TCP, and TLS where the URL asks for it.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};
use tower_service::Service;

use super::address::{Protocol, ServerUrl};
use crate::error::{Error, Result};

/// A server in the same cloud answers within milliseconds; one that is gone may never.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection for Box<dyn Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Whom connections trust.
#[derive(Clone)]
pub(super) struct Trust {
    roots: Arc<RootCertStore>,
}

impl Trust {
    /// The certificates in the PEM file at `path`, or those that the system trusts.
    pub(super) fn load(path: Option<&Path>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        match path {
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Some(path) => {
                let unreadable = |error| Error::Config {
                    message: format!("expected certificates in `fleet.ca`, `{}`", path.display()),
                    source: Some(Box::new(error)),
                };
                for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                    roots.add_parsable_certificates([certificate.map_err(unreadable)?]);
                }
            }
        }
        if roots.is_empty() {
            return Err(Error::config(
                "expected certificates to trust, but found none; name some in `fleet.ca`",
            ));
        }
        Ok(Self { roots: Arc::new(roots) })
    }

    fn connector(&self, protocol: Protocol) -> Result<TlsConnector> {
        let unusable =
            |error| Error::Config { message: "TLS cannot be set up".into(), source: Some(Box::new(error)) };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let mut config = config.with_root_certificates(Arc::clone(&self.roots)).with_no_client_auth();
        config.alpn_protocols = match protocol {
            Protocol::Http => vec![b"http/1.1".to_vec()],
            Protocol::Grpc => vec![b"h2".to_vec()],
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Makes connections to one address, whatever host a request names.
#[derive(Clone)]
pub(super) struct Connector {
    socket: SocketAddr,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    /// To the server of `url` at `socket`; `trust` is needed where the URL asks for TLS.
    pub(super) fn new(url: &ServerUrl, socket: SocketAddr, trust: Option<&Trust>) -> Result<Self> {
        let tls = match trust.filter(|_| url.tls) {
            None => None,
            Some(trust) => {
                let name = ServerName::try_from(url.host.clone()).map_err(|_| {
                    Error::config("expected a host that a certificate can name in `fleet.urls`")
                })?;
                Some((trust.connector(url.protocol)?, name))
            }
        };
        Ok(Self { socket, tls })
    }

    async fn connect(self) -> io::Result<TokioIo<Box<dyn Stream>>> {
        let stream = TcpStream::connect(self.socket).await?;
        // A request is one write; waiting for more to send with it only costs time.
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(match self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name, stream).await?),
        }))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async {
            timeout(CONNECT_TIMEOUT, connector.connect())
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
        })
    }
}
