//! Requests to a fleet for one model, retried until they succeed, fail for good, or reach their deadline.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use tokio::time::{sleep, timeout};

use super::{
    failure::{Attempt, AttemptFailure, FailureKind},
    pool::Pool,
    retry::{MAX_ATTEMPTS, RetryBudget, pause},
    wire::protocol::{Call, Description, KserveClient},
};
use kivu_base::{Result, random, tensor::Tensor};
use kivu_core::backend::{Deadline, speed::Speed};
use kivu_telemetry::fleet::record_retry;

/// Time reserved for sending the response.
const MARGIN: Duration = Duration::from_millis(10);
/// No attempt starts with less time than this.
const MIN_ATTEMPT: Duration = Duration::from_millis(1);
/// All attempts but the last time out after this multiple of the expected duration, and not before the minimum.
const TIMEOUT_FACTOR: u32 = 10;
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

pub struct FleetClient {
    pub model: String,
    pub pool: Arc<Pool>,
    budget: RetryBudget,
    speed: Speed,
    is_signature_stale: AtomicBool,
}

impl FleetClient {
    pub fn new(model: String, pool: Arc<Pool>) -> Self {
        Self {
            model,
            pool,
            budget: RetryBudget::default(),
            // Used only once something was measured.
            speed: Speed::assumed(Duration::ZERO, Duration::ZERO),
            is_signature_stale: AtomicBool::new(false),
        }
    }

    /// Whether the servers may have replaced the model since the last call.
    pub fn take_stale_signature(&self) -> bool {
        self.is_signature_stale.swap(false, Ordering::AcqRel)
    }

    /// Closes all connections, and forgets the endpoints and their speed.
    pub fn disconnect(&self) {
        self.pool.disconnect();
        self.speed.forget();
    }

    pub async fn describe(&self, deadline: Deadline) -> Result<Description> {
        let describe = |client: Arc<dyn KserveClient>, _| -> BoxFuture<'_, _> {
            Box::pin(async move { client.describe().await })
        };
        self.retry(deadline, 1, describe).await
    }

    /// Runs the model on inputs with `tokens` tokens in total.
    pub async fn infer(
        &self,
        call: &Call,
        tokens: usize,
        deadline: Deadline,
    ) -> Result<Vec<Tensor>> {
        let started = Instant::now();
        let infer = |client: Arc<dyn KserveClient>, timeout| -> BoxFuture<'_, _> {
            Box::pin(async move { client.infer(call, timeout).await })
        };
        let outcome = self.retry(deadline, tokens, infer).await;
        // A request without a response would have taken even longer: the next one is given more time.
        if outcome.is_ok() || started.elapsed() >= MIN_TIMEOUT {
            self.speed.learn(tokens, started.elapsed());
        }
        outcome
    }

    async fn retry<'a, T: Send>(
        &'a self,
        deadline: Deadline,
        tokens: usize,
        request: impl Fn(Arc<dyn KserveClient>, Duration) -> BoxFuture<'a, Attempt<T>> + Sync,
    ) -> Result<T> {
        self.budget.earn();
        let mut tried: Vec<SocketAddr> = Vec::new();
        let mut previous: Option<AttemptFailure> = None;
        for attempts in 1.. {
            let left = deadline.remaining().saturating_sub(MARGIN);
            if left < MIN_ATTEMPT {
                break;
            }
            let timeout = self.attempt_timeout(tokens, attempts, left, &tried);
            let failure = match self.attempt(&mut tried, timeout, left, &request).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            // The previous failure is more informative than the lack of another endpoint.
            let failure = match previous.take() {
                Some(previous) if failure.kind == FailureKind::Unreachable => previous,
                _ => failure,
            };
            tracing::debug!(model = self.model, %failure, attempts, "an attempt at the fleet failed");
            if failure.kind.suggests_stale_signature() {
                self.is_signature_stale.store(true, Ordering::Release);
            }
            let pause = self.pause_after(failure.kind, attempts, &tried);
            let left = deadline.remaining().saturating_sub(MARGIN + MIN_ATTEMPT);
            match pause.filter(|pause| *pause < left) {
                Some(pause) => sleep(pause).await,
                None if left.is_zero() => break,
                None => {
                    tracing::warn!(model = self.model, %failure, attempts, "a request to the fleet failed");
                    return Err(failure.into_error(&self.model, attempts));
                }
            }
            previous = Some(failure);
        }
        Err(deadline.exceeded())
    }

    /// The pause before the next attempt, or `None` if there should be none.
    fn pause_after(
        &self,
        kind: FailureKind,
        attempts: usize,
        tried: &[SocketAddr],
    ) -> Option<Duration> {
        let has_other = self.pool.has_other(tried);
        let is_worthwhile = kind.is_transient() || (kind.may_succeed_elsewhere() && has_other);
        if attempts >= MAX_ATTEMPTS || !is_worthwhile || !self.budget.spend() {
            return None;
        }
        record_retry();
        // Another server needs no pause, and a connection may have been lost while it was idle.
        let is_immediate = attempts == 1 && (has_other || kind == FailureKind::ConnectionLost);
        Some(if is_immediate {
            Duration::ZERO
        } else {
            pause(attempts, random::fraction())
        })
    }

    /// The last attempt gets all the time that is left. Earlier ones end when they take much longer than expected,
    /// so that a server that hangs does not use up the request's time; a server that has timed out once gets half of
    /// the time that is left, unless there is another one.
    fn attempt_timeout(
        &self,
        tokens: usize,
        attempts: usize,
        left: Duration,
        tried: &[SocketAddr],
    ) -> Duration {
        if attempts >= MAX_ATTEMPTS {
            return left;
        }
        let expected = self
            .speed
            .is_known()
            .then(|| self.speed.estimate(tokens) * TIMEOUT_FACTOR);
        let expected = expected.filter(|_| attempts == 1 || self.pool.has_other(tried));
        expected.unwrap_or(left / 2).max(MIN_TIMEOUT).min(left)
    }

    /// Sends the request to one server and waits for `time`, a part of the time that is `left`.
    async fn attempt<'a, T: Send>(
        &'a self,
        tried: &mut Vec<SocketAddr>,
        time: Duration,
        left: Duration,
        request: &(impl Fn(Arc<dyn KserveClient>, Duration) -> BoxFuture<'a, Attempt<T>> + Sync),
    ) -> Attempt<T> {
        let until = Instant::now() + time;
        let attempt = timeout(time, self.pool.choose(tried)).await;
        let attempt = attempt.map_err(|_| FailureKind::Timeout)??;
        tried.push(attempt.socket());
        let remaining = until.saturating_duration_since(Instant::now());
        let response = timeout(remaining, request(Arc::clone(&attempt.client), remaining)).await;
        if response.is_err() && time < left && !self.pool.has_other(&[attempt.socket()]) {
            self.pool.check_slow(&attempt, left - time).await;
            return Err(FailureKind::Timeout.into());
        }
        let outcome = response.unwrap_or_else(|_| Err(FailureKind::Timeout.into()));
        attempt.ended(&outcome);
        outcome
    }
}
