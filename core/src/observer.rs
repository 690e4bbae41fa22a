//! Observations that pipelines and backends report about their work. The program may have an [`Observer`], which
//! records it; without one, reports have no effect.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kivu_base::clock::Instant;

/// How reported work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a result.
    Succeeded,
    /// With an error.
    Failed,
}

impl Ending {
    fn of<T, E>(done: &Result<T, E>) -> Self {
        match done {
            Ok(_) => Self::Succeeded,
            Err(_) => Self::Failed,
        }
    }
}

/// Records what is reported, on any thread.
pub trait Observer: Sync {
    /// The tokens of texts that ran together, and how long their tokenization and the model took.
    fn encoded(&self, tokens: usize, tokenizing: Duration, inferring: Duration);

    /// A backend ran a batch.
    fn ran_batch(&self, backend: &'static str);

    /// Work ran locally, since the fleet failed.
    fn fell_back(&self);

    /// A part of a cold start took this time.
    fn started(&self, part: &'static str, took: Duration);

    /// The current request's tokenization began at `started`, and ends now.
    fn tokenized(&self, started: Instant, ending: Ending);

    /// Whether the current task runs a request whose model runs are recorded.
    fn has_request(&self) -> bool;

    /// The current request's model run began to wait at `queued`, and ends now.
    fn ran(&self, queued: Instant, mark: &RunMark, ending: Ending);
}

static OBSERVER: OnceLock<&'static dyn Observer> = OnceLock::new();

/// Reports to `observer` from now on, unless the program has an observer already.
pub fn report_to(observer: &'static dyn Observer) {
    OBSERVER.get_or_init(|| observer);
}

fn observer() -> Option<&'static dyn Observer> {
    OBSERVER.get().copied()
}

/// Reports the tokens of texts that ran together, and how long their tokenization and the model took.
pub fn record_encoding(tokens: usize, tokenizing: Duration, inferring: Duration) {
    if let Some(observer) = observer() {
        observer.encoded(tokens, tokenizing, inferring);
    }
}

/// Reports that a backend runs a batch, of the current run if there is one.
pub fn record_batch(backend: &'static str) {
    if let Some(observer) = observer() {
        observer.ran_batch(backend);
        let _ = RUN.try_with(|mark| mark.backend.set(backend));
    }
}

/// Reports that work runs locally, since the fleet failed.
pub fn record_fallback() {
    if let Some(observer) = observer() {
        observer.fell_back();
    }
}

/// Runs one part of a cold start, and reports how long it took.
pub fn time_start<T>(part: &'static str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let outcome = work();
    if let Some(observer) = observer() {
        observer.started(part, started.elapsed());
    }
    outcome
}

/// Reports how long a tokenization of the current request takes.
pub async fn timed_tokenization<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let started = Instant::now();
    let done = work.await;
    if let Some(observer) = observer() {
        observer.tokenized(started, Ending::of(&done));
    }
    done
}

tokio::task_local! {
    static RUN: Arc<RunMark>;
}

/// When a model run's first batch began, and where.
#[derive(Debug, Default)]
pub struct RunMark {
    began: OnceLock<Instant>,
    backend: OnceLock<&'static str>,
}

impl RunMark {
    /// When the first batch began; `None` if none did.
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// The backend that ran the first batch.
    pub fn backend(&self) -> Option<&'static str> {
        self.backend.get().copied()
    }
}

/// Reports a model run of the current request, apart from its time in the queue.
#[cfg(not(target_family = "wasm"))]
pub async fn timed_run<T, E>(run: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let Some(observer) = observer().filter(|observer| observer.has_request()) else {
        return run.await;
    };
    let (queued, mark) = (Instant::now(), Arc::<RunMark>::default());
    let done = RUN.scope(Arc::clone(&mark), run).await;
    observer.ran(queued, &mark, Ending::of(&done));
    done
}

/// Waits for `run`: there is no queue, and no clock.
#[cfg(target_family = "wasm")]
pub async fn timed_run<T, E>(run: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    run.await
}

/// A batch in a backend's queue.
#[derive(Clone, Debug, Default)]
pub struct QueuedBatch(Option<Arc<RunMark>>);

impl QueuedBatch {
    /// A batch of the current run.
    pub fn new() -> Self {
        Self(RUN.try_with(Arc::clone).ok())
    }

    /// Reports that the batch begins, on any thread.
    pub fn begin(&self) {
        if let Some(mark) = &self.0 {
            mark.began.get_or_init(Instant::now);
        }
    }
}
