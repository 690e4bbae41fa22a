//! Connections of `kivu serve`: none holds its place for longer than a request may take without saying anything or
//! without taking what it is told, and all are finished before the program ends.

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
    time::{Sleep, sleep, timeout},
};

/// How long nothing is accepted after there was no file descriptor for another connection: some will be closed.
const BREATH: Duration = Duration::from_millis(100);

/// The share of a request's time after which it is asked whether a caller that has stopped sending still listens.
const ASKED_AFTER: u32 = 60;
/// The same where requests have very little time.
const SOONEST: Duration = Duration::from_millis(10);
/// What asks that: a client that waits for a response skips it, and the system of one that has gone refuses it.
const STILL_THERE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Serves connections until `stop` is done, then finishes what was accepted. Gives what `stop` came to.
///
/// - A connection that has not said a whole head of a request within `patience`, be it its first or another, is
///   closed: whoever dribbles bytes cannot keep a file descriptor, nor the program from ending.
/// - So is one whose caller does not take within `patience` what it holds for him: that is an answer, or of a long one
///   some hundreds of kilobytes.
/// - A caller may stop sending after its request (`shutdown(SHUT_WR)`), and gets its response all the same. One that closes
///   the connection looks the same at first: see [`while_wanted`].
/// - Where file descriptors run out, connections that are open go on, and others wait until there is room.
pub(super) async fn serve<T>(
    listener: TcpListener,
    router: Router,
    patience: Duration,
    stop: impl Future<Output = T>,
) -> T {
    let (stopping, is_stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    let stopped = loop {
        let accepted = tokio::select! {
            stopped = &mut stop => break stopped,
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
    };
    // Whoever comes now is refused by the system, at once.
    drop(listener);
    drop(stopping);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Requests end within that time, and so does waiting for one; whoever then still reads his answer is cut off.
    if timeout(patience + patience / 2, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections are cut off");
    }
    stopped
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
    let (reader, writer) = stream.into_split();
    let (reader, router) = (Arc::new(reader), TowerToHyperService::new(router));
    let caller = Arc::clone(&reader);
    let pause = (patience / ASKED_AFTER).max(SOONEST);
    let service = service_fn(move |request: Request<Incoming>| {
        let version = request.version();
        while_wanted(Arc::clone(&caller), version, pause, router.call(request))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .half_close(true)
        .serve_connection(TokioIo::new(Patient::new(reader, writer, patience)), service);
    tokio::pin!(connection);
    tokio::select! {
        // What goes wrong on a connection is its caller's affair.
        _ = &mut connection => return,
        _ = is_stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Waits for a response as long as somebody wants it; fails when the caller has gone.
///
/// A caller that has stopped sending may still listen, or may have closed the connection, and only an attempt to send
/// something tells. After `pause`, such a caller of HTTP/1.1 is sent an interim response; of older versions it is taken to
/// listen.
async fn while_wanted<T>(
    caller: Arc<OwnedReadHalf>,
    version: Version,
    pause: Duration,
    response: impl Future<Output = Result<T, Infallible>>,
) -> io::Result<T> {
    tokio::pin!(response);
    let mut is_asked = version != Version::HTTP_11;
    loop {
        tokio::select! {
            biased;
            Ok(response) = &mut response => return Ok(response),
            () = sleep(pause) => {}
        }
        let stream: &TcpStream = caller.as_ref().as_ref();
        let state = stream.ready(Interest::READABLE | Interest::WRITABLE).now_or_never();
        let Some(state) = state.transpose()? else { continue };
        if state.is_write_closed() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.is_read_closed() && !is_asked {
            // Nothing of the response was sent yet, since it is still being waited for.
            match stream.try_write(STILL_THERE) {
                Ok(sent) if sent == STILL_THERE.len() => is_asked = true,
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A connection that fails when what is to be sent is not taken in time.
struct Patient {
    reader: Arc<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    patience: Duration,
    /// When that will be, while something waits to be taken.
    until: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(reader: Arc<OwnedReadHalf>, writer: OwnedWriteHalf, patience: Duration) -> Self {
        Self { reader, writer, patience, until: None }
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

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.writer).poll_write(context, bytes);
        self.or_too_late(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.writer).poll_write_vectored(context, pieces);
        self.or_too_late(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    /// Asked for when all of it was written; a little that is written now and then does not count.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.until = None;
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

/// Whether a connection was gone before it was accepted, which says nothing of the next one.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::mpsc,
    };

    use super::*;

    const REQUEST: &[u8] = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";

    /// A server whose route `/slow` takes a while, and what it tells: whether a request was answered or given up.
    async fn slow(time: Duration, patience: Duration) -> (TcpStream, mpsc::UnboundedReceiver<bool>) {
        struct Told(mpsc::UnboundedSender<bool>, bool);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.send(self.1);
            }
        }
        let (tell, told) = mpsc::unbounded_channel();
        let handler = move || async move {
            let mut told = Told(tell, false);
            sleep(time).await;
            told.1 = true;
            "done"
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let router = Router::new().route("/slow", get(handler));
        tokio::spawn(serve(listener, router, patience, std::future::pending::<()>()));
        (client, told)
    }

    #[tokio::test]
    async fn a_caller_that_stops_sending_gets_its_response() {
        // At once, and after it was asked whether it still listens.
        for (time, is_asked) in [(0, false), (300, true)] {
            let (mut client, mut told) = slow(Duration::from_millis(time), Duration::from_secs(6)).await;
            client.write_all(REQUEST).await.unwrap();
            client.shutdown().await.unwrap();
            let mut response = String::new();
            client.read_to_string(&mut response).await.unwrap();
            let interim = std::str::from_utf8(STILL_THERE).unwrap();
            assert_eq!(response.starts_with(interim), is_asked, "{response}");
            let response = response.trim_start_matches(interim);
            assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("done"), "{response}");
            assert_eq!(told.recv().await, Some(true));
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_given_up() {
        for is_reset in [false, true] {
            let (mut client, mut told) = slow(Duration::from_secs(20), Duration::from_secs(6)).await;
            client.write_all(REQUEST).await.unwrap();
            if is_reset {
                client.set_zero_linger().unwrap();
            }
            sleep(Duration::from_millis(50)).await;
            drop(client);
            let told = timeout(Duration::from_secs(5), told.recv()).await;
            assert_eq!(told, Ok(Some(false)), "reset: {is_reset}");
        }
    }
}
