//! `kivu serve`'s connections, with read and write timeouts and graceful shutdown.

use std::{
    convert::Infallible,
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{
        HeaderName, HeaderValue, StatusCode, Version,
        header::{CONNECTION, EXPECT},
    },
    response::Response,
};
use futures::FutureExt;
use hyper::{
    body::{Body as _, Incoming},
    rt,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::{self, Instant, Sleep, sleep, sleep_until},
};

use super::unread_body::{self, SharedBody};

/// Maximum size of a request head, and of a connection's read-ahead, in bytes. A head that arrives at once may be longer
/// than the read-ahead.
const MAX_BUFFER: usize = 64 * 1024;

/// Pause after a failed `accept`, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The fraction of the request timeout after which a client that has stopped sending is probed, and a minimum.
const PROBE_FRACTION: u32 = 60;
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// An interim response: a client waiting for the final one skips it, and a client's system answers with a reset if the
/// client has closed the connection.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How long connections wait for their clients.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a request head, and for a client that does not read its response.
    pub request: Duration,
    /// For the first byte of a further request. Load balancers send requests on connections for which they have a timeout
    /// of their own: one that the server closes first loses such a request.
    pub idle: Duration,
}

/// Serves connections until `stop` is ready, then finishes the open ones and returns `stop`'s output.
///
/// - A connection is closed if a request head takes longer than the request timeout: the first one since the connection,
///   a later one since its first byte, which has the idle timeout. Slow clients cannot hold a file descriptor, nor delay
///   the shutdown.
/// - It is also closed if the client does not read a buffered response within the request timeout; for a long response,
///   some hundreds of kilobytes are buffered.
/// - A client may shut down its sending side after the request (`shutdown(SHUT_WR)`), and still gets the response. At
///   first this is indistinguishable from a closed connection: see [`while_connected`].
/// - Without free file descriptors, open connections are served and new ones wait.
pub async fn serve<T>(
    listener: TcpListener,
    router: Router,
    timeouts: Timeouts,
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
                connections.spawn(connection(
                    stream,
                    router.clone(),
                    timeouts,
                    is_stopping.clone(),
                ));
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
    // Idle connections end at once, and requests within the timeout; only slow readers remain.
    if time::timeout(timeouts.request + timeouts.request / 2, finished)
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "closing connections whose clients read too slowly"
        );
    }
    stopped
}

async fn connection(
    stream: TcpStream,
    router: Router,
    timeouts: Timeouts,
    is_stopping: watch::Receiver<()>,
) {
    // A response is one write; delaying it has no benefit.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let (reader, is_unread) = (Arc::new(reader), Arc::default());
    let has_arrived = Arc::<AtomicBool>::default();
    let stream = TimedStream {
        reader: Arc::clone(&reader),
        writer,
        has_arrived: Arc::clone(&has_arrived),
        timeout: timeouts.request,
        deadline: None,
    };
    let served = Served {
        reader: Arc::clone(&reader),
        is_unread: Arc::clone(&is_unread),
        timeout: timeouts.request,
    };
    let timer = HeadTimer {
        has_arrived,
        is_kept: AtomicBool::default(),
        timeout: timeouts.request,
    };
    let mut builder = http1::Builder::new();
    builder
        .timer(timer)
        .header_read_timeout(timeouts.idle)
        .half_close(true)
        .max_buf_size(MAX_BUFFER);
    serve_connection(&builder, stream, router, served, is_stopping).await;
    if is_unread.load(Ordering::Relaxed) {
        unread_body::discard(&reader).await;
    }
}

/// State shared between a connection's requests.
#[derive(Clone)]
struct Served {
    reader: Arc<OwnedReadHalf>,
    /// Whether the last request was answered before its body was read.
    is_unread: Arc<AtomicBool>,
    timeout: Duration,
}

