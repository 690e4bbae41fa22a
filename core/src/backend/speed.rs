//! Estimates how long work takes, from earlier measurements.

use std::{array, sync::Mutex, time::Duration};

use kivu_base::{clock::Instant, locked};

/// Request time as a linear function of its tokens, fitted to measurements by weighted least squares.
///
/// - Measurements lose weight with age and with every newer one.
/// - Without recent measurements the assumed line applies, so that a location that was slow once is tried again.
#[derive(Debug)]
pub struct Speed {
    assumed: Line,
    measured: Mutex<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Seconds per request.
    base: f64,
    /// Seconds per token.
    slope: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    sums: Sums,
    last: Option<Instant>,
}

/// Sums over all points: w, w·x, w·y, w·x² and w·x·y.
#[derive(Clone, Copy, Debug, Default)]
struct Sums([f64; 5]);

/// Factor on earlier measurements' weight when a new one is added.
const FADING: f64 = 0.95;
/// The age at which a measurement has half its weight.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Token counts for the two points that represent the assumed line, and their small weight.
const ASSUMED_POINTS: [f64; 2] = [16.0, 2048.0];
const ASSUMED_WEIGHT: f64 = 0.02;

impl Sums {
    fn scaled(self, factor: f64) -> Self {
        Self(self.0.map(|sum| sum * factor))
    }

    fn with(self, x: f64, y: f64, weight: f64) -> Self {
        let terms = [1.0, x, y, x * x, x * y];
        Self(array::from_fn(|index| {
            self.0[index] + weight * terms[index]
        }))
    }

    fn fit(self) -> Line {
        let [weight, x, y, xx, xy] = self.0;
        let slope = ((weight * xy - x * y) / (weight * xx - x * x)).max(0.0);
        let base = ((y - slope * x) / weight).max(0.0);
        // If all points have the same x, the slope is undefined.
        if slope.is_finite() && base.is_finite() {
            Line { base, slope }
        } else {
            Line {
                base: 0.0,
                slope: 0.0,
            }
        }
    }
}

impl Measured {
    fn sums_at(&self, now: Instant) -> Sums {
        let Some(last) = self.last else {
            return self.sums;
        };
        let age = now.saturating_duration_since(last).as_secs_f64();
        self.sums
            .scaled(0.5_f64.powf(age / HALF_LIFE.as_secs_f64()))
    }
}

impl Speed {
    /// Assumes `base` per request and `slope` per token until there are measurements.
    pub fn assumed(base: Duration, slope: Duration) -> Self {
        let assumed = Line {
            base: base.as_secs_f64(),
            slope: slope.as_secs_f64(),
        };
        Self {
            assumed,
            measured: Mutex::default(),
        }
    }

    /// Adds a measurement: work with `tokens` took this long.
    pub fn learn(&self, tokens: usize, took: Duration) {
        let now = Instant::now();
        let mut measured = locked(&self.measured);
        let sums =
            measured
                .sums_at(now)
                .scaled(FADING)
                .with(tokens as f64, took.as_secs_f64(), 1.0);
        *measured = Measured {
            sums,
            last: Some(now),
        };
    }

    /// Forgets all measurements.
    pub fn forget(&self) {
        *locked(&self.measured) = Measured::default();
    }

    /// Expected time for work with `tokens`.
    pub fn estimate(&self, tokens: usize) -> Duration {
        self.estimate_at(tokens, Instant::now())
    }

    /// Whether there are measurements.
    pub fn is_known(&self) -> bool {
        locked(&self.measured).last.is_some()
    }

    fn estimate_at(&self, tokens: usize, now: Instant) -> Duration {
        let mut sums = locked(&self.measured).sums_at(now);
        for point in ASSUMED_POINTS {
            sums = sums.with(
                point,
                self.assumed.base + self.assumed.slope * point,
                ASSUMED_WEIGHT,
            );
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
    fn the_assumed_line_holds_until_there_are_measurements() {
        let speed = Speed::assumed(Duration::from_millis(10), Duration::from_micros(5));
        assert!((ms(speed.estimate(1000)) - 15.0).abs() < 0.01);
        assert!(!speed.is_known());
        for tokens in (0..200).map(|step| 10 + step * 10) {
            speed.learn(
                tokens,
                Duration::from_millis(1) + Duration::from_micros(50) * tokens as u32,
            );
        }
        let (short, long) = (ms(speed.estimate(20)), ms(speed.estimate(2000)));
        assert!(
            short < 8.0 && (90.0..110.0).contains(&long),
            "{short} ms, {long} ms"
        );
    }

    #[test]
    fn a_slow_measurement_fades() {
        let speed = Speed::assumed(Duration::from_millis(10), Duration::from_micros(5));
        (0..10).for_each(|_| speed.learn(100, Duration::from_secs(3)));
        assert!(ms(speed.estimate(100)) > 1000.0);
        let later = Instant::now() + HALF_LIFE * 20;
        assert!(ms(speed.estimate_at(100, later)) < 20.0);
    }
}
