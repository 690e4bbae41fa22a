//! Connections of `kivu serve`: none holds its place for longer than a request may take without saying anything, and
//! all are finished before the program ends.

use std::{future::Future, io, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

/// How long nothing is accepted after there was no file descriptor for another connection: some will be closed.
const BREATH: Duration = Duration::from_millis(100);

/// Serves connections until `stop` is done, then finishes what was accepted.
///
/// - A connection that has not said a whole head of a request within `patience`, be it its first or another, is
///   closed: whoever dribbles bytes cannot keep a file descriptor, nor the program from ending.
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
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        // What goes wrong on a connection is its caller's affair.
        _ = &mut connection => return,
        _ = is_stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Whether a connection was gone before it was accepted, which says nothing of the next one.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
