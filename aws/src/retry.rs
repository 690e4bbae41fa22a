//! Retries of requests.

use std::{fmt::Display, future::Future, time::Duration};

use tokio::time::{Instant, sleep};

use kivu::random;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Sends `request` until it succeeds, fails for good or `time_limit` is over. Pauses grow, with random jitter, so that
/// clients do not overload a server that restarts.
pub async fn retry<T, E: Display, F: Future<Output = Result<T, E>>>(
    time_limit: Duration,
    is_temporary: impl Fn(&E) -> bool,
    request: impl Fn() -> F,
) -> Result<T, E> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match request().await {
            Err(error) if is_temporary(&error) && started.elapsed() + pause < time_limit => {
                tracing::warn!(%error, "a request to AWS failed; retrying");
                sleep(pause.mul_f64(0.5 + random::fraction() / 2.0)).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            result => return result,
        }
    }
}
