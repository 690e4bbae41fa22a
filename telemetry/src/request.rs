//! State of a running request: its trace, its model, its size, and the durations of its stages.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use metrics::{counter, histogram};

pub use super::stages::{Outcome, RequestDetails, Stage};
use super::{
    otlp::spans::{self, RequestSpan},
    stages::{Clock, TimedStage},
    trace::Trace,
};
use kivu_base::locked;
use kivu_core::observer::{self, Ending, Observer, RunMark};

/// Stages kept per request, for spans. Further ones only count for the log: a request may have thousands of texts that
/// run one by one.
const MAX_STAGES: usize = 64;

tokio::task_local! {
    static CURRENT: Arc<RequestRecord>;
}

/// A request while it runs.
#[derive(Debug)]
pub struct RequestRecord {
    clock: Clock,
    /// For outgoing requests and the log: this request's span, or the client's if none is made here.
    pub trace: Option<Trace>,
    span: Mutex<Option<RequestSpan>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    details: RequestDetails,
    stages: Vec<TimedStage>,
    last_end: Option<Instant>,
}

impl RequestRecord {
    /// A request that began at `started`, in the client's trace if there is one.
    pub fn begun(started: Instant, method: &str, parent: Option<Trace>) -> Arc<Self> {
        record_reports();
        let clock = Clock::since(started);
        let span = spans::begin(method, parent.as_ref(), clock);
        let trace = span.as_ref().map(RequestSpan::trace).or(parent);
        Arc::new(Self {
            clock,
            trace,
            span: Mutex::new(span),
            progress: Mutex::default(),
        })
    }

    /// Runs `work`, whose stages belong to this request.
    pub async fn follow<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Time since the request began.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Ends the request and its spans.
    pub fn end(&self, outcome: &Outcome<'_>) -> RequestDetails {
        let last_end = self.progress().last_end;
        if let Some(started) = last_end {
            let ending = match outcome.status {
                500.. => Ending::Failed,
                _ => Ending::Succeeded,
            };
            self.add(Stage::Response, started, ending, None);
        }
        let progress = self.progress();
        if let Some(span) = locked(&self.span).take() {
            span.end(self.clock, outcome, &progress.details, &progress.stages);
        }
        progress.details.clone()
    }

    fn add(&self, stage: Stage, started: Instant, ending: Ending, backend: Option<&'static str>) {
        self.add_until(TimedStage {
            stage,
            started,
            ended: Instant::now(),
            ending,
            backend,
        });
    }

    fn add_until(&self, timed: TimedStage) {
        let mut progress = self.progress();
        progress.last_end = progress.last_end.max(Some(timed.ended));
        progress.details.durations[timed.stage as usize] += timed.ended - timed.started;
        if progress.stages.len() < MAX_STAGES || timed.stage == Stage::Response {
            progress.stages.push(timed);
        }
    }

    /// Adds a run and its time in the queue. A run that failed before it began was only in the queue.
    fn add_run(&self, queued: Instant, mark: &RunMark, ending: Ending) {
        let (now, backend) = (Instant::now(), mark.backend());
        let began = mark
            .began()
            .or((ending == Ending::Succeeded).then_some(queued));
        let ended = began.unwrap_or(now);
        histogram!("kivu_queue_seconds").record(ended.saturating_duration_since(queued));
        if ended > queued {
            let ending = match began {
                Some(_) => Ending::Succeeded,
                None => Ending::Failed,
            };
            self.add_until(TimedStage {
                stage: Stage::Queue,
                started: queued,
                ended,
                ending,
                backend,
            });
        }
        if let Some(started) = began {
            self.add_until(TimedStage {
                stage: Stage::Run,
                started,
                ended: now,
                ending,
                backend,
            });
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        locked(&self.progress)
    }
}

/// The current request's trace, for outgoing requests.
pub fn current_trace() -> Option<Trace> {
    CURRENT
        .try_with(|request| request.trace.clone())
        .ok()
        .flatten()
}

fn update(change: impl FnOnce(&mut RequestDetails)) {
    let _ = CURRENT.try_with(|request| change(&mut request.progress().details));
}

/// Notes a model that the current request uses; the first one counts.
pub fn note_model(name: &str) {
    update(|details| details.model = details.model.take().or_else(|| Some(name.to_owned())));
}

/// Counts the current request's texts.
pub fn count_texts(count: usize) {
    counter!("kivu_texts_total").increment(count as u64);
    update(|details| details.texts += count);
}

/// Records what pipelines and backends report, from now on.
pub(crate) fn record_reports() {
    observer::report_to(&Recorder);
}

/// Records reports in metrics, and in the current request if there is one.
struct Recorder;

impl Observer for Recorder {
    fn encoded(&self, tokens: usize, tokenizing: Duration, inferring: Duration) {
        counter!("kivu_tokens_total").increment(tokens as u64);
        histogram!("kivu_tokenize_seconds").record(tokenizing);
        histogram!("kivu_infer_seconds").record(inferring);
        update(|details| details.tokens += tokens);
    }

