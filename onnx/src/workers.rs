//! Threads that share one model and take their work from one queue.

use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use tokio::sync::oneshot;

use kivu_base::{Error, Result};
use kivu_core::{
    backend::Deadline,
    observer::{QueuedBatch, record_batch},
};

/// Threads that share `M`.
///
/// - The queue's next task goes to the first idle thread.
/// - Tasks that were cancelled, or whose deadline has passed, do not start.
/// - A panicking task fails, and its thread continues.
/// - The threads end once the value is dropped and the queue is empty.
#[derive(Debug)]
pub struct Workers<M> {
    queue: flume::Sender<Task<M>>,
}

type Task<M> = Box<dyn FnOnce(&M) + Send>;

impl<M: Send + Sync + 'static> Workers<M> {
    pub fn start(name: &str, threads: NonZeroUsize, model: M) -> Result<Self> {
        let (sender, queue) = flume::unbounded::<Task<M>>();
        let model = Arc::new(model);
        for number in 0..threads.get() {
            let (model, queue) = (Arc::clone(&model), queue.clone());
            thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || queue.iter().for_each(|task| task(&model)))
                .map_err(Error::io("cannot start a thread for an ONNX session"))?;
        }
        Ok(Self { queue: sender })
    }

    /// Runs `work` on one thread. Its second argument returns whether the caller has cancelled.
    pub async fn run<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl FnOnce(&M, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        record_batch("onnx");
        let stopped = || Error::inference("the threads of the ONNX session have stopped");
        let (sender, outcome) = oneshot::channel();
        let queued = QueuedBatch::new();
        let task: Task<M> = Box::new(move |model| {
            let is_abandoned = || sender.is_closed();
            if is_abandoned() {
                return;
            }
            queued.begin();
            let outcome = if deadline.has_passed() {
                Err(deadline.exceeded())
            } else {
                catch_unwind(AssertUnwindSafe(|| work(model, &is_abandoned)))
                    .unwrap_or_else(|_| Err(Error::inference("the model's run panicked")))
            };
            // Fails if the caller has dropped the receiver.
            let _ = sender.send(outcome);
        });
        self.queue.send(task).map_err(|_| stopped())?;
        deadline
            .bound(async { outcome.await.unwrap_or_else(|_| Err(stopped())) })
            .await
    }
}
