//! Threads for work with files, which waits for a disk or for S3. The runtime's blocking threads tokenize the texts of
//! all requests, and must not wait for that.

use std::{sync::Arc, thread};

use tokio::sync::{Semaphore, oneshot};

use crate::error::{Error, Result};

/// Operations at once; further ones wait.
const THREADS: usize = 4;

#[derive(Debug)]
pub(in crate::api) struct FileThreads(Arc<Semaphore>);

impl Default for FileThreads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(THREADS)))
    }
}

impl FileThreads {
    /// Runs blocking work on a thread of its own. Work that has begun goes on if nobody waits for it any more.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let failed = || Error::inference("the work with files panicked or was cancelled");
        let permit = Arc::clone(&self.0)
            .acquire_owned()
            .await
            .map_err(|_| failed())?;
        let (done, outcome) = oneshot::channel();
        let work = move || {
            let _permit = permit;
            // Fails if nobody waits.
            let _ = done.send(work());
        };
        let thread = thread::Builder::new().name("files".into()).spawn(work);
        thread.map_err(Error::io("cannot start a thread for files"))?;
        outcome.await.unwrap_or_else(|_| Err(failed()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use futures::future::join_all;
    use tokio::{runtime::Builder, task};

    use super::*;

    #[test]
    fn slow_files_delay_only_other_files() {
        let (release, wait) = flume::bounded::<()>(0);
        let (threads, running) = (FileThreads::default(), Arc::new(AtomicUsize::new(0)));
        let work = || {
            let (wait, running) = (wait.clone(), Arc::clone(&running));
            threads.run(move || {
                running.fetch_add(1, SeqCst);
                let _ = wait.recv();
                Ok(())
            })
        };
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let others = async {
                while running.load(SeqCst) < THREADS {
                    task::yield_now().await;
                }
                task::spawn_blocking(|| ()).await.unwrap();
                assert_eq!(running.load(SeqCst), THREADS);
                drop(release);
            };
            let (done, ()) = futures::join!(join_all((0..2 * THREADS).map(|_| work())), others);
            assert!(done.into_iter().all(|done| done.is_ok()));
        });
        let panicked =
            runtime.block_on(threads.run(|| -> Result<()> { panic!("made by the test") }));
        assert!(matches!(panicked, Err(Error::Inference { .. })));
    }
}
