//! Threads that run a model. A thread leads each run; idle threads help.
//!
//! - A run takes calls from the queue until it has [`RUN_TOKENS`] tokens; no call waits for others to arrive.
//! - A [brief call](Shared::is_brief) that arrives alone, and finds an idle thread and an empty queue, runs on its
//!   caller's thread instead, which saves two thread switches; the other idle threads help.
//! - While no calls wait, idle threads execute tasks from the runs in progress, so one long text uses all CPUs; they
//!   return to the queue at the next stage end.
//! - A thread that has nothing to do waits awake for [`LINGER`] before it sleeps, and yields to others meanwhile: the
//!   next run has its help at once, as waking a thread takes a good part of a short text's time.
//! - Between the stages of a long run, its thread runs [short calls](MAX_SHORT_TOKENS) that wait, up to as many tokens as
//!   the run itself has: a short text does not wait for a long one to end.
//! - Calls that were cancelled, or whose deadline has passed, do not start; a run whose calls were all cancelled
//!   ends after its stage.
//! - A panicking task fails its run, and the threads continue.

use std::{
    collections::VecDeque,
    hint,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use kivu_engine::{
    kernel::InstructionSet,
    run::{Run, Scratch, Text, Values},
};
use tokio::{sync::oneshot, task};

use super::model::{NativeModel, TextOutputs};
use crate::{backend::Deadline, observer::QueuedBatch};
use kivu_base::{Error, Result, locked};

/// Calls with fewer tokens are combined, so that their texts share weight reads.
pub const MIN_CALL_TOKENS: usize = 96;
/// A run takes calls until it has this many tokens: enough to read the weights rarely, and few enough that a short call
/// does not wait long for other calls in its run.
const RUN_TOKENS: usize = 192;
/// Calls with at most this many tokens overtake calls with at least [`RUN_TOKENS`].
const MAX_SHORT_TOKENS: usize = 48;
/// Runs with fewer tokens are not worth waking a thread that helps.
const MIN_SHARED_TOKENS: usize = 12;
/// The same if a thread is awake.
const MIN_EASILY_SHARED_TOKENS: usize = 6;
/// How long threads wait awake after a run. A client that sends one request after another returns earlier.
const LINGER: Duration = Duration::from_micros(400);
/// Calls with at least this many tokens are led by a woken thread rather than by a thread that serves connections.
const MIN_LED_TOKENS: usize = 24;
/// Products for which a thread that serves connections may be busy: a few milliseconds.
const MAX_BRIEF_PRODUCTS: usize = 1 << 30;
/// Spin iterations before a waiting thread yields.
const SPINS: usize = 2_000;

/// Outputs per text.
pub type Outputs = Vec<TextOutputs>;

/// Threads that run one model. They end once this value is dropped.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    model: NativeModel,
    threads: NonZeroUsize,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Number of calls in the queue.
    waiting: AtomicUsize,
    /// Number of runs that idle threads can help with.
    open: AtomicUsize,
    /// Number of calls that are not in the queue yet.
    arriving: AtomicUsize,
    /// Buffers from earlier runs, for reuse.
    memory: Mutex<Vec<Values>>,
    /// Buffers of callers that have led runs, for reuse.
    scratch: Mutex<Vec<Scratch>>,
}

#[derive(Debug, Default)]
struct Queue {
    calls: VecDeque<Call>,
    /// The runs that idle threads can help with.
    teams: Vec<Arc<Team>>,
    idle: usize,
    /// Idle threads that are awake.
    lingering: usize,
    /// Callers that lead runs, each in place of an idle thread.
    leading_callers: usize,
    is_closed: bool,
}

impl Queue {
    /// Idle threads that runs may use.
    fn free(&self) -> usize {
        self.idle.saturating_sub(self.leading_callers)
    }
}

/// One caller's texts.
#[derive(Debug)]
struct Call {
    texts: Vec<Text>,
    deadline: Deadline,
    queued: QueuedBatch,
    outputs: oneshot::Sender<Result<Outputs>>,
}

