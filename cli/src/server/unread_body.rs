//! Requests answered before their body is read, such as requests without a key or a permit.
//!
//! A connection with unread bytes is reset when it is closed, so that the client may lose the response. The rest of a
//! body is therefore read and discarded for a while after the response.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::{net::tcp::OwnedReadHalf, task, time};

/// Maximum time, and maximum bytes, for discarding a body after the response.
const MAX_TIME: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// A body that remains readable after its request is answered.
#[derive(Debug)]
pub struct SharedBody<B>(Arc<Mutex<Progress<B>>>);

#[derive(Debug)]
struct Progress<B> {
    body: B,
    has_ended: bool,
}

impl<B> SharedBody<B> {
    pub fn new(body: B) -> Self {
        Self(Arc::new(Mutex::new(Progress {
            body,
            has_ended: false,
        })))
    }

    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn lock(&self) -> MutexGuard<'_, Progress<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body + Unpin> SharedBody<B> {
    /// Reads the part of the rest that has arrived; returns whether the body is complete.
    pub async fn has_arrived(&mut self) -> bool {
        /// The connection passes a body on in frames, each when its task runs again.
        const MAX_FRAMES: usize = 4;
        for _ in 0..MAX_FRAMES {
            let frame = poll_fn(|context| Pin::new(&mut *self).poll_frame(context)).now_or_never();
            match frame {
                _ if self.is_end_stream() => return true,
                Some(Some(Ok(_))) => {}
                Some(_) => return false,
                None => task::yield_now().await,
            }
        }
        false
    }
}

impl<B: Body + Unpin> Body for SharedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut progress = self.lock();
        let frame = ready!(Pin::new(&mut progress.body).poll_frame(context));
        progress.has_ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let progress = self.lock();
        // A chunked body does not announce its end.
        progress.has_ended || progress.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

/// Discards what the client still sends after the response.
pub async fn discard(reader: &OwnedReadHalf) {
    let discard = async {
        let (mut buffer, mut found) = (vec![0; 16 * 1024], 0);
        while found < MAX_BYTES {
            reader.readable().await?;
            match reader.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => found += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    // Connection errors are the client's.
    let _ = time::timeout(MAX_TIME, discard).await;
}
