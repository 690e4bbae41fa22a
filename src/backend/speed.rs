//! How long work takes somewhere, learnt from the work that was done there.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long work takes: a time for each request and a time for each token, fitted to what was measured.
///
/// - What is measured counts for less as time passes and as more is measured.
/// - Where nothing, or nothing recent, is known, what was assumed counts: a place that was slow once is tried
///   again.
#[derive(Debug)]
pub struct Speed {
    assumed: Line,
    sums: Mutex<Sums>,
}

/// Seconds as a function of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Seconds that any request takes.
    base: f64,
    /// Seconds that a token adds.
    slope: f64,
}

/// What a fit of a line needs of its points.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    measured_at: Option<Instant>,
}

/// What a measurement counts for once another was made.
const FADING: f64 = 0.95;
/// The time after which a measurement counts half.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// The two points that stand for what is assumed, in tokens; they count for little.
const ASSUMED_POINTS: [f64; 2] = [16.0, 2048.0];
const ASSUMED_WEIGHT: f64 = 0.02;

impl Sums {
    fn scaled(self, factor: f64) -> Self {
        let Self { weight, x, y, xx, xy, measured_at } = self;
        Self {
            weight: weight * factor,
            x: x * factor,
            y: y * factor,
            xx: xx * factor,
            xy: xy * factor,
            measured_at,
        }
    }

    fn with(self, x: f64, y: f64, weight: f64) -> Self {
        Self {
            weight: self.weight + weight,
            x: self.x + weight * x,
            y: self.y + weight * y,
            xx: self.xx + weight * x * x,
            xy: self.xy + weight * x * y,
            measured_at: self.measured_at,
        }
    }

    fn aged(self, now: Instant) -> Self {
        let Some(measured_at) = self.measured_at else { return self };
        let age = now.saturating_duration_since(measured_at).as_secs_f64();
        self.scaled(0.5_f64.powf(age / HALF_LIFE.as_secs_f64()))
    }

    fn fit(self) -> Line {
        let spread = self.weight * self.xx - self.x * self.x;
        let slope = ((self.weight * self.xy - self.x * self.y) / spread).max(0.0);
        let base = ((self.y - slope * self.x) / self.weight).max(0.0);
        // A line through the middle of the points where the fit has no sense.
        if slope.is_finite() && base.is_finite() {
            Line { base, slope }
        } else {
            Line { base: 0.0, slope: 0.0 }
        }
    }
}

impl Speed {
    /// Assumes `base` for a request and `slope` for each of its tokens, until more is known.
    pub fn assumed(base: Duration, slope: Duration) -> Self {
        let assumed = Line { base: base.as_secs_f64(), slope: slope.as_secs_f64() };
        Self { assumed, sums: Mutex::default() }
    }

    /// Learns that work of `tokens` took so long.
    pub fn learn(&self, tokens: usize, took: Duration) {
        let now = Instant::now();
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        *sums = sums.aged(now).scaled(FADING).with(tokens as f64, took.as_secs_f64(), 1.0);
        sums.measured_at = Some(now);
    }

    /// How long work of `tokens` will take.
    pub fn estimate(&self, tokens: usize) -> Duration {
        self.estimate_at(tokens, Instant::now())
    }

    /// Whether anything was learnt yet.
    pub fn is_known(&self) -> bool {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).measured_at.is_some()
    }

    fn estimate_at(&self, tokens: usize, now: Instant) -> Duration {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner).aged(now);
        for point in ASSUMED_POINTS {
            sums = sums.with(point, self.assumed.base + self.assumed.slope * point, ASSUMED_WEIGHT);
        }
        let line = sums.fit();
        Duration::try_from_secs_f64(line.base + line.slope * tokens as f64).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(duration: Duration) -> f64 {
        duration.as_secs_f64() * 1000.0
    }

    #[test]
    fn what_is_assumed_holds_until_something_is_learnt() {
        let speed = Speed::assumed(Duration::from_millis(10), Duration::from_micros(5));
        assert!((ms(speed.estimate(1000)) - 15.0).abs() < 0.01);
        assert!(!speed.is_known());
        for tokens in (0..200).map(|step| 10 + step * 10) {
            speed.learn(tokens, Duration::from_millis(1) + Duration::from_micros(50) * tokens as u32);
        }
        let (short, long) = (ms(speed.estimate(20)), ms(speed.estimate(2000)));
        assert!(short < 8.0 && (90.0..110.0).contains(&long), "{short} ms, {long} ms");
    }

    #[test]
    fn a_slow_moment_is_forgotten() {
        let speed = Speed::assumed(Duration::from_millis(10), Duration::from_micros(5));
        (0..10).for_each(|_| speed.learn(100, Duration::from_secs(3)));
        assert!(ms(speed.estimate(100)) > 1000.0);
        let later = Instant::now() + HALF_LIFE * 20;
        assert!(ms(speed.estimate_at(100, later)) < 20.0);
    }
}