impl Call {
    fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens.len()).sum()
    }

    fn is_wanted(&self) -> bool {
        !self.outputs.is_closed() && !self.deadline.has_passed()
    }
}

/// A run, and its progress.
#[derive(Debug)]
struct Team {
    run: Run,
    stages: Vec<Progress>,
    has_stopped: AtomicBool,
}

/// Progress through a stage's tasks.
#[derive(Debug)]
struct Progress {
    tasks: usize,
    next: AtomicUsize,
    done: AtomicUsize,
}

impl Workers {
    pub fn start(model: NativeModel, threads: NonZeroUsize) -> Result<Self> {
        // If a thread cannot be started, this value's end stops those before it.
        let workers = Self {
            shared: Arc::new(Shared::new(model, threads)),
        };
        for number in 0..threads.get() {
            let shared = Arc::clone(&workers.shared);
            thread::Builder::new()
                .name(format!("native-{number}"))
                .spawn(move || shared.work())
                .map_err(Error::io("cannot start a thread for the native engine"))?;
        }
        Ok(workers)
    }

    pub fn model(&self) -> &NativeModel {
        &self.shared.model
    }

    /// Runs the model on texts.
    pub async fn run(&self, texts: Vec<Text>, deadline: Deadline) -> Result<Outputs> {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let (outputs, received) = oneshot::channel();
        let call = Call {
            texts,
            deadline,
            queued: QueuedBatch::new(),
            outputs,
        };
        let arrival = Arrival::of(&self.shared.arriving);
        if self.shared.is_brief(&call) {
            // A task may have several calls: each one arrives before the first one runs on their common thread.
            task::yield_now().await;
        }
        self.shared.begin(call);
        drop(arrival);
        let gone = || Err(Error::inference("the model run failed"));
        deadline
            .bound(async { received.await.unwrap_or_else(|_| gone()) })
            .await
    }
}

/// Counts a call while it arrives, also if its caller leaves.
struct Arrival<'a>(&'a AtomicUsize);

