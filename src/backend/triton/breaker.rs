//! Stops asking an address that does not answer, and asks again now and then.

use std::time::{Duration, Instant};

/// Failures in a row after which an address is left alone.
const MOST_FAILURES: u32 = 3;
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A probe of which nothing is heard for so long is taken for lost.
const LONGEST_PROBE: Duration = Duration::from_secs(10);

/// What is known of an address's health. Time is passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaker {
    /// It answers, but for so many failures in a row.
    Closed { failures: u32 },
    /// It is left alone until then.
    Open { until: Instant, pause: Duration },
    /// One request finds out how it is.
    Probing { since: Instant, pause: Duration },
}

/// Whether an address may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Yes,
    /// By one request, which finds out how it is.
    Probe,
    No,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl Breaker {
    pub(super) fn admission(self, now: Instant) -> Admission {
        match self {
            Self::Closed { .. } => Admission::Yes,
            Self::Open { until, .. } if now >= until => Admission::Probe,
            Self::Probing { since, .. } if now >= since + LONGEST_PROBE => Admission::Probe,
            Self::Open { .. } | Self::Probing { .. } => Admission::No,
        }
    }

    /// Whether requests are kept away.
    pub(super) fn is_open(self) -> bool {
        !matches!(self, Self::Closed { .. })
    }

    /// Begins a probe.
    pub(super) fn probe(&mut self, now: Instant) {
        if let Self::Open { pause, .. } | Self::Probing { pause, .. } = *self {
            *self = Self::Probing { since: now, pause };
        }
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, now: Instant) {
        let open = |pause: Duration| Self::Open { until: now + pause, pause };
        *self = match *self {
            Self::Closed { failures } if failures + 1 < MOST_FAILURES => {
                Self::Closed { failures: failures + 1 }
            }
            Self::Closed { .. } => open(SHORTEST_PAUSE),
            Self::Probing { pause, .. } => open((pause * 2).min(LONGEST_PAUSE)),
            // What was under way when it opened fails as well; that is no news.
            still @ Self::Open { .. } => still,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_open_it_and_one_success_closes_it() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.failed(start);
        breaker.failed(start);
        breaker.succeeded();
        (0..2).for_each(|_| breaker.failed(start));
        assert_eq!(breaker.admission(start), Admission::Yes, "a success starts the count again");
        (0..5).for_each(|_| breaker.failed(start));
        assert_eq!(breaker.admission(start), Admission::No);
        let later = start + SHORTEST_PAUSE;
        assert_eq!(breaker.admission(later), Admission::Probe);
        breaker.probe(later);
        assert_eq!(breaker.admission(later), Admission::No, "one probe at a time");
        assert_eq!(
            breaker.admission(later + LONGEST_PROBE),
            Admission::Probe,
            "a lost probe is not waited for"
        );
        breaker.failed(later);
        assert_eq!(breaker.admission(later + SHORTEST_PAUSE), Admission::No, "it pauses longer each time");
        assert_eq!(breaker.admission(later + 2 * SHORTEST_PAUSE), Admission::Probe);
        breaker.probe(later + 2 * SHORTEST_PAUSE);
        breaker.succeeded();
        assert_eq!(breaker.admission(later), Admission::Yes);
    }

    #[test]
    fn pauses_are_bounded() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| breaker.failed(now));
        for _ in 0..20 {
            now += LONGEST_PAUSE;
            assert_eq!(breaker.admission(now), Admission::Probe);
            breaker.probe(now);
            breaker.failed(now);
        }
    }
}
