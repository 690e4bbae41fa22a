//! Calls as promises. They run on threads of their own, and can be cancelled.

use std::{future::Future, sync::LazyLock};

use napi::{
    Env,
    bindgen_prelude::{ClassInstance, Object, ToNapiValue},
};
use napi_derive::napi;
use tokio::{runtime::Runtime, sync::watch};

use crate::failure::Failure;

/// Lives as long as the process: it is shared by all workers of Node.js.
static RUNTIME: LazyLock<kivu::Result<Runtime>> = LazyLock::new(kivu_bindings::runtime);

/// Cancels the calls that it is given to.
#[napi]
pub struct Cancellation(watch::Sender<bool>);

#[napi]
impl Cancellation {
    /// A cancellation for any number of calls.
    #[napi(constructor)]
    #[allow(clippy::new_without_default, reason = "JavaScript has no defaults")]
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Ends the calls with an error.
    #[napi]
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

/// A promise for the result of work, which `convert` makes a value for JavaScript on its thread.
pub fn promise<'env, T: Send + 'static, V: ToNapiValue + 'static>(
    env: &'env Env,
    cancellation: Option<ClassInstance<'_, Cancellation>>,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    convert: impl FnOnce(T) -> V + Send + 'static,
) -> napi::Result<Object<'env>> {
    let runtime = RUNTIME
        .as_ref()
        .map_err(|error| napi::Error::from_reason(error.chain()))?;
    let cancelled = cancellation.map(|cancellation| cancellation.0.subscribe());
    let (deferred, promise) = env.create_deferred()?;
    // A task of its own, whose panic becomes an error.
    let mut task = runtime.spawn(work);
    runtime.spawn(async move {
        let outcome = tokio::select! {
            outcome = &mut task => outcome.unwrap_or_else(|_| Err(panicked())),
            () = is_set(cancelled) => {
                task.abort();
                Err(Failure::new("AbortError", "the call was cancelled"))
            }
        };
        deferred.resolve(move |env| {
            outcome
                .map(convert)
                .map_err(|failure| failure.into_error(env))
        });
    });
    Ok(promise)
}

/// Does work that may take long, such as freeing a model, on another thread.
pub fn in_background(work: impl FnOnce() + Send + 'static) {
    if let Ok(runtime) = RUNTIME.as_ref() {
        runtime.spawn_blocking(work);
    }
}

/// Ends once a cancellation is set; without one, never.
async fn is_set(cancelled: Option<watch::Receiver<bool>>) {
    if let Some(mut cancelled) = cancelled
        && cancelled.wait_for(|is_set| *is_set).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

fn panicked() -> Failure {
    kivu::Error::inference("the model could not be run: its thread panicked").into()
}
