//! Requests to a fleet: each tried until it succeeds, cannot be mended, or its time is over.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, FutureExt, TryFutureExt, select_ok};
use tokio::time::{sleep, timeout};

use super::{
    failure::{Failure, Kind},
    pool::Pool,
    retry::{Budget, MOST_TRIES, pause, random_fraction},
    transport::{Call, Description, Target, Transport},
    visit::Visit,
};
use crate::{
    backend::{Deadline, speed::Speed},
    error::{Error, Result},
    telemetry,
    tensor::Tensor,
};

/// What is left of a request's time for sending the answer on.
const MARGIN: Duration = Duration::from_millis(10);
/// A try that has less than this left is not begun.
const SHORTEST_TRY: Duration = Duration::from_millis(1);
/// A try is given up for another after so many times what such requests take, but not sooner than this.
const PATIENCE: u32 = 10;
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// Requests that a hedge's delay is learnt from.
const LATENCIES: usize = 128;
/// Of a hundred requests, so many are answered before a hedge is sent.
const HEDGED_PERCENTILE: usize = 95;
const SOONEST_HEDGE: Duration = Duration::from_millis(2);

/// Speaks to the servers of a fleet about one model.
pub(super) struct Client {
    target: Target,
    pool: Arc<Pool>,
    budget: Budget,
    speed: Speed,
    latencies: Mutex<VecDeque<Duration>>,
    hedges: bool,
    is_doubtful: AtomicBool,
}

type Attempt<T> = Result<T, Failure>;

impl Client {
    pub(super) fn new(target: Target, pool: Arc<Pool>, hedges: bool) -> Self {
        Self {
            target,
            pool,
            budget: Budget::default(),
            // Only for how long a try may take; nothing is assumed before something is known.
            speed: Speed::assumed(Duration::ZERO, Duration::ZERO),
            latencies: Mutex::default(),
            hedges,
            is_doubtful: AtomicBool::new(false),
        }
    }

    pub(super) fn model(&self) -> &str {
        &self.target.model
    }

    /// Whether some server may be asked now, as far as is known.
    pub(super) fn is_available(&self) -> bool {
        self.pool.is_available(&self.target)
    }

    pub(super) fn disconnect(&self) {
        self.pool.disconnect();
    }

    /// Whether the servers may have another model than was described, ever since this was last asked.
    pub(super) fn take_doubt(&self) -> bool {
        self.is_doubtful.swap(false, Ordering::AcqRel)
    }

    pub(super) async fn describe(&self, deadline: Deadline) -> Result<Description> {
        let target = &self.target;
        let ask =
            |transport: Arc<Transport>, _: Duration| async move { transport.describe(target).await }.boxed();
        self.try_until(deadline, 1, false, ask).await
    }

    /// Runs the model on tensors of so many tokens.
    pub(super) async fn infer(&self, call: &Call, tokens: usize, deadline: Deadline) -> Result<Vec<Tensor>> {
        let target = &self.target;
        let ask = |transport: Arc<Transport>, time: Duration| {
            async move { transport.infer(target, call, time).await }.boxed()
        };
        let started = Instant::now();
        let is_single = call.inputs.iter().all(|input| input.shape.first() == Some(&1));
        let tensors = self.try_until(deadline, tokens, self.hedges && is_single, ask).await?;
        self.speed.learn(tokens, started.elapsed());
        Ok(tensors)
    }

