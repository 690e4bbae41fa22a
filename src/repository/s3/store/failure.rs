//! What goes wrong between here and S3: which of it a second try can mend, and how it is told.

use std::{
    error::Error as StdError,
    future::Future,
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};

/// Milliseconds that a request is tried again for while the server is away or asks to slow down: longer than a
/// server takes to come back after it was killed.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(60_000);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Sets how long requests are tried again, in the whole process: where a caller waits, less than where a job does.
pub fn set_patience(patience: Duration) {
    PATIENCE_MS.store(patience.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failure {
    error: io::Error,
    /// Whether the same request may succeed later.
    is_passing: bool,
    /// Whether a condition of the request did not hold.
    pub(super) is_refused: bool,
}

impl Failure {
    /// A failure that time can mend, such as a body that broke off.
    pub(super) fn passing(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { error: io::Error::other(source), is_passing: true, is_refused: false }
    }

    /// An object that is not the one that was asked for.
    pub(super) fn refused() -> Self {
        Self { error: io::Error::other("it is another one"), is_passing: false, is_refused: true }
    }

    /// Whether there is no such object, bucket or upload.
    pub(super) fn is_not_found(&self) -> bool {
        self.error.kind() == io::ErrorKind::NotFound
    }

    /// The error of what was being done.
    pub(super) fn during(self, action: String) -> Error {
        Error::Io { action, source: self.error }
    }
}

impl<E> From<SdkError<E>> for Failure
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    fn from(error: SdkError<E>) -> Self {
        let status = error.raw_response().map_or(0, |response| response.status().as_u16());
        let code = error.code().unwrap_or_default().to_owned();
        let kind = match (status, code.as_str()) {
            (404, _) | (_, "NoSuchKey" | "NoSuchBucket" | "NoSuchUpload") => io::ErrorKind::NotFound,
            (401 | 403, _) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        let passes = matches!(code.as_str(), "SlowDown" | "RequestTimeout" | "ConditionalRequestConflict");
        let is_passing = match &error {
            SdkError::ConstructionFailure(_) => false,
            SdkError::TimeoutError(_) | SdkError::DispatchFailure(_) | SdkError::ResponseError(_) => true,
            _ => passes || status >= 500 || status == 429,
        };
        // Credentials that cannot be had will not come by waiting, however the SDK calls that.
        let lacks_credentials =
            status == 0 && causes(&error).iter().any(|cause| cause.contains("credentials"));
        let (words, is_passing) = if lacks_credentials {
            ("no credentials were found; set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or a profile".into(), false)
        } else {
            (words(&error, status, &code), is_passing)
        };
        Self { error: io::Error::new(kind, words), is_passing, is_refused: status == 412 || status == 304 }
    }
}

/// What the server said, or what kept it from saying something.
fn words<E>(error: &SdkError<E>, status: u16, code: &str) -> String
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let said = error.message().unwrap_or_default();
    match (status, code, said) {
        (0, ..) => chain(error),
        (_, "RequestTimeTooSkewed", _) => format!("{code}: the clock of this machine is wrong; set it"),
        (_, "", "") => format!("the server answered {status}"),
        (_, "", said) => said.to_owned(),
        (_, code, "") => code.to_owned(),
        (_, code, said) => format!("{code}: {said}"),
    }
}

/// The innermost two causes: the outer ones only say that something failed.
fn chain(error: &dyn StdError) -> String {
    let mut causes = causes(error);
    let mut inner = causes.split_off(causes.len().saturating_sub(2));
    inner.dedup();
    if inner.is_empty() { error.to_string() } else { inner.join(": ") }
}

fn causes(error: &dyn StdError) -> Vec<String> {
    let (mut causes, mut source) = (Vec::new(), error.source());
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    causes
}

/// Tries `request` until it succeeds, fails for good, or patience runs out. Pauses grow, and differ from caller
/// to caller, so that a server that comes back is not overrun.
pub(super) async fn patiently<T, F>(request: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let started = Instant::now();
    let patience = Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed));
    let mut pause = FIRST_PAUSE;
    loop {
        match request().await {
            Err(failure) if failure.is_passing && started.elapsed() + pause < patience => {
                tracing::warn!(error = %failure.error, "S3 does not answer as it should; trying again");
                sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            outcome => return outcome,
        }
    }
}
