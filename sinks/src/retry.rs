//! Repeats requests that failed for a passing reason.

use std::{io, time::Duration};

use tokio::time::sleep;

use kivu::{Error, Result, random};

const ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// Why an attempt failed.
#[derive(Debug)]
pub enum Failure {
    /// The same request may succeed later.
    Passing(String),
    Permanent(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Permanent(error)
    }
}

/// Tries until an attempt succeeds or fails permanently, about 30 seconds at most besides the attempts themselves.
/// After that, the job stops and can be resumed.
pub async fn retried<T>(
    action: &str,
    attempt: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T> {
    repeated(action, FIRST_PAUSE, attempt).await
}

async fn repeated<T>(
    action: &str,
    mut pause: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T> {
    for number in 1.. {
        let reason = match attempt().await {
            Ok(found) => return Ok(found),
            Err(Failure::Permanent(error)) => return Err(error),
            Err(Failure::Passing(reason)) => reason,
        };
        if number == ATTEMPTS {
            return Err(Error::io(action)(io::Error::other(reason)));
        }
        tracing::warn!(reason, attempt = number, "{action}; trying again");
        // At least half the pause, so that jobs that fail together do not return together.
        sleep(pause.mul_f64(0.5 + 0.5 * random::fraction())).await;
        pause = MAX_PAUSE.min(pause * 2);
    }
    Err(Error::io(action)(io::Error::other("no attempt was made")))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(work)
    }

    #[test]
    fn passing_failures_are_repeated() {
        let tries = Cell::new(0);
        let attempt = |until: u32| {
            tries.set(0);
            run(repeated("cannot write", Duration::ZERO, async || {
                tries.set(tries.get() + 1);
                if tries.get() < until {
                    Err(Failure::Passing("busy".into()))
                } else {
                    Ok(7)
                }
            }))
        };
        assert_eq!((attempt(4).unwrap(), tries.get()), (7, 4));
        let error = attempt(100).unwrap_err();
        assert_eq!(
            (error.chain().as_str(), tries.get()),
            ("cannot write: busy", ATTEMPTS)
        );
        assert!(matches!(error, Error::Io { .. }));
    }

    #[test]
    fn permanent_failures_are_not_repeated() {
        let tries = Cell::new(0);
        let failed: Result<()> = run(repeated("cannot write", Duration::ZERO, async || {
            tries.set(tries.get() + 1);
            Err(Error::config("wrong").into())
        }));
        assert_eq!(
            (failed.unwrap_err().to_string().as_str(), tries.get()),
            ("wrong", 1)
        );
    }
}
