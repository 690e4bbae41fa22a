//! Background work, which gives way to requests: each of its calls waits while requests run, and shortly after them.

use std::{future::Future, num::NonZeroUsize, sync::LazyLock, time::Duration};

use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until, timeout},
};

/// The time without requests before background work continues, since a client often sends several in succession.
const QUIET: Duration = Duration::from_millis(100);
/// On a server that is never quiet, one call continues after this time.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Requests in this process, whatever their model: all models share the CPUs.
#[derive(Clone, Copy, Default)]
struct Requests {
    running: usize,
    /// When the last one ended.
    ended: Option<Instant>,
}

static REQUESTS: LazyLock<watch::Sender<Requests>> = LazyLock::new(watch::Sender::default);

/// Held by the call that waits; the others wait behind it.
static NEXT: Mutex<()> = Mutex::const_new(());

tokio::task_local! {
    static IS_BACKGROUND: ();
}

/// Runs background work.
pub(crate) async fn in_background<T>(work: impl Future<Output = T>) -> T {
    IS_BACKGROUND.scope((), work).await
}

fn is_background() -> bool {
    IS_BACKGROUND.try_with(|()| ()).is_ok()
}

/// A running request.
pub(super) struct Running(());

impl Running {
    /// Counts the current request; `None` in the background.
    pub(super) fn begin() -> Option<Self> {
        (!is_background()).then(|| {
            REQUESTS.send_modify(|requests| requests.running += 1);
            Self(())
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        REQUESTS.send_modify(|requests| {
            requests.running -= 1;
            requests.ended = Some(Instant::now());
        });
    }
}

/// Maximum calls in progress, with a backend that runs `concurrency` in parallel.
///
/// A backend never waits for a request's next call. In the background it may, since a request that arrives waits for the
/// calls in progress.
pub(super) fn max_calls(concurrency: NonZeroUsize) -> usize {
    if is_background() {
        concurrency.get()
    } else {
        2 * concurrency.get()
    }
}

/// In the background, waits until there are no requests.
pub(super) async fn give_way() {
    if is_background() {
        let _next = NEXT.lock().await;
        // After the time limit, this call continues, and the next one waits.
        let _ = timeout(MAX_WAIT, quiet()).await;
    }
}

/// Waits until no request has run for a while.
async fn quiet() {
    let mut requests = REQUESTS.subscribe();
    loop {
        // The sender is never dropped.
        let ended = requests
            .wait_for(|requests| requests.running == 0)
            .await
            .ok()
            .and_then(|found| found.ended);
        let Some(end) = ended
            .map(|ended| ended + QUIET)
            .filter(|end| *end > Instant::now())
        else {
            return;
        };
        sleep_until(end).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn background_work_waits_while_a_request_runs() {
        give_way().await;
        let request = Running::begin();
        assert!(request.is_some());
        in_background(async {
            assert!(Running::begin().is_none());
            let waiting = give_way();
            tokio::pin!(waiting);
            assert!(futures::poll!(&mut waiting).is_pending());
            drop(request);
            waiting.await;
        })
        .await;
    }
}
