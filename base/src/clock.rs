//! Measures time. WebAssembly has no clock: no time passes there, and no deadline is missed.

#[cfg(not(target_family = "wasm"))]
pub use std::time::Instant;

#[cfg(target_family = "wasm")]
pub use self::stopped::Instant;

#[cfg(not(target_family = "wasm"))]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970.
#[cfg(not(target_family = "wasm"))]
pub fn since_1970() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// A time by two clocks: the monotonic one may stop while a function is frozen or a snapshot, the other may be set.
#[cfg(not(target_family = "wasm"))]
#[derive(Clone, Copy, Debug)]
pub struct Timestamp(pub Instant, pub SystemTime);

#[cfg(not(target_family = "wasm"))]
impl Timestamp {
    /// The current time.
    pub fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// The time since then by the clock that says more.
    pub fn age(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }

    /// An earlier time, for tests.
    ///
    /// # Panics
    /// If there was no such time.
    #[doc(hidden)]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0 - by, self.1 - by)
    }
}

#[cfg(target_family = "wasm")]
mod stopped {
    use std::{ops::Add, time::Duration};

    /// A point in time, relative to the start.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Instant(Duration);

    impl Instant {
        /// The only time.
        pub fn now() -> Self {
            Self::default()
        }

        /// Zero.
        pub fn elapsed(&self) -> Duration {
            Self::now().saturating_duration_since(*self)
        }

        /// The time since `earlier`; zero if that is later.
        pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, time: Duration) -> Self {
            Self(self.0.saturating_add(time))
        }
    }
}
