//! Response bodies that count as requests until they are sent, since slow clients keep them in memory.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// Frame size in bytes. A connection buffers a few frames; the rest stays here.
const FRAME_BYTES: usize = 64 * 1024;

/// Makes a response hold its request's permit until its body has been sent.
pub fn hold(permit: OwnedSemaphorePermit, response: Response) -> Response {
    response.map(|body| {
        Body::new(PermitBody {
            body,
            buffered: Bytes::new(),
            _permit: permit,
        })
    })
}

struct PermitBody {
    body: Body,
    /// The rest of the last frame in `body`.
    buffered: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for PermitBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.buffered.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.buffered = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let bytes = FRAME_BYTES.min(self.buffered.len());
        Poll::Ready(Some(Ok(Frame::data(self.buffered.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, buffered) = (self.body.size_hint(), self.buffered.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + buffered);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + buffered);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;
    use http_body::Body as _;
    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn a_body_is_complete_and_holds_its_permit_to_the_end() {
        let permits = Arc::new(Semaphore::new(1));
        let text: Vec<u8> = (0..3 * FRAME_BYTES + 7).map(|index| index as u8).collect();
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let mut body = hold(permit, Response::new(Body::from(text.clone()))).into_body();
        let mut found = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(permits.available_permits(), 0);
            assert_eq!(
                body.size_hint().exact(),
                Some((text.len() - found.len()) as u64)
            );
            let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
            found.extend_from_slice(frame.data_ref().unwrap());
        }
        drop(body);
        assert_eq!((found, permits.available_permits()), (text, 1));
    }
}
