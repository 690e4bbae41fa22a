//! Retries: their number, the pauses between them, and the budget that bounds them.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

/// Attempts for one request, including the first.
pub const MAX_ATTEMPTS: usize = 4;
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The pause after `attempts` failed attempts, with full jitter: `fraction`, from 0 to 1, of a bound that
/// doubles with each attempt.
pub fn pause(attempts: usize, fraction: f64) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(16);
    (MIN_PAUSE * 2_u32.pow(doublings))
        .min(MAX_PAUSE)
        .mul_f64(fraction)
}

/// Limits retries to a share of the requests, so that they do not multiply the load on an overloaded fleet.
#[derive(Debug)]
pub struct RetryBudget {
    /// In hundredths of a retry.
    balance: AtomicI64,
}

const COST_PER_RETRY: i64 = 100;
const EARNED_PER_REQUEST: i64 = 20;
/// 128 retries: enough for the requests under way at a server that stops.
const MAX_BALANCE: i64 = 128 * COST_PER_RETRY;

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            balance: AtomicI64::new(MAX_BALANCE),
        }
    }
}

impl RetryBudget {
    /// Adds a request's share.
    pub fn earn(&self) {
        let add = |balance: i64| Some((balance + EARNED_PER_REQUEST).min(MAX_BALANCE));
        // `fetch_update` cannot fail, since the closure always returns a value.
        let _ = self
            .balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes a retry from the budget; `false` if the budget is spent.
    pub fn spend(&self) -> bool {
        let take = |balance: i64| (balance >= COST_PER_RETRY).then_some(balance - COST_PER_RETRY);
        self.balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_jittered() {
        let longest: Vec<u128> = (1..9)
            .map(|attempts| pause(attempts, 1.0).as_millis())
            .collect();
        assert_eq!(longest, [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pause(3, 0.0), Duration::ZERO);
        assert_eq!(pause(usize::MAX, 0.5), MAX_PAUSE / 2);
    }

    #[test]
    fn requests_refill_the_retry_budget() {
        let budget = RetryBudget::default();
        let retries = (0..1000).filter(|_| budget.spend()).count();
        assert_eq!(retries, 128);
        (0..10).for_each(|_| budget.earn());
        assert_eq!((0..10).filter(|_| budget.spend()).count(), 2);
    }
}