/// Answers a request. If the response comes before the end of the request's body, its `connection` header is `close`.
async fn respond(
    request: Request<Incoming>,
    router: TowerToHyperService<Router>,
    served: Served,
) -> io::Result<Response> {
    let Served {
        reader,
        is_unread,
        timeout,
    } = served;
    // Reading a body asks the client to send it.
    let (version, is_pending) = (request.version(), request.headers().contains_key(EXPECT));
    let request = request.map(SharedBody::new);
    let mut body = request.body().share();
    let interval = (timeout / PROBE_FRACTION).max(MIN_PROBE_INTERVAL);
    if head_size(&request) > MAX_BUFFER {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        is_unread.store(!body.is_end_stream(), Ordering::Relaxed);
        return Ok(response);
    }
    let mut response = while_connected(reader, version, interval, router.call(request)).await?;
    if !body.is_end_stream() && (is_pending || !body.has_arrived().await) {
        is_unread.store(true, Ordering::Relaxed);
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// A request head's size in bytes, with one space and no others between its parts.
fn head_size(request: &Request<SharedBody>) -> usize {
    let line = request.method().as_str().len() + request.uri().to_string().len();
    let header = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    let headers: usize = request.headers().iter().map(header).sum();
    line + "  HTTP/1.1\r\n".len() + headers + request.headers().len() * ": \r\n".len() + 2
}

async fn serve_connection(
    builder: &http1::Builder,
    stream: TimedStream,
    router: Router,
    served: Served,
    mut is_stopping: watch::Receiver<()>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        respond(request, router.clone(), served.clone())
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // Connection errors are the client's.
        _ = &mut connection => return,
        _ = is_stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Waits for a response; fails if the client closes the connection first.
///
/// A client that has stopped sending may have closed the connection or may wait for the response; only sending can
/// distinguish the two. After `interval`, such a client gets an interim response, if it uses HTTP/1.1. HTTP/1.0 clients
/// are assumed to wait.
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
        let state = stream
            .ready(Interest::READABLE | Interest::WRITABLE)
            .now_or_never();
        let Some(state) = state.transpose()? else {
            continue;
        };
        if state.is_write_closed() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.is_read_closed() && !is_probed {
            // The response has not begun yet.
            match stream.try_write(PROBE) {
                Ok(sent) if sent == PROBE.len() => is_probed = true,
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Starts hyper's timer for a request head: it asks for one when a connection begins to wait for a request.
#[derive(Debug)]
struct HeadTimer {
    has_arrived: Arc<AtomicBool>,
    /// Whether the connection has had a request.
    is_kept: AtomicBool,
    timeout: Duration,
}

impl rt::Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep_until(std::time::Instant::now() + duration)
    }

    fn sleep_until(&self, idle_until: std::time::Instant) -> Pin<Box<dyn rt::Sleep>> {
        let is_kept = self.is_kept.swap(true, Ordering::Relaxed);
        self.has_arrived.store(false, Ordering::Relaxed);
        let deadline = match is_kept {
            true => idle_until.into(),
            false => Instant::now() + self.timeout,
        };
        Box::pin(HeadSleep {
            sleep: Box::pin(sleep_until(deadline)),
            has_arrived: Arc::clone(&self.has_arrived),
            is_idle: is_kept,
            timeout: self.timeout,
        })
    }
}

/// Ends when a request head has taken too long. hyper polls it after each read.
struct HeadSleep {
    sleep: Pin<Box<Sleep>>,
    has_arrived: Arc<AtomicBool>,
    /// Whether none of the head has arrived yet.
    is_idle: bool,
    timeout: Duration,
}

impl rt::Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_idle && self.has_arrived.load(Ordering::Relaxed) {
            self.is_idle = false;
            let deadline = Instant::now() + self.timeout;
            self.sleep.as_mut().reset(deadline);
        }
        self.sleep.as_mut().poll(context)
    }
}

/// A stream whose writes fail if the client does not read sent bytes within a timeout.
struct TimedStream {
    reader: Arc<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// Whether bytes have arrived since the connection began to wait for a request.
    has_arrived: Arc<AtomicBool>,
    timeout: Duration,
    /// Exists while unsent bytes wait for the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    /// A write attempt's result, or a timeout.
    fn or_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            return sent;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        deadline
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
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
                read => {
                    self.has_arrived.store(true, Ordering::Relaxed);
                    return Poll::Ready(read.map(|_| ()));
                }
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
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
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

    fn timeouts(request: Duration) -> Timeouts {
        let idle = Duration::from_secs(75);
        Timeouts { request, idle }
    }

    /// Connects to a server that answers before it reads the body.
    async fn refused() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let router = Router::new().fallback(|| async { "refused" });
        tokio::spawn(serve(
            listener,
            router,
            timeouts(Duration::from_secs(60)),
            std::future::pending::<()>(),
        ));
        client
    }

    /// Reads the next response's head.
    async fn head(client: &mut TcpStream) -> String {
        let mut response = Vec::new();
        while !response.ends_with(b"refused") {
            response.push(client.read_u8().await.unwrap());
        }
        String::from_utf8(response).unwrap()
    }

    /// A client that sends its whole request before it reads gets a response although no handler reads the body.
    #[tokio::test]
    async fn bodies_of_answered_requests_are_discarded() {
        let mut client = refused().await;
        let body = vec![b' '; 8 * 1024 * 1024];
        let request = format!(
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let response = head(&mut client).await;
        assert!(response.contains("connection: close\r\n"), "{response}");
        client.write_all(&body).await.unwrap();
        assert_eq!(
            client.read(&mut [0]).await.unwrap(),
            0,
            "the end of the connection"
        );
    }

    #[tokio::test]
    async fn a_short_body_does_not_end_its_connection() {
        let mut client = refused().await;
        for _ in 0..3 {
            let request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody";
            client.write_all(request).await.unwrap();
            let response = head(&mut client).await;
            assert!(!response.contains("connection: close"), "{response}");
        }
    }

    /// An idle connection outlives the request timeout and a further request head does not, as does a first one.
    #[tokio::test]
    async fn idle_connections_and_request_heads_have_different_timeouts() {
        let ms = Duration::from_millis;
        let connect = |request, idle| async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let router = Router::new().fallback(|| async { "refused" });
            let timeouts = Timeouts { request, idle };
            tokio::spawn(serve(
                listener,
                router,
                timeouts,
                std::future::pending::<()>(),
            ));
            client
        };
        const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        // Time from `sent` to the end of the connection.
        let closed_after = |mut client: TcpStream, sent: &'static [u8]| async move {
            let started = Instant::now();
            client.write_all(sent).await.unwrap();
            let end = time::timeout(ms(20_000), client.read(&mut [0])).await;
            assert_eq!(end.expect("the connection is open").unwrap_or(0), 0);
            started.elapsed()
        };
        let mut client = connect(ms(300), ms(10_000)).await;
        for _ in 0..2 {
            client.write_all(GET).await.unwrap();
            head(&mut client).await;
            sleep(ms(700)).await;
        }
        let slow = closed_after(client, b"GET / HT").await;
        assert!((ms(200)..ms(5000)).contains(&slow), "{slow:?}");
        let mut client = connect(ms(10_000), ms(300)).await;
        client.write_all(GET).await.unwrap();
        head(&mut client).await;
        let idle = closed_after(client, b"").await;
        assert!((ms(200)..ms(5000)).contains(&idle), "{idle:?}");
        for sent in [&b""[..], b"GET / HT"] {
            let first = closed_after(connect(ms(300), ms(10_000)).await, sent).await;
            assert!((ms(200)..ms(5000)).contains(&first), "{first:?}");
        }
    }

    #[tokio::test]
    async fn heads_above_the_documented_size_are_refused_however_they_arrive() {
        let lines = |count: usize| format!("a: {}\r\n", "b".repeat(1019)).repeat(count);
        let head = |size: usize| {
            let first = format!("GET / HTTP/1.1\r\nhost: x\r\n{}c: ", lines(60));
            format!("{first}{}\r\n\r\n", "d".repeat(size - first.len() - 4))
        };
        for (size, status) in [
            (MAX_BUFFER, "200"),
            (MAX_BUFFER + 1, "431"),
            (MAX_BUFFER + 20 * 1024, "431"),
            (2 * MAX_BUFFER + 1024, "431"),
        ] {
            let head = head(size);
            assert_eq!(head.len(), size);
            for is_split in [false, true] {
                let mut client = refused().await;
                let (first, rest) = head.split_at(if is_split { 40_000 } else { 0 });
                client.write_all(first.as_bytes()).await.unwrap();
                if is_split {
                    sleep(Duration::from_millis(20)).await;
                }
                let _ = client.write_all(rest.as_bytes()).await;
                let mut answer = [0; "HTTP/1.1 200".len()];
                client.read_exact(&mut answer).await.unwrap();
                let found = String::from_utf8_lossy(&answer).into_owned();
                assert_eq!(
                    found,
                    format!("HTTP/1.1 {status}"),
                    "{size}, split: {is_split}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_is_not_wanted_is_not_asked_for() {
        let mut client = refused().await;
        let request =
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
        client.write_all(request).await.unwrap();
        let response = head(&mut client).await;
        assert!(
            response.starts_with("HTTP/1.1 200") && response.contains("connection: close"),
            "{response}"
        );
    }

    /// Connects to a server whose route `/slow` waits for `finish`. Also returns a channel that reports for each
    /// request whether it was completed.
    async fn slow(
        finish: Arc<Notify>,
        timeout: Duration,
    ) -> (TcpStream, mpsc::UnboundedReceiver<bool>) {
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
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let router = Router::new().route("/slow", get(handler));
        tokio::spawn(serve(
            listener,
            router,
            timeouts(timeout),
            std::future::pending::<()>(),
        ));
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
            let (mut client, mut outcomes) =
                slow(Arc::clone(&finish), Duration::from_secs(6)).await;
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
            assert!(
                response.starts_with("HTTP/1.1 200 OK") && response.ends_with("done"),
                "{response}"
            );
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
