//! Requests answered before their body is read, such as requests without a key or a permit.
//!
//! A connection with unread bytes is reset when it is closed, so that the client may lose the response. The rest of a
//! body is therefore read and discarded for a while after the response.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::{net::tcp::OwnedReadHalf, task, time};

use kivu::locked;

/// Maximum time, and maximum bytes, for discarding a body after the response.
const MAX_TIME: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// A body that remains readable after its request is answered.
#[derive(Debug)]
pub struct SharedBody(Arc<Mutex<Progress>>);

#[derive(Debug)]
struct Progress {
    body: Incoming,
    has_ended: bool,
}

impl SharedBody {
    pub fn new(body: Incoming) -> Self {
        Self(Arc::new(Mutex::new(Progress {
            body,
            has_ended: false,
        })))
    }

    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

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

impl Body for SharedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let mut progress = locked(&self.0);
        let frame = ready!(Pin::new(&mut progress.body).poll_frame(context));
        progress.has_ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let progress = locked(&self.0);
        // A chunked body does not announce its end.
        progress.has_ended || progress.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        locked(&self.0).body.size_hint()
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
