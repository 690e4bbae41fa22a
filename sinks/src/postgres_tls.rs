//! TLS for PostgreSQL. The server's certificate and its host name are always verified.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{TlsConnector, client, rustls::pki_types::ServerName};

use kivu::{
    Result,
    certificates::{client_tls, trusted_roots},
};

/// The name of PostgreSQL's protocol in a TLS handshake.
const PROTOCOL: &[u8] = b"postgresql";

/// Makes connections with TLS.
#[derive(Clone)]
pub struct Tls(TlsConnector);

impl Tls {
    /// Trusts the certificates in a PEM file, by default the system's.
    pub fn new(roots: Option<&Path>) -> Result<Self> {
        let mut config = client_tls(trusted_roots(roots, "sslrootcert")?)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        // A socket file has no host, and no TLS.
        Ok(Handshake(
            self.0.clone(),
            ServerName::try_from(host.to_owned()).ok(),
        ))
    }
}

/// A connection's handshake with the host.
pub struct Handshake(TlsConnector, Option<ServerName<'static>>);

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Encrypted<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        let Self(connector, name) = self;
        Box::pin(async move {
            let name = name
                .ok_or_else(|| io::Error::other("expected a host that a certificate can name"))?;
            connector.connect(name, stream).await.map(Encrypted)
        })
    }
}

/// An encrypted connection.
pub struct Encrypted<S>(client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