impl<'a> Arrival<'a> {
    fn of(arriving: &'a AtomicUsize) -> Self {
        arriving.fetch_add(1, Ordering::Relaxed);
        Self(arriving)
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn new(model: NativeModel, threads: NonZeroUsize) -> Self {
        Self {
            model,
            threads,
            queue: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            arriving: AtomicUsize::new(0),
            memory: Mutex::default(),
            scratch: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    /// Runs a brief call on this thread if another one would be woken to lead it, and queues all others.
    fn begin(&self, call: Call) {
        let mut queue = self.lock();
        let is_alone = self.arriving.load(Ordering::Relaxed) <= 1 && queue.calls.is_empty();
        if is_alone && self.is_brief(&call) && queue.free() > 0 {
            queue.leading_callers += 1;
            drop(queue);
            let kept = || locked(&self.scratch);
            let mut scratch = kept().pop().unwrap_or_default();
            self.lead(vec![call], &mut scratch);
            kept().push(scratch);
            self.lock().leading_callers -= 1;
        } else {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            queue.calls.push_back(call);
            let is_seen = queue.calls.len() <= queue.lingering;
            drop(queue);
            if !is_seen {
                self.changed.notify_one();
            }
        }
    }

    /// Whether a call is not worth a thread switch.
    fn is_brief(&self, call: &Call) -> bool {
        let tokens = call.tokens();
        tokens < MIN_LED_TOKENS && tokens * self.model.token_products() <= MAX_BRIEF_PRODUCTS
    }

    /// Executes runs until the queue is closed and empty.
    fn work(&self) {
        let mut scratch = Scratch::default();
        // Threads that were busy linger.
        let (mut was_busy, mut has_place) = (false, true);
        let mut queue = self.lock();
        loop {
            if let Some(calls) = self.next_calls(&mut queue) {
                drop(queue);
                self.lead(calls, &mut scratch);
                queue = self.lock();
                (was_busy, has_place) = (true, true);
            } else if has_place && let Some(team) = queue.teams.pop() {
                // Kept for the other idle threads.
                queue.teams.insert(0, Arc::clone(&team));
                drop(queue);
                self.take_part(&team, &mut scratch, |_| {
                    self.waiting.load(Ordering::Relaxed) > 0
                });
                queue = self.lock();
                // All its tasks are taken, or calls are waiting; the leading thread finishes the run.
                self.close(&mut queue, &team);
                self.recycle(team);
                was_busy = true;
            } else if queue.is_closed {
                return;
            } else {
                queue.idle += 1;
                if was_busy && self.threads > NonZeroUsize::MIN {
                    queue.lingering += 1;
                    drop(queue);
                    self.linger();
                    queue = self.lock();
                    queue.lingering -= 1;
                    // A caller that leads has the place of an idle thread.
                    has_place = queue.free() > 0;
                } else {
                    queue = self
                        .changed
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner);
                    has_place = true;
                }
                was_busy = false;
                queue.idle -= 1;
            }
        }
    }

    /// Waits for calls, or for a run to help with.
    fn linger(&self) {
        let end = Instant::now() + LINGER;
        let is_needed =
            || self.waiting.load(Ordering::Relaxed) + self.open.load(Ordering::Relaxed) > 0;
        while !is_needed() && Instant::now() < end {
            thread::yield_now();
        }
    }

    /// Ends help for a run.
    fn close(&self, queue: &mut Queue, team: &Arc<Team>) {
        queue.teams.retain(|other| !Arc::ptr_eq(other, team));
        self.open.store(queue.teams.len(), Ordering::Relaxed);
    }

    /// Calls for the next run, if any wait.
    fn next_calls(&self, queue: &mut Queue) -> Option<Vec<Call>> {
        let mut calls: Vec<Call> = Vec::new();
        let mut tokens = 0;
        while let Some(call) = queue.calls.front() {
            if !calls.is_empty() && tokens + call.tokens() > RUN_TOKENS {
                break;
            }
            tokens += call.tokens();
            calls.extend(queue.calls.pop_front());
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        (!calls.is_empty()).then_some(calls)
    }

    /// Takes short calls with at most `left` tokens to run between two stages, if any are waiting, and subtracts
    /// their tokens from `left`.
    fn short_calls(&self, left: &mut usize) -> Option<Vec<Call>> {
        if *left == 0 || self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (mut calls, mut tokens) = (Vec::new(), 0);
        let mut queue = self.lock();
        let mut index = 0;
        while let Some(call) = queue.calls.get(index) {
            let with_call = tokens + call.tokens();
            if call.tokens() > MAX_SHORT_TOKENS || with_call > RUN_TOKENS.min(*left) {
                index += 1;
                continue;
            }
            tokens = with_call;
            calls.extend(queue.calls.remove(index));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        *left -= tokens;
        (!calls.is_empty()).then_some(calls)
    }

    /// Number of threads that help with a run.
    fn helpers(&self, tokens: usize) -> usize {
        let queue = self.lock();
        match tokens {
            MIN_SHARED_TOKENS.. => queue.free(),
            MIN_EASILY_SHARED_TOKENS.. => queue.free().min(queue.lingering),
            _ => 0,
        }
    }

    /// Runs calls together and returns their outputs.
    fn lead(&self, mut calls: Vec<Call>, scratch: &mut Scratch) {
        for call in calls.extract_if(.., |call| !call.is_wanted()) {
            // Fails if the caller has dropped the receiver.
            let _ = call.outputs.send(Err(call.deadline.exceeded()));
        }
        if calls.is_empty() {
            return;
        }
        calls.iter().for_each(|call| call.queued.begin());
        let memory = locked(&self.memory).pop().unwrap_or_default();
        let texts = calls.iter().flat_map(|call| &call.texts);
        let tokens = calls.iter().map(Call::tokens).sum();
        let helpers = self.helpers(tokens);
        let threads = NonZeroUsize::MIN.saturating_add(helpers);
        let run = self.model.program.pack(texts, threads, memory);
        let progress = |stage| Progress {
            tasks: run.tasks(stage),
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        };
        let stages = self.model.program.stages.iter().map(progress).collect();
        let team = Arc::new(Team {
            run,
            stages,
            has_stopped: AtomicBool::new(false),
        });
        if threads > NonZeroUsize::MIN {
            let mut queue = self.lock();
            queue.teams.push(Arc::clone(&team));
            self.open.store(queue.teams.len(), Ordering::Relaxed);
            let asleep = helpers.saturating_sub(queue.lingering);
            drop(queue);
            // A caller that leads keeps one thread asleep, whose place it has.
            (0..asleep).for_each(|_| self.changed.notify_one());
        }
        let is_long = calls.iter().any(|call| call.tokens() >= RUN_TOKENS);
        let mut left = if is_long { tokens } else { 0 };
        self.take_part(&team, scratch, |scratch| {
            if !calls.iter().any(Call::is_wanted) {
                team.has_stopped.store(true, Ordering::Relaxed);
            }
            if let Some(short) = self.short_calls(&mut left) {
                self.lead(short, scratch);
            }
            false
        });
        self.close(&mut self.lock(), &team);
        let has_stopped = team.has_stopped.load(Ordering::Relaxed);
        let mut text = 0;
        for Call {
            texts,
            deadline,
            outputs,
            ..
        } in calls
        {
            let output = match has_stopped {
                true if deadline.has_passed() => Err(deadline.exceeded()),
                true => Err(Error::inference("the model run panicked")),
                false => Ok((text..text + texts.len())
                    .map(|text| team.run.outputs(&self.model.program, text))
                    .collect()),
            };
            text += texts.len();
            // Fails if the caller has dropped the receiver.
            let _ = outputs.send(output);
        }
        self.recycle(team);
    }

    /// Executes a run's tasks until none is left, it has stopped, or `leaves` returns `true` between two stages.
    fn take_part(
        &self,
        team: &Team,
        scratch: &mut Scratch,
        mut leaves: impl FnMut(&mut Scratch) -> bool,
    ) {
        let last = team.stages.len().saturating_sub(1);
        let instructions = InstructionSet::current();
        for (index, (progress, stage)) in team
            .stages
            .iter()
            .zip(&self.model.program.stages)
            .enumerate()
        {
            loop {
                let task = progress.next.fetch_add(1, Ordering::Relaxed);
                if task >= progress.tasks {
                    break;
                }
                let execute = || {
                    team.run
                        .execute(&self.model.program, instructions, stage, task, scratch)
                };
                if catch_unwind(AssertUnwindSafe(execute)).is_err() {
                    team.has_stopped.store(true, Ordering::Relaxed);
                }
                progress.done.fetch_add(1, Ordering::Release);
            }
            // The next stage reads results from all tasks in this one.
            let mut spins = 0;
            while progress.done.load(Ordering::Acquire) < progress.tasks {
                spins += 1;
                if spins < SPINS {
                    hint::spin_loop()
                } else {
                    thread::yield_now()
                }
            }
            if index < last && leaves(scratch) || team.has_stopped.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Keeps a run's memory for the next one, once no other thread uses it.
    fn recycle(&self, team: Arc<Team>) {
        if let Some(team) = Arc::into_inner(team) {
            locked(&self.memory).push(team.run.into_values());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kivu_engine::{
        program::{Index, Limits, Per, Program, RowOperation, RowStage, Stage, Table, Value},
        run::Token,
    };

    use super::*;

    const WIDTH: usize = 16;

    /// A model with two stages, which return each token's table row.
    fn model() -> NativeModel {
        let table: Vec<f32> = (0..WIDTH).map(|value| value as f32).collect();
        let stage = |out| {
            let table = Table::Fp32(table.clone().into());
            let lookup = RowOperation::Lookup {
                table,
                index: Index::Id,
                out,
            };
            Stage::Rows(RowStage {
                per: Per::Token,
                loads: Vec::new(),
                operations: vec![lookup],
                stores: vec![out],
            })
        };
        NativeModel::of(Program {
            values: (0..2)
                .map(|slot| Value {
                    per: Per::Token,
                    width: WIDTH,
                    slot,
                })
                .collect(),
            rotaries: Vec::new(),
            slots: 2,
            stages: vec![stage(0), stage(1)],
            outputs: vec![1],
            limits: Limits {
                ids: 1,
                types: 1,
                positions: 1,
                length: 512,
            },
            padding: None,
        })
    }

    fn call(tokens: usize) -> (Call, oneshot::Receiver<Result<Outputs>>) {
        let token = Token {
            id: 0,
            type_id: 0,
            position: 0,
        };
        let texts = vec![Text {
            tokens: vec![token; tokens],
            attended: tokens,
            labels: Arc::default(),
        }];
        let (outputs, received) = oneshot::channel();
        let deadline = Deadline::within(Duration::from_secs(3600));
        (
            Call {
                texts,
                deadline,
                queued: QueuedBatch::default(),
                outputs,
            },
            received,
        )
    }

    fn add(shared: &Shared, tokens: usize) -> oneshot::Receiver<Result<Outputs>> {
        let (call, received) = call(tokens);
        shared.lock().calls.push_back(call);
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        received
    }

    /// Leads the next run; returns for each call whether it has its outputs afterwards.
    fn led<const N: usize>(shared: &Shared, calls: [usize; N]) -> [bool; N] {
        let mut received = calls.map(|tokens| add(shared, tokens));
        let next = shared.next_calls(&mut shared.lock()).unwrap();
        shared.lead(next, &mut Scratch::default());
        let done = std::array::from_fn(|call| match received[call].try_recv() {
            Ok(outputs) => outputs.unwrap()[0][0].len() == calls[call] * WIDTH,
            Err(_) => false,
        });
        shared.lock().calls.clear();
        shared.waiting.store(0, Ordering::Relaxed);
        done
    }

    #[test]
    fn short_calls_overtake_long_runs_within_bounds() {
        let shared = Shared::new(model(), NonZeroUsize::MIN);
        let short = MAX_SHORT_TOKENS;
        assert_eq!(led(&shared, [RUN_TOKENS, 5]), [true, true]);
        // Not taken: other long calls, calls just above the limit, and any calls during a short run.
        assert_eq!(
            led(&shared, [400, 400, short + 1, short]),
            [true, false, false, true]
        );
        assert_eq!(led(&shared, [100, 100, 5]), [true, false, false]);
        // Short calls are taken up to the run's own token count.
        let calls = [RUN_TOKENS, short, short, short, short, 1];
        assert_eq!(led(&shared, calls), [true, true, true, true, true, false]);
    }

    #[test]
    fn brief_calls_run_on_their_callers_thread_if_a_thread_is_idle() {
        let begun = |idle, leading_callers, queued: usize, tokens| {
            let shared = Shared::new(model(), NonZeroUsize::MIN);
            *shared.lock() = Queue {
                idle,
                leading_callers,
                ..Queue::default()
            };
            let _queued: Vec<_> = (0..queued).map(|_| add(&shared, 1)).collect();
            let (call, mut received) = call(tokens);
            shared.begin(call);
            let waiting = shared.lock().calls.len() - queued;
            assert_eq!(shared.lock().leading_callers, leading_callers);
            let is_done = received.try_recv().is_ok_and(|outputs| outputs.is_ok());
            assert_eq!(waiting, usize::from(!is_done));
            is_done
        };
        assert!(begun(1, 0, 0, MIN_LED_TOKENS - 1));
        assert!(begun(2, 1, 0, 1));
        assert!(!begun(1, 0, 0, MIN_LED_TOKENS), "it is not brief");
        assert!(!begun(0, 0, 0, 1), "no thread is idle");
        assert!(
            !begun(1, 1, 0, 1),
            "another caller has the idle thread's place"
        );
        assert!(!begun(1, 0, 1, 1), "others were first");
    }

    /// Pauses are shorter or longer than threads linger.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn every_call_finds_a_thread_awake_or_asleep() {
        const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
        let workers = Workers::start(model(), THREADS).unwrap();
        let client = async |seed: usize| {
            for number in 0..300 {
                thread::sleep(LINGER * ((number * 7 + seed) % 5) as u32 / 3);
                let tokens = 1 + (number * 5 + seed) % (2 * MIN_LED_TOKENS);
                let (call, _) = call(tokens);
                let outputs = workers
                    .run(call.texts, Deadline::within(Duration::from_secs(30)))
                    .await;
                assert_eq!(outputs.unwrap()[0][0].len(), tokens * WIDTH);
            }
        };
        tokio::join!(client(0), client(1), client(2));
        let (shared, began) = (&workers.shared, Instant::now());
        let are_asleep = || {
            let queue = shared.lock();
            queue.idle == THREADS.get() && queue.lingering == 0
        };
        while !are_asleep() {
            assert!(began.elapsed() < Duration::from_secs(30), "{shared:?}");
            thread::yield_now();
        }
        assert_eq!(
            shared.open.load(Ordering::Relaxed) + shared.waiting.load(Ordering::Relaxed),
            0
        );
    }

    /// Whether any of a model's threads stays awake after a run.
    async fn linger_after_a_run(threads: usize) -> bool {
        let workers = Workers::start(model(), NonZeroUsize::new(threads).unwrap()).unwrap();
        let (began, mut lingered) = (Instant::now(), false);
        for _ in 0..20 {
            // Not brief: a thread leads it.
            let (call, _) = call(MIN_LED_TOKENS);
            workers
                .run(call.texts, Deadline::within(Duration::from_secs(30)))
                .await
                .unwrap();
            loop {
                let (idle, lingering) = {
                    let queue = workers.shared.lock();
                    (queue.idle, queue.lingering)
                };
                lingered |= lingering > 0;
                if idle == threads && lingering == 0 {
                    break;
                }
                assert!(
                    began.elapsed() < Duration::from_secs(30),
                    "{:?}",
                    workers.shared
                );
                thread::yield_now();
            }
        }
        lingered
    }

    #[tokio::test]
    async fn one_of_several_threads_stays_awake_after_a_run() {
        assert!(linger_after_a_run(2).await);
        assert!(!linger_after_a_run(1).await, "nobody would be helped");
    }

    #[test]
    fn threads_that_are_awake_help_with_shorter_runs() {
        let helped = |idle, lingering, tokens| {
            let shared = Shared::new(model(), NonZeroUsize::MIN);
            *shared.lock() = Queue {
                idle,
                lingering,
                ..Queue::default()
            };
            shared.helpers(tokens)
        };
        assert_eq!(helped(1, 0, MIN_SHARED_TOKENS - 1), 0);
        assert_eq!(helped(1, 0, MIN_SHARED_TOKENS), 1);
        assert_eq!(helped(3, 1, MIN_EASILY_SHARED_TOKENS), 1);
        assert_eq!(helped(3, 1, MIN_EASILY_SHARED_TOKENS - 1), 0);
        assert_eq!(helped(3, 1, MIN_SHARED_TOKENS), 3);
    }

    /// Calls of one task would otherwise run one after another on its thread.
    #[tokio::test]
    async fn calls_that_arrive_together_are_queued() {
        let workers = Workers {
            shared: Arc::new(Shared::new(model(), NonZeroUsize::MIN)),
        };
        workers.shared.lock().idle = 1;
        let token = Token {
            id: 0,
            type_id: 0,
            position: 0,
        };
        let text = || {
            vec![Text {
                tokens: vec![token],
                attended: 1,
                labels: Arc::default(),
            }]
        };
        let deadline = Deadline::within(Duration::from_secs(3600));
        workers.run(text(), deadline).await.unwrap();
        let together =
            async { futures::join!(workers.run(text(), deadline), workers.run(text(), deadline)) };
        let lead = async {
            while workers.shared.lock().calls.len() < 2 {
                task::yield_now().await;
            }
            let next = workers
                .shared
                .next_calls(&mut workers.shared.lock())
                .unwrap();
            assert_eq!(next.len(), 2);
            workers.shared.lead(next, &mut Scratch::default());
        };
        let ((one, other), ()) = futures::join!(together, lead);
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(workers.shared.arriving.load(Ordering::Relaxed), 0);
    }
}