    fn ran_batch(&self, backend: &'static str) {
        counter!("kivu_runs_total", "backend" => backend).increment(1);
    }

    fn fell_back(&self) {
        counter!("kivu_fleet_fallbacks_total").increment(1);
    }

    fn started(&self, part: &'static str, took: Duration) {
        histogram!("kivu_cold_seconds", "part" => part).record(took);
    }

    fn tokenized(&self, started: Instant, ending: Ending) {
        let _ = CURRENT.try_with(|request| request.add(Stage::Tokenization, started, ending, None));
    }

    fn has_request(&self) -> bool {
        CURRENT.try_with(|_| ()).is_ok()
    }

    fn ran(&self, queued: Instant, mark: &RunMark, ending: Ending) {
        let _ = CURRENT.try_with(|request| request.add_run(queued, mark, ending));
    }
}

#[cfg(test)]
mod tests {
    use kivu_core::observer::{
        QueuedBatch, record_batch, record_encoding, timed_run, timed_tokenization,
    };

    use super::*;

    /// Until the clock has moved on.
    fn wait() {
        let started = Instant::now();
        while Instant::now() == started {}
    }

    async fn stages(work: impl Future<Output = ()>) -> (RequestDetails, Vec<(Stage, bool)>) {
        let request = RequestRecord::begun(Instant::now(), "POST", None);
        Arc::clone(&request).follow(work).await;
        let details = request.end(&Outcome {
            method: "POST",
            route: None,
            status: 200,
        });
        let stages = request
            .progress()
            .stages
            .iter()
            .map(|timed| (timed.stage, timed.ending == Ending::Failed))
            .collect();
        (details, stages)
    }

    #[tokio::test]
    async fn a_run_begins_with_its_first_batch() {
        let (details, stages) = stages(async {
            note_model("a");
            note_model("b");
            count_texts(2);
            record_encoding(3, Duration::ZERO, Duration::ZERO);
            let _ = timed_tokenization(async { Ok::<_, ()>(()) }).await;
            let batch = async {
                let (first, second) = (QueuedBatch::new(), QueuedBatch::new());
                record_batch("native");
                wait();
                std::thread::scope(|scope| {
                    scope.spawn(|| first.begin());
                });
                second.begin();
                Ok::<_, ()>(())
            };
            let _ = timed_run(batch).await;
        })
        .await;
        let expected = [
            Stage::Tokenization,
            Stage::Queue,
            Stage::Run,
            Stage::Response,
        ];
        assert_eq!(stages, expected.map(|stage| (stage, false)));
        assert_eq!(
            (details.model.as_deref(), details.texts, details.tokens),
            (Some("a"), 2, 3)
        );
    }

    #[tokio::test]
    async fn a_run_that_fails_in_the_queue_never_ran() {
        let fail = async {
            wait();
            Err::<(), _>(())
        };
        let (_, waited) = stages(async { timed_run(fail).await.unwrap_or_default() }).await;
        assert_eq!(waited, [(Stage::Queue, true), (Stage::Response, false)]);
        let fail = async {
            QueuedBatch::new().begin();
            Err::<(), _>(())
        };
        let (_, ran) = stages(async { timed_run(fail).await.unwrap_or_default() }).await;
        assert!(ran.contains(&(Stage::Run, true)), "{ran:?}");
    }

    #[tokio::test]
    async fn memory_is_bounded_and_durations_are_complete() {
        let (_, stages) = stages(async {
            for _ in 0..1000 {
                let _ = timed_tokenization(async { Ok::<_, ()>(()) }).await;
            }
        })
        .await;
        assert_eq!(
            (stages.len(), stages.last()),
            (MAX_STAGES + 1, Some(&(Stage::Response, false)))
        );
    }

    #[tokio::test]
    async fn a_request_has_the_trace_that_it_follows() {
        assert_eq!(current_trace(), None);
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = Trace::read(|name| (name == "traceparent").then_some(header));
        let request = RequestRecord::begun(Instant::now(), "POST", trace.clone());
        assert_eq!(request.follow(async { current_trace() }).await, trace);
    }

    #[tokio::test]
    async fn work_without_a_request_is_not_measured() {
        note_model("a");
        QueuedBatch::new().begin();
        assert_eq!(timed_run(async { Ok::<_, ()>(7) }).await, Ok(7));
        assert!(!Recorder.has_request());
    }
}
