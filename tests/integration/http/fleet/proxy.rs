//! A faulty proxy between Kivu and a server.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::models::fixtures;

/// The fault that affects the bytes from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mischief {
    None,
    /// Delays each piece.
    Delay(Duration),
    /// Sends a few bytes at a time.
    Drip,
    /// Closes the connection after this many bytes.
    CutAfter(usize),
    /// Changes the byte at this index in each piece.
    Corrupt(usize),
    /// Accepts connections and sends nothing.
    Silence,
    /// Closes connections immediately.
    Refuse,
}

/// A proxy, which stops when it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mischief: Arc<Mutex<Mischief>>,
    connections: Arc<AtomicUsize>,
    heard: Heard,
    accepting: JoinHandle<()>,
}

/// Bytes received from clients.
type Heard = Arc<Mutex<Vec<u8>>>;

impl Proxy {
    pub(crate) async fn start(target: u16, mischief: Mischief) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mischief = Arc::new(Mutex::new(mischief));
        let connections = Arc::new(AtomicUsize::new(0));
        let heard = Heard::default();
        let (current, count, ear) = (
            Arc::clone(&mischief),
            Arc::clone(&connections),
            Arc::clone(&heard),
        );
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(
                    client,
                    target,
                    Arc::clone(&current),
                    Arc::clone(&ear),
                ));
            }
        });
        Self {
            port,
            mischief,
            connections,
            heard,
            accepting,
        }
    }

    /// Bytes received from clients since the last call.
    pub(crate) fn take_heard(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.heard.lock().unwrap())).into_owned()
    }

    /// Sets the fault, also for existing connections.
    pub(crate) fn turn(&self, mischief: Mischief) {
        *self.mischief.lock().unwrap() = mischief;
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut client: TcpStream, target: u16, mischief: Arc<Mutex<Mischief>>, heard: Heard) {
    let current = || *mischief.lock().unwrap();
    if current() == Mischief::Refuse {
        return;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let up = async {
        let mut piece = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut piece).await {
            heard.lock().unwrap().extend_from_slice(&piece[..read]);
            if to_server.write_all(&piece[..read]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let (mut piece, mut sent) = (vec![0; 16 * 1024], 0);
        loop {
            let read = from_server.read(&mut piece).await.unwrap_or(0);
            if read == 0 {
                return;
            }
            let piece = &mut piece[..read];
            let is_sent = match current() {
                Mischief::None => to_client.write_all(piece).await.is_ok(),
                Mischief::Delay(delay) => {
                    sleep(delay).await;
                    to_client.write_all(piece).await.is_ok()
                }
                Mischief::Drip => drip(&mut to_client, piece).await,
                Mischief::CutAfter(most) => {
                    let left = piece.len().min(most.saturating_sub(sent));
                    to_client.write_all(&piece[..left]).await.is_ok() && left == piece.len()
                }
                Mischief::Corrupt(place) => {
                    let place = place.min(piece.len() - 1);
                    piece[place] ^= 0x15;
                    to_client.write_all(piece).await.is_ok()
                }
                Mischief::Silence => true,
                Mischief::Refuse => false,
            };
            sent += read;
            if !is_sent {
                return;
            }
        }
    };
    // The connection ends with either side.
    tokio::select! { () = up => {}, () = down => {} }
}

async fn drip(to: &mut (impl AsyncWriteExt + Unpin), piece: &[u8]) -> bool {
    for (number, bytes) in piece.chunks(24).enumerate() {
        if to.write_all(bytes).await.is_err() {
            return false;
        }
        if number % 10 == 9 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    true
}

/// Terminates TLS in front of a plain-text server, until it is dropped.
pub(crate) struct TlsEnd {
    pub(crate) port: u16,
    accepting: JoinHandle<()>,
}

impl TlsEnd {
    pub(crate) async fn start(target: u16) -> Self {
        let certificates = CertificateDer::pem_file_iter(tls("server.pem")).unwrap();
        let certificates = certificates.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(tls("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut client) = acceptor.accept(client).await else {
                        return;
                    };
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
                        return;
                    };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, accepting }
    }
}

impl Drop for TlsEnd {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A file from the test authority or for the server certificate.
pub(crate) fn tls(file: &str) -> PathBuf {
    fixtures().join("../fleet/tls").join(file)
}
