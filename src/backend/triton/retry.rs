//! How often and how soon a request is tried again.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

/// Tries at one request, the first included.
pub(super) const MOST_TRIES: usize = 4;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The pause before try number `tries` + 1, with full jitter: anything up to a bound that doubles. `fraction`
/// says how much of it, from 0 to 1.
pub(super) fn pause(tries: usize, fraction: f64) -> Duration {
    let doublings = u32::try_from(tries.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    (SHORTEST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE).mul_f64(fraction)
}

/// A number from 0 to 1. Chance is all that is asked of it, so what seeds the hash maps will do.
pub(super) fn random_fraction() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    random as f64 / u64::MAX as f64
}

/// Bounds retries to a share of the requests, so that a fleet that is down is not asked a multiple of what
/// brought it down.
#[derive(Debug)]
pub(super) struct Budget {
    hundredths: AtomicI64,
}

/// One retry.
const RETRY: i64 = 100;
/// What a request adds: a fifth of a retry.
const EARNED: i64 = 20;
/// Retries that can be saved up: enough for all that is under way at a server that goes down.
const MOST_SAVED: i64 = 128 * RETRY;

impl Default for Budget {
    fn default() -> Self {
        Self { hundredths: AtomicI64::new(MOST_SAVED) }
    }
}

impl Budget {
    /// For each request.
    pub(super) fn earn(&self) {
        let add = |saved: i64| Some((saved + EARNED).min(MOST_SAVED));
        // It always adds.
        let _ = self.hundredths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// For each retry: whether there may be one.
    pub(super) fn spend(&self) -> bool {
        let take = |saved: i64| (saved >= RETRY).then_some(saved - RETRY);
        self.hundredths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_jittered() {
        let most: Vec<u128> = (1..9).map(|tries| pause(tries, 1.0).as_millis()).collect();
        assert_eq!(most, [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pause(3, 0.0), Duration::ZERO);
        assert_eq!(pause(usize::MAX, 0.5), LONGEST_PAUSE / 2);
        let fractions: Vec<f64> = (0..50).map(|_| random_fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
        assert!(fractions.iter().any(|fraction| *fraction != fractions[0]));
    }

    #[test]
    fn the_budget_runs_out_and_comes_back_with_requests() {
        let budget = Budget::default();
        let retries = (0..1000).filter(|_| budget.spend()).count();
        assert_eq!(retries, 128);
        (0..10).for_each(|_| budget.earn());
        assert_eq!((0..10).filter(|_| budget.spend()).count(), 2);
    }
}
