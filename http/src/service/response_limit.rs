//! A platform's limit for responses. Requests carry it as an extension.

use std::future::Future;

use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;

use crate::bodies::rejection::Rejection;
use kivu::{Error, Result};

/// A platform's limit for a response, in the form in which it is sent.
#[derive(Clone, Copy, Debug)]
pub struct ResponseLimit {
    /// Maximum size.
    pub bytes: usize,
    /// The platform's name in errors.
    pub platform: &'static str,
    /// Collects a response, and returns its size as sent, in bytes.
    pub measure: fn(Response) -> BoxFuture<'static, (Response, usize)>,
}

impl ResponseLimit {
    /// Rejects a response of at least `bytes`, before it is computed.
    pub fn check(self, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(self.exceeded(&format!("this one would take at least {bytes}")))
    }

    fn exceeded(self, found: &str) -> Error {
        let Self {
            bytes, platform, ..
        } = self;
        Error::too_large(format!(
            "expected a response of at most {bytes} bytes, the limit of {platform}, but {found}"
        ))
        .with_hint("send fewer texts at once")
    }
}

/// Waits for a response, and replaces it by a rejection if it is too long to be sent.
pub async fn within(
    limit: Option<ResponseLimit>,
    response: impl Future<Output = Response>,
) -> Response {
    let Some(limit) = limit else {
        return response.await;
    };
    let response = response.await;
    if response.extensions().get::<Rejection>().is_some() {
        return response;
    }
    let (response, bytes) = (limit.measure)(response).await;
    if bytes <= limit.bytes {
        return response;
    }
    tracing::warn!(bytes, limit = limit.bytes, "the response is too long");
    Rejection::from(limit.exceeded(&format!("found {bytes}"))).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use futures::FutureExt;

    use super::*;

    const LIMIT_OF_TEN: ResponseLimit = ResponseLimit {
        bytes: 10,
        platform: "tests",
        measure: |response| {
            async {
                let (parts, body) = response.into_parts();
                let body = to_bytes(body, 100).await.unwrap();
                let size = body.len();
                (Response::from_parts(parts, body.into()), size)
            }
            .boxed()
        },
    };

    #[tokio::test]
    async fn responses_are_measured_before_they_are_sent_and_checked_before_they_are_computed() {
        let run = |limit: Option<ResponseLimit>, known, body: &'static str| async move {
            let response = within(limit, async {
                match limit.map_or(Ok(()), |limit| limit.check(known)) {
                    Ok(()) => Response::new(Body::from(body)),
                    Err(error) => Rejection::from(error).into_response(),
                }
            });
            match response.await.extensions().get::<Rejection>() {
                None => "sent".to_owned(),
                Some(rejection) => format!("{}: {}", rejection.status.as_u16(), rejection.message),
            }
        };
        let some = Some(LIMIT_OF_TEN);
        assert_eq!(run(some, 10, "ten bytes.").await, "sent");
        assert_eq!(run(None, 1000, "eleven bytes").await, "sent");
        insta::assert_snapshot!(run(some, 10, "eleven byte").await, @"413: expected a response of at most 10 bytes, the limit of tests, but found 11; send fewer texts at once");
        insta::assert_snapshot!(run(some, 11, "").await, @"413: expected a response of at most 10 bytes, the limit of tests, but this one would take at least 11; send fewer texts at once");
    }
}
