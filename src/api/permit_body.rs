//! Answers on their way to callers, who may take their time.

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

/// What is handed on at once. A connection keeps a few of these for its caller, the rest stays here.
const PIECE_BYTES: usize = 64 * 1024;

/// Lets an answer keep the place of its request among those under way until all of it is on its way: one that nobody
/// reads takes memory as a request does, and counts as one.
pub(super) fn hold(permit: OwnedSemaphorePermit, response: Response) -> Response {
    response.map(|answer| Body::new(PermitBody { answer, ready: Bytes::new(), _permit: permit }))
}

/// An answer that is handed on piece by piece.
struct PermitBody {
    answer: Body,
    /// What came of it and was not handed on.
    ready: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for PermitBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ready.is_empty() {
            let frame = ready!(Pin::new(&mut self.answer).poll_frame(context));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.ready = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let bytes = PIECE_BYTES.min(self.ready.len());
        Poll::Ready(Some(Ok(Frame::data(self.ready.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (left, ready) = (self.answer.size_hint(), self.ready.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(left.lower() + ready);
        if let Some(upper) = left.upper() {
            hint.set_upper(upper + ready);
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
    fn an_answer_is_whole_and_keeps_its_place_to_its_end() {
        let places = Arc::new(Semaphore::new(1));
        let text: Vec<u8> = (0..3 * PIECE_BYTES + 7).map(|place| place as u8).collect();
        let permit = Arc::clone(&places).try_acquire_owned().unwrap();
        let mut body = hold(permit, Response::new(Body::from(text.clone()))).into_body();
        let mut found = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(places.available_permits(), 0);
            assert_eq!(body.size_hint().exact(), Some((text.len() - found.len()) as u64));
            let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
            found.extend_from_slice(frame.data_ref().unwrap());
        }
        drop(body);
        assert_eq!((found, places.available_permits()), (text, 1));
    }
}
