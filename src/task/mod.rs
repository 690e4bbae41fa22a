//! Tasks as requests and jobs see them: parameters, defaults, checks and outputs.
//!
//! Parameters are read by serde from JSON and KServe parameters, and by clap from the command line, rules and object
//! metadata. `prepare` checks them against a model; its result runs on texts any number of times.

pub mod classification;
pub mod embedding;
pub mod entities;
mod job_options;
pub mod labels;
pub mod ranking;
pub mod text_to_text;

use std::fmt::Display;

pub use self::job_options::JobOptions;
use crate::{
    error::{Error, Result},
    tokenizer::{Side, Truncation},
};

/// Defaults and limits for all tasks' parameters, in an API or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Whether texts above the token limit are truncated if parameters do not say so: `limits.truncate`.
    pub truncate: bool,
    /// Maximum values in a response.
    pub max_values: usize,
    /// Maximum windows or sentences that the texts are split into.
    pub max_parts: usize,
    /// Maximum labels.
    pub max_labels: usize,
}

impl Scope {
    /// The truncation that the parameters `truncate` and `truncation_direction` ask for, or the default.
    pub fn truncation(&self, truncate: Option<bool>, side: Option<Side>) -> Truncation {
        match truncate.unwrap_or(self.truncate) {
            true => Truncation::At(side.unwrap_or_default()),
            false => Truncation::Off,
        }
    }
}

/// Checks that a value count is between 1 and `limit`.
pub(crate) fn count(field: impl Display, found: usize, limit: usize) -> Result<()> {
    let message = || format!("expected 1 to {limit} `{field}`, but found {found}");
    match found {
        0 => Err(Error::invalid(message())),
        _ if found > limit => Err(Error::too_large(message())),
        _ => Ok(()),
    }
}
