//! Connections to one address: TCP, TLS, and the pool of connections that stay open between requests.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use http_body::Body;
pub use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{RootCertStore, pki_types::ServerName},
};
use tower_service::Service;

use super::wire::server_url::{Protocol, ServerUrl};
use kivu_base::{
    Error, Result,
    certificates::{client_tls, trusted_roots},
};

/// Servers in the same cloud accept connections within milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle connections are closed after this time: load balancers drop theirs silently after 350 s. Keep-alive pings
/// do not help: a frozen function cannot send any, and Triton closes idle connections that send them.
const MAX_IDLE: Duration = Duration::from_secs(240);
/// HTTP/2 flow control window per response, in bytes: more than most responses have.
const STREAM_WINDOW: u32 = 8 * 1024 * 1024;
/// HTTP/2 flow control window per connection, in bytes.
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;

/// Settings shared by a fleet's servers.
#[derive(Clone, Default)]
pub struct FleetSettings {
    /// Model name on the servers.
    pub model: String,
    /// Model version; the servers' default if unset.
    pub version: Option<String>,
    /// Trusted root certificates; required for URLs with TLS.
    pub roots: Option<Arc<RootCertStore>>,
    /// `authorization` header for every request.
    pub authorization: Option<String>,
}

/// Reads trusted root certificates from a PEM file, or from the system's store if there is no `path`.
pub fn load_roots(path: Option<&Path>) -> Result<Arc<RootCertStore>> {
    let roots = trusted_roots(path, "fleet.ca")?;
    if roots.is_empty() {
        return Err(
            Error::config("expected trusted certificates, but found none")
                .with_hint("set `fleet.ca`"),
        );
    }
    Ok(Arc::new(roots))
}

type Tls = (TlsConnector, ServerName<'static>);

/// A client with a connection pool for the server `url` at `socket`. It connects with the first request.
pub fn client<B>(
    url: &ServerUrl,
    socket: SocketAddr,
    settings: &FleetSettings,
) -> Result<Client<Connector, B>>
where
    B: Body + Send,
    B::Data: Send,
{
    let roots = settings.roots.as_ref().filter(|_| url.tls);
    let tls = roots.map(|roots| tls(url, Arc::clone(roots))).transpose()?;
    Ok(Client::builder(TokioExecutor::new())
        .pool_idle_timeout(MAX_IDLE)
        .pool_timer(TokioTimer::new())
        .http2_only(url.protocol == Protocol::Grpc)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(Connector { socket, tls }))
}

fn tls(url: &ServerUrl, roots: Arc<RootCertStore>) -> Result<Tls> {
    let name = ServerName::try_from(url.host.clone()).map_err(|_| {
        Error::config("expected a host that a certificate can name in `fleet.urls`")
    })?;
    let mut config = client_tls(roots)?;
    config.alpn_protocols = match url.protocol {
        Protocol::Http => vec![b"http/1.1".to_vec()],
        Protocol::Grpc => vec![b"h2".to_vec()],
    };
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// A TCP connection, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection for Box<dyn Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Opens connections to one address, whichever host a request names.
#[derive(Clone)]
pub struct Connector {
    socket: SocketAddr,
    tls: Option<Tls>,
}

impl Connector {
    async fn connect(self) -> io::Result<TokioIo<Box<dyn Stream>>> {
        let stream = TcpStream::connect(self.socket).await?;
        // A request is a single write, so Nagle's algorithm would only delay it.
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
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connection = timeout(CONNECT_TIMEOUT, self.clone().connect());
        Box::pin(async {
            connection
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        })
    }
}
