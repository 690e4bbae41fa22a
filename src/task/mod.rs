//! Tasks as requests and jobs see them: parameters, defaults, checks and outputs.
//!
//! Parameters are read from JSON and KServe parameters, and as [`JobOptions`] from the command line, rules and object
//! metadata. `prepare` checks them against a model; its result runs on texts any number of times.
//!
//! `run` returns a boxed future, like the library's other entrances for programs: the compiler generates an `async fn`'s
//! code in each crate that awaits it, with the code of all functions that it awaits.

pub mod classification;
pub mod embedding;
pub mod entities;
pub mod extraction;
mod job_options;
pub mod labels;
mod model_tasks;
pub mod ranking;
pub mod requests;
pub mod text_to_text;
pub mod tokens;

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

pub use self::job_options::{Form as OptionForm, JobNumberScope, JobOption, JobOptions};
use kivu_base::{Error, Result, config::MAX_TEXTS, json};
use kivu_text::{Side, Truncation};

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
    /// The scope of texts that a job or a program runs together, whose number and results it limits itself.
    pub const OF_TEXTS: Self = Self {
        truncate: false,
        max_values: usize::MAX,
        // Long texts with a large stride must not exhaust memory.
        max_parts: 8192,
        max_labels: MAX_TEXTS,
    };
}

/// Reads a task's parameters from JSON.
///
/// # Errors
/// A value does not fit its parameter; the message names it. Unknown names are ignored, as in requests.
///
/// # Examples
/// ```no_run
/// use kivu::task::{embedding::EmbeddingParameters, read_parameters};
/// use serde_json::json;
///
/// let read = |parameters: serde_json::Value| {
///     read_parameters::<EmbeddingParameters>(parameters.as_object().cloned().unwrap_or_default())
/// };
/// assert_eq!(read(json!({ "dimensions": 128 }))?.dimensions, Some(128));
/// let error = read(json!({ "dimensions": "many" })).unwrap_err().to_string();
/// assert_eq!(error, "expected `dimensions` to be an integer from 0 on, but found a string");
/// # Ok::<(), kivu::Error>(())
/// ```
pub fn read_parameters<T: DeserializeOwned>(parameters: Map<String, Value>) -> Result<T> {
    json::from_value(Value::Object(parameters))
}

/// How texts above the token limit are handled, in all tasks whose models read whole texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct TruncationParameters {
    /// Whether texts above the token limit are truncated; otherwise they are refused.
    pub truncate: Option<bool>,
    /// The text end that is cut off; the right one by default.
    pub truncation_direction: Option<Side>,
}

impl TruncationParameters {
    /// Applies the defaults.
    pub fn truncation(self, scope: &Scope) -> Truncation {
        match self.truncate.unwrap_or(scope.truncate) {
            true => Truncation::At(self.truncation_direction.unwrap_or_default()),
            false => Truncation::Off,
        }
    }
}

/// Checks that a value count is between 1 and `limit`.
pub fn count(field: impl Display, found: usize, limit: usize) -> Result<()> {
    let message = || format!("expected 1 to {limit} `{field}`, but found {found}");
    let error = match found {
        0 => Error::invalid(message()),
        _ if found > limit => Error::too_large(message()),
        _ => return Ok(()),
    };
    Err(error.in_field(field))
}
