//! Background work, which gives way to requests: each of its calls waits while requests run.

use std::{future::Future, sync::LazyLock, time::Duration};

use tokio::{sync::watch, time::timeout};

/// Maximum wait per call, so that background work continues on a server that is never idle.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Requests that run in this process, whatever their model: all models share the CPUs.
static REQUESTS: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

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
            REQUESTS.send_modify(|count| *count += 1);
            Self(())
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        REQUESTS.send_modify(|count| *count -= 1);
    }
}

/// In the background, waits while requests run.
pub(super) async fn give_way() {
    if is_background() {
        // The sender is never dropped; after the time limit, the work continues.
        let _ = timeout(MAX_WAIT, REQUESTS.subscribe().wait_for(|count| *count == 0)).await;
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
