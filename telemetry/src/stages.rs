//! Details of a request, for its spans and for the log of slow requests, and details of a job.

use std::time::{Duration, Instant, SystemTime};

use kivu_core::observer::Ending;

/// A request's stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Texts to tokens.
    Tokenization,
    /// Until the first batch of a model run begins.
    Queue,
    /// A model run.
    Run,
    /// Tensors to the response.
    Response,
}

impl Stage {
    /// Its span's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokenization => "tokenization",
            Self::Queue => "queue",
            Self::Run => "run",
            Self::Response => "response",
        }
    }
}

/// A stage that is over.
#[derive(Clone, Debug)]
pub struct TimedStage {
    pub stage: Stage,
    pub started: Instant,
    pub ended: Instant,
    pub ending: Ending,
    pub backend: Option<&'static str>,
}

/// The time of day at which a request began, from which its stages' times follow: the system's clock may be set meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    time: SystemTime,
}

impl Clock {
    /// The clock of a request that began at `started`.
    pub fn since(started: Instant) -> Self {
        let now = SystemTime::now();
        Self {
            started,
            time: now.checked_sub(started.elapsed()).unwrap_or(now),
        }
    }

    /// When the request began.
    pub fn began(self) -> SystemTime {
        self.time
    }

    pub fn elapsed(self) -> Duration {
        self.started.elapsed()
    }

    pub fn time(self, at: Instant) -> SystemTime {
        self.time + at.saturating_duration_since(self.started)
    }
}

/// A request's parameters, and the total duration of each stage. Parts of a request may run at the same time, so the
/// sum may exceed the request's own duration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDetails {
    /// The first model that it used.
    pub model: Option<String>,
    /// Texts in the request.
    pub texts: usize,
    /// Tokens that models read.
    pub tokens: usize,
    /// Durations by [`Stage`], in its order.
    pub durations: [Duration; 4],
}

impl RequestDetails {
    /// A stage's milliseconds.
    pub fn ms(&self, stage: Stage) -> f64 {
        self.durations[stage as usize].as_micros() as f64 / 1000.0
    }
}

/// How a request ended.
pub struct Outcome<'a> {
    /// The method, which is only reported if HTTP defines it.
    pub method: &'a str,
    /// The route's path, with names of parameters in place of their values.
    pub route: Option<&'a str>,
    /// The response's status.
    pub status: u16,
}

/// Attributes of a job's span. It has no paths or messages, which may contain texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOutcome {
    /// Model name; empty for jobs whose rows name their models.
    pub model: String,
    /// The model's task, or `requests`.
    pub task: String,
    /// `finished`, `failed`, `known`, `unfinished` or `error`; another run may succeed after the last two.
    pub status: &'static str,
    /// Finished rows, including earlier runs and rows with errors.
    pub rows: u64,
    /// Rows with errors.
    pub failed_rows: u64,
    /// Input tokens.
    pub tokens: u64,
}

impl JobOutcome {
    /// Whether the run ended with an error; rows with errors are none.
    pub fn is_error(&self) -> bool {
        matches!(self.status, "failed" | "error")
    }
}