    async fn try_until<'a, T: Send>(
        &'a self,
        deadline: Deadline,
        tokens: usize,
        hedges: bool,
        ask: impl Fn(Arc<Transport>, Duration) -> BoxFuture<'a, Attempt<T>> + Sync,
    ) -> Result<T> {
        self.budget.earn();
        let mut tried: Vec<SocketAddr> = Vec::new();
        let mut tries = 0;
        let mut told: Option<Failure> = None;
        loop {
            let left = deadline.remaining().saturating_sub(MARGIN);
            if left < SHORTEST_TRY {
                return Err(deadline.exceeded());
            }
            let time = self.time_for_try(tokens, tries, left);
            tries += 1;
            let attempt = self.attempt(&mut tried, time, hedges, &ask).await;
            let failure = match attempt {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // That no address is left to be asked says less than why.
            let failure = match told.take() {
                Some(told) if failure.kind == Kind::Unreachable => told,
                _ => failure,
            };
            tracing::debug!(model = self.model(), %failure, tries, "a try at the fleet failed");
            if failure.kind.doubts_the_signature() {
                self.is_doubtful.store(true, Ordering::Release);
            }
            let pause = self.pause_after(&failure, tries, &tried);
            let left = deadline.remaining().saturating_sub(MARGIN + SHORTEST_TRY);
            match pause.filter(|pause| *pause < left) {
                Some(pause) => {
                    told = Some(failure);
                    sleep(pause).await;
                }
                None if left.is_zero() => return Err(deadline.exceeded()),
                None => return Err(self.give_up(failure, tries)),
            }
        }
    }

    /// How long to wait before another try; nothing where there should be none.
    fn pause_after(&self, failure: &Failure, tries: usize, tried: &[SocketAddr]) -> Option<Duration> {
        let has_other = self.pool.has_other(tried);
        let is_worth_it = failure.kind.may_pass() || (failure.kind.may_differ_elsewhere() && has_other);
        if tries >= MOST_TRIES || !is_worth_it || !self.budget.spend() {
            return None;
        }
        telemetry::fleet::retried();
        // Another server need not be spared, and a connection that was lost while nobody used it tells nothing.
        let is_first = tries == 1 && (has_other || failure.kind == Kind::Cut);
        Some(if is_first { Duration::ZERO } else { pause(tries, random_fraction()) })
    }

    fn give_up(&self, failure: Failure, tries: usize) -> Error {
        tracing::warn!(model = self.model(), %failure, tries, "the fleet did not answer a request");
        failure.into_error(self.model(), tries)
    }

    /// The last try may take all the time there is. Earlier ones are given up when they take much longer than
    /// such requests do, so that a server that hangs does not cost the request.
    fn time_for_try(&self, tokens: usize, tries: usize, left: Duration) -> Duration {
        if tries + 1 >= MOST_TRIES {
            return left;
        }
        let patience = if self.speed.is_known() {
            (self.speed.estimate(tokens) * PATIENCE).max(LEAST_PATIENCE)
        } else {
            (left / 2).max(LEAST_PATIENCE)
        };
        patience.min(left)
    }

    async fn attempt<'a, T: Send>(
        &'a self,
        tried: &mut Vec<SocketAddr>,
        time: Duration,
        hedges: bool,
        ask: &(impl Fn(Arc<Transport>, Duration) -> BoxFuture<'a, Attempt<T>> + Sync),
    ) -> Attempt<T> {
        let until = Instant::now() + time;
        let visit = timeout(time, self.pool.visit(&self.target, tried));
        let visit = visit.await.unwrap_or_else(|_| Err(Failure::new(Kind::Late)))?;
        tried.push(visit.socket());
        let socket = visit.socket();
        let first = self.run(visit, until, ask).boxed();
        let delay = self.hedge_delay().filter(|_| hedges);
        let Some(delay) = delay.filter(|_| self.pool.has_other(tried)) else { return first.await };
        // The first goes on while a second is under way; whichever succeeds first is the answer.
        let first = first.shared_with_timer(delay).await;
        let first = match first {
            Waited::Done(outcome) => return outcome,
            Waited::Waiting(first) => first,
        };
        let second = self.pool.visit_other(tried).filter(|_| self.budget.spend());
        let Some(second) = second else { return first.await };
        telemetry::fleet::hedged();
        tried.push(second.socket());
        let second = self.run(second, until, ask).map_ok(|answer| (answer, true)).boxed();
        let first = first.map_ok(|answer| (answer, false)).boxed();
        let ((answer, is_second), _) = select_ok([first, second]).await?;
        if is_second {
            telemetry::fleet::hedge_won();
            self.pool.overtaken(socket);
        }
        Ok(answer)
    }

    /// One request to one server, no longer than `until`.
    async fn run<'a, T>(
        &self,
        visit: Visit,
        until: Instant,
        ask: &(impl Fn(Arc<Transport>, Duration) -> BoxFuture<'a, Attempt<T>> + Sync),
    ) -> Attempt<T> {
        let time = until.saturating_duration_since(Instant::now());
        let answer = timeout(time, ask(Arc::clone(&visit.transport), time)).await;
        let outcome = answer.unwrap_or_else(|_| Err(Failure::new(Kind::Late)));
        visit.ended(&outcome);
        if outcome.is_ok() {
            self.remember(visit.elapsed());
        }
        outcome
    }

    /// Remembers how long a try took, from when it was sent: what was waited before a hedge would make the next
    /// one later, and that the one after it.
    fn remember(&self, took: Duration) {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        if latencies.len() == LATENCIES {
            latencies.pop_front();
        }
        latencies.push_back(took);
    }

    /// The time within which nearly all requests are answered; nothing before enough were.
    fn hedge_delay(&self) -> Option<Duration> {
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sorted: Vec<Duration> = latencies.iter().copied().collect();
        drop(latencies);
        if sorted.len() < LATENCIES / 4 {
            return None;
        }
        let place = sorted.len() * HEDGED_PERCENTILE / 100;
        let (_, delay, _) = sorted.select_nth_unstable(place);
        Some((*delay).max(SOONEST_HEDGE))
    }
}

/// What became of a request until a timer went off.
enum Waited<F, T> {
    Done(T),
    Waiting(F),
}

trait SharedWithTimer: Sized {
    type Output;
    /// The outcome if it is there within `delay`; otherwise the future, to be waited for longer.
    async fn shared_with_timer(self, delay: Duration) -> Waited<Self, Self::Output>;
}

impl<F: Future + Unpin> SharedWithTimer for F {
    type Output = F::Output;

    async fn shared_with_timer(mut self, delay: Duration) -> Waited<Self, F::Output> {
        match timeout(delay, &mut self).await {
            Ok(outcome) => Waited::Done(outcome),
            Err(_) => Waited::Waiting(self),
        }
    }
}
