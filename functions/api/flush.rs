//! Sends traces and metrics after each invocation's response, before the next invocation is asked for: Lambda freezes
//! the process in between, with whatever it has not sent.

use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kivu::telemetry::Otlp;
use lambda_http::{
    lambda_runtime::LambdaInvocation,
    tower::{Layer, Service},
};

/// Time limit for sending, which the function is charged for. The client has its response already.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends after the inner service has sent its response.
#[derive(Clone)]
pub(crate) struct FlushLayer(pub(crate) Option<Otlp>);

impl<S> Layer<S> for FlushLayer {
    type Service = FlushService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FlushService {
            inner,
            otlp: self.0.clone(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct FlushService<S> {
    inner: S,
    otlp: Option<Otlp>,
}

impl<S> Service<LambdaInvocation> for FlushService<S>
where
    S: Service<LambdaInvocation>,
    S::Future: Future<Output = Result<S::Response, S::Error>> + Send + 'static,
    S::Response: Send,
    S::Error: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, invocation: LambdaInvocation) -> Self::Future {
        let (response, otlp) = (self.inner.call(invocation), self.otlp.clone());
        async move {
            let sent = response.await;
            if let Some(otlp) = otlp {
                otlp.flush(FLUSH_TIMEOUT).await;
            }
            sent
        }
        .boxed()
    }
}
