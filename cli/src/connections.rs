//! Connections of `kivu serve`, with timeouts for reading and writing, and a graceful shutdown.

use std::{
    convert::Infallible,
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{Router, extract::Request, http::Version};
use futures::FutureExt;
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::{self, Sleep, sleep},
};

/// The pause after a failed `accept`, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The fraction of the request timeout after which a client that has stopped sending is probed, and a minimum.
const PROBE_FRACTION: u32 = 60;
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// An interim response: a client that waits for the final one skips it, and the system of a client that has closed the
/// connection answers with a reset.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Serves connections until `stop` is ready, then finishes the open ones and returns the output of `stop`.
///
/// - A connection is closed if the head of a request, the first or a later one, takes longer than `timeout`. Slow
///   clients cannot hold a file descriptor, nor delay the shutdown.
/// - It is also closed if the client does not read a buffered response within `timeout`; of a long response, some
///   hundreds of kilobytes are buffered.
/// - A client may shut down its sending side after the request (`shutdown(SHUT_WR)`), and still gets the response. At
///   first this is indistinguishable from a closed connection: see [`while_connected`].
/// - Without free file descriptors, open connections are served and new ones wait.
pub(super) async fn serve<T>(
    listener: TcpListener,
    router: Router,
    timeout: Duration,
    stop: impl Future<Output = T>,
) -> T {
    let (stopping, is_stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    let stopped = loop {
        let accepted = tokio::select! {
            stopped = &mut stop => break stopped,
            accepted = listener.accept() => accepted,
            // Frees finished tasks.
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, router.clone(), timeout, is_stopping.clone()));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    };
    // The system refuses new connections from here on.
    drop(listener);
    drop(stopping);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Requests end within the timeout, and idle connections too; what remains are clients that read slowly.
    if time::timeout(timeout + timeout / 2, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "closing connections whose clients read too slowly");
    }
    stopped
}

async fn connection(
    stream: TcpStream,
    router: Router,
    timeout: Duration,
    mut is_stopping: watch::Receiver<()>,
) {
    // A response is one write; delaying it has no benefit.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let (reader, router) = (Arc::new(reader), TowerToHyperService::new(router));
    let client = Arc::clone(&reader);
    let interval = (timeout / PROBE_FRACTION).max(MIN_PROBE_INTERVAL);
    let service = service_fn(move |request: Request<Incoming>| {
        let version = request.version();
        while_connected(Arc::clone(&client), version, interval, router.call(request))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .half_close(true)
        .serve_connection(TokioIo::new(TimedStream { reader, writer, timeout, deadline: None }), service);
    tokio::pin!(connection);
    tokio::select! {
        // Errors of a connection are the client's.
        _ = &mut connection => return,
        _ = is_stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Waits for a response; fails if the client closes the connection first.
///
/// A client that has stopped sending may have closed the connection or may wait for the response; only sending can
/// distinguish the two. After `interval`, such a client gets an interim response, if it uses HTTP/1.1. Clients of older
/// versions are assumed to wait.
async fn while_connected<T>(
    client: Arc<OwnedReadHalf>,
    version: Version,
    interval: Duration,
    response: impl Future<Output = Result<T, Infallible>>,
) -> io::Result<T> {
    tokio::pin!(response);
    let mut is_probed = version != Version::HTTP_11;
    loop {
        tokio::select! {
            biased;
            Ok(response) = &mut response => return Ok(response),
            () = sleep(interval) => {}
        }
        let stream: &TcpStream = client.as_ref().as_ref();
        let state = stream.ready(Interest::READABLE | Interest::WRITABLE).now_or_never();
        let Some(state) = state.transpose()? else { continue };
        if state.is_write_closed() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.is_read_closed() && !is_probed {
            // No part of the response has been sent yet.
            match stream.try_write(PROBE) {
                Ok(sent) if sent == PROBE.len() => is_probed = true,
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A stream whose writes fail if the client does not read what is sent within a timeout.
struct TimedStream {
    reader: Arc<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    timeout: Duration,
    /// Exists while unsent bytes wait for the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    /// The result of an attempt to write, or a timeout.
    fn or_timeout<T>(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            return sent;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream: &TcpStream = self.reader.as_ref().as_ref();
        loop {
            ready!(stream.poll_read_ready(context))?;
            match stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.writer).poll_write(context, bytes);
        self.or_timeout(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.writer).poll_write_vectored(context, pieces);
        self.or_timeout(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    // Flushed once everything is written: single bytes that a slow client reads do not extend the deadline.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.deadline = None;
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

/// Whether `accept` failed because of the connection, not because of the listener.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::{Notify, mpsc},
    };

    use super::*;

    const REQUEST: &[u8] = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";

    /// A client of a server whose route `/slow` waits for `finish`, and whether each request was completed or dropped.
    async fn slow(finish: Arc<Notify>, timeout: Duration) -> (TcpStream, mpsc::UnboundedReceiver<bool>) {
        struct Outcome(mpsc::UnboundedSender<bool>, bool);
        impl Drop for Outcome {
            fn drop(&mut self) {
                let _ = self.0.send(self.1);
            }
        }
        let (sender, outcomes) = mpsc::unbounded_channel();
        let handler = move || async move {
            let mut outcome = Outcome(sender, false);
            finish.notified().await;
            outcome.1 = true;
            "done"
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let router = Router::new().route("/slow", get(handler));
        tokio::spawn(serve(listener, router, timeout, std::future::pending::<()>()));
        (client, outcomes)
    }

    #[tokio::test]
    async fn a_client_that_stops_sending_gets_its_response() {
        // Without and with a probe.
        for is_probed in [false, true] {
            let finish = Arc::new(Notify::new());
            if !is_probed {
                finish.notify_one();
            }
            let (mut client, mut outcomes) = slow(Arc::clone(&finish), Duration::from_secs(6)).await;
            client.write_all(REQUEST).await.unwrap();
            client.shutdown().await.unwrap();
            if is_probed {
                let mut interim = [0; PROBE.len()];
                client.read_exact(&mut interim).await.unwrap();
                assert_eq!(interim, PROBE);
                finish.notify_one();
            }
            let mut response = String::new();
            client.read_to_string(&mut response).await.unwrap();
            assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("done"), "{response}");
            assert_eq!(outcomes.recv().await, Some(true));
        }
    }

    #[tokio::test]
    async fn requests_of_closed_connections_are_dropped() {
        for is_reset in [false, true] {
            let (mut client, mut outcomes) = slow(Arc::default(), Duration::from_secs(6)).await;
            client.write_all(REQUEST).await.unwrap();
            if is_reset {
                client.set_zero_linger().unwrap();
            }
            sleep(Duration::from_millis(50)).await;
            drop(client);
            let outcome = time::timeout(Duration::from_secs(5), outcomes.recv()).await;
            assert_eq!(outcome, Ok(Some(false)), "reset: {is_reset}");
        }
    }
}
