//! Connections of `kivu serve`: none holds its place for longer than a request may take without saying anything or
//! without taking what it is told, and all are finished before the program ends.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};

/// How long nothing is accepted after there was no file descriptor for another connection: some will be closed.
const BREATH: Duration = Duration::from_millis(100);

/// Serves connections until `stop` is done, then finishes what was accepted.
///
/// - A connection that has not said a whole head of a request within `patience`, be it its first or another, is
///   closed: whoever dribbles bytes cannot keep a file descriptor, nor the program from ending.
/// - So is one whose caller does not take within `patience` what it holds for him: that is an answer, or of a long one
///   some hundreds of kilobytes.
/// - Where file descriptors run out, connections that are open go on, and others wait until there is room.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    patience: Duration,
    stop: impl Future<Output = ()>,
) {
    let (stopping, is_stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
            // What is done is forgotten, so that it takes no room.
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, router.clone(), patience, is_stopping.clone()));
            }
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                sleep(BREATH).await;
            }
        }
    }
    // Whoever comes now is refused by the system, at once.
    drop(listener);
    drop(stopping);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Requests end within that time, and so does waiting for one; whoever then still reads his answer is cut off.
    if timeout(patience + patience / 2, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections are cut off");
    }
}

/// One connection, from request to request.
async fn connection(
    stream: TcpStream,
    router: Router,
    patience: Duration,
    mut is_stopping: watch::Receiver<()>,
) {
    // An answer is one write; waiting for more to send with it only costs time.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .serve_connection(TokioIo::new(Patient::new(stream, patience)), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        // What goes wrong on a connection is its caller's affair.
        _ = &mut connection => return,
        _ = is_stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A connection that fails when what is to be sent is not taken in time.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// When that will be, while something waits to be taken.
    until: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, patience: Duration) -> Self {
        Self { stream, patience, until: None }
    }

    /// What came of an attempt to send, or that it is too late for another.
    fn or_too_late<T>(
        &mut self,
        context: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            return sent;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_too_late(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.or_too_late(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Asked for when all of it was written; a little that is written now and then does not count.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.until = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Whether a connection was gone before it was accepted, which says nothing of the next one.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
