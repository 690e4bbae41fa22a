//! A circuit breaker for one server: opens after repeated failures, and closes again after a successful probe.

use std::time::{Duration, Instant};

/// Consecutive failures that open the breaker.
const MAX_FAILURES: u32 = 3;
/// The first pause; each failed probe doubles it.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// A probe without a result counts as lost after this time.
const PROBE_EXPIRY: Duration = Duration::from_secs(10);

/// A server's health. All methods take the current time, so that tests control it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// Requests are sent. `failures` counts the consecutive ones.
    Closed { failures: u32 },
    /// No requests are sent before `until`.
    Open { until: Instant, pause: Duration },
    /// A single probe is under way.
    Probing { since: Instant, pause: Duration },
}

/// Whether a request may be sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Yes,
    /// Only a probe.
    Probe,
    No,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl Breaker {
    pub fn admission(self, now: Instant) -> Admission {
        match self {
            Self::Closed { .. } => Admission::Yes,
            Self::Open { until, .. } if now >= until => Admission::Probe,
            Self::Probing { since, .. } if now >= since + PROBE_EXPIRY => Admission::Probe,
            Self::Open { .. } | Self::Probing { .. } => Admission::No,
        }
    }

    pub fn is_closed(self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Records a probe's start.
    pub fn probe(&mut self, now: Instant) {
        if let Self::Open { pause, .. } | Self::Probing { pause, .. } = *self {
            *self = Self::Probing { since: now, pause };
        }
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub fn failed(&mut self, now: Instant) {
        let open = |pause: Duration| Self::Open {
            until: now + pause,
            pause,
        };
        *self = match *self {
            Self::Closed { failures } if failures + 1 < MAX_FAILURES => Self::Closed {
                failures: failures + 1,
            },
            Self::Closed { .. } => open(MIN_PAUSE),
            Self::Probing { pause, .. } => open((pause * 2).min(MAX_PAUSE)),
            // Requests that were under way when it opened fail too, and must not prolong the pause.
            still @ Self::Open { .. } => still,
        };
    }

    /// Opens at once.
    pub fn open(&mut self, now: Instant) {
        if self.is_closed() {
            *self = Self::Closed {
                failures: MAX_FAILURES,
            };
        }
        self.failed(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_open_the_breaker_and_one_success_closes_it() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.failed(start);
        breaker.failed(start);
        breaker.succeeded();
        (0..2).for_each(|_| breaker.failed(start));
        assert_eq!(
            breaker.admission(start),
            Admission::Yes,
            "a success resets the count"
        );
        (0..5).for_each(|_| breaker.failed(start));
        assert_eq!(breaker.admission(start), Admission::No);
        let later = start + MIN_PAUSE;
        assert_eq!(breaker.admission(later), Admission::Probe);
        breaker.probe(later);
        assert_eq!(
            breaker.admission(later),
            Admission::No,
            "one probe at a time"
        );
        assert_eq!(
            breaker.admission(later + PROBE_EXPIRY),
            Admission::Probe,
            "a lost probe expires"
        );
        breaker.failed(later);
        assert_eq!(
            breaker.admission(later + MIN_PAUSE),
            Admission::No,
            "the pause doubles"
        );
        assert_eq!(breaker.admission(later + 2 * MIN_PAUSE), Admission::Probe);
        breaker.probe(later + 2 * MIN_PAUSE);
        breaker.succeeded();
        assert_eq!(breaker.admission(later), Admission::Yes);
    }

    #[test]
    fn pauses_are_bounded() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| breaker.failed(now));
        for _ in 0..20 {
            now += MAX_PAUSE;
            assert_eq!(breaker.admission(now), Admission::Probe);
            breaker.probe(now);
            breaker.failed(now);
        }
    }
}
