//! Sends traces and metrics after each invocation's response, before the next invocation is asked for: Lambda freezes
//! the process in between, with whatever it has not sent.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use lambda_http::{
    lambda_runtime::LambdaInvocation,
    tower::{Layer, Service},
};

use crate::Function;

/// Time limit for sending, which the function is charged for. The client has its response already.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends after the inner service has sent its response.
#[derive(Clone)]
pub(crate) struct FlushLayer(pub(crate) Arc<Function>);

impl<S> Layer<S> for FlushLayer {
    type Service = FlushService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FlushService {
            inner,
            function: Arc::clone(&self.0),
        }
    }
}

#[derive(Clone)]
pub(crate) struct FlushService<S> {
    inner: S,
    function: Arc<Function>,
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
        let (response, function) = (self.inner.call(invocation), Arc::clone(&self.function));
        async move {
            let sent = response.await;
            if let Some(otlp) = &function.service.wait().await.otlp {
                otlp.flush(FLUSH_TIMEOUT).await;
            }
            sent
        }
        .boxed()
    }
}
