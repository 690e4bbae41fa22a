//! OpenAI's batch object.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::files::{ExpiresAfter, ObjectKind, new_id, now},
    error::{Error, Result},
};

/// Prefix for batch ids.
pub(super) const BATCH: &str = "batch_";
const MAX_PAIRS: usize = 16;
const MAX_KEY_CHARS: usize = 64;
const MAX_VALUE_CHARS: usize = 512;

/// A new batch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `input_file_id`, `endpoint` and `completion_window`")]
pub(in crate::api) struct BatchRequest {
    /// Id of an uploaded file with requests.
    pub(super) input_file_id: String,
    pub(super) endpoint: Endpoint,
    pub(super) completion_window: CompletionWindow,
    /// Up to 16 texts by name.
    #[schemars(length(max = 16))]
    metadata: Option<BTreeMap<String, String>>,
    /// When output and error file expire; after 30 days by default.
    output_expires_after: Option<ExpiresAfter>,
}

/// Route for all requests in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(in crate::api) enum Endpoint {
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
}

impl Endpoint {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Embeddings => "/v1/embeddings",
        }
    }
}

/// The time after which requests that have not run fail.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(in crate::api) enum CompletionWindow {
    #[serde(rename = "24h")]
    Day,
}

impl CompletionWindow {
    fn seconds(self) -> u64 {
        match self {
            Self::Day => 24 * 60 * 60,
        }
    }
}

/// A batch's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(in crate::api) enum BatchStatus {
    /// The file is to be checked.
    Validating,
    /// The file has errors, or the batch could not be run.
    Failed,
    InProgress,
    /// Output and error file are being written.
    Finalizing,
    Completed,
    /// The completion window is over; requests that did not run are in the error file.
    Expired,
    Cancelling,
    /// Requests that did not run are in the error file.
    Cancelled,
}

impl BatchStatus {
    pub(super) fn is_final(self) -> bool {
        matches!(
            self,
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled
        )
    }
}

/// A batch. Times are in seconds since 1970, and `null` until they are known.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(in crate::api) struct Batch {
    /// Begins with `batch_`.
    pub(super) id: String,
    /// `batch`.
    object: ObjectKind,
    endpoint: Endpoint,
    /// The model that all requests name; `null` if they differ.
    pub(super) model: Option<String>,
    /// Why the batch failed.
    pub(super) errors: Option<BatchErrors>,
    /// The file with the requests.
    pub(super) input_file_id: String,
    completion_window: CompletionWindow,
    pub(super) status: BatchStatus,
    /// Responses with status 200.
    pub(super) output_file_id: Option<String>,
    /// Other responses.
    pub(super) error_file_id: Option<String>,
    /// When the batch was created.
    pub(super) created_at: u64,
    /// When its requests began to run.
    pub(super) in_progress_at: Option<u64>,
    /// When the completion window ends.
    pub(super) expires_at: u64,
    /// When its last request had run.
    pub(super) finalizing_at: Option<u64>,
    /// When its output was complete.
    pub(super) completed_at: Option<u64>,
    /// When it failed.
    pub(super) failed_at: Option<u64>,
    /// When the rest of it expired.
    pub(super) expired_at: Option<u64>,
    /// When its cancellation was requested.
    pub(super) cancelling_at: Option<u64>,
    /// When it was cancelled.
    pub(super) cancelled_at: Option<u64>,
    /// Requests by state.
    pub(super) request_counts: RequestCounts,
    /// Tokens, once the batch is done.
    pub(super) usage: Option<BatchUsage>,
    /// The texts that its creator gave, by name.
    metadata: Option<BTreeMap<String, String>>,
}

/// A file's errors.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(in crate::api) struct BatchErrors {
    /// `list`.
    object: ObjectKind,
    /// The first errors, in the order of lines.
    data: Vec<BatchError>,
}

impl From<Vec<BatchError>> for BatchErrors {
    fn from(data: Vec<BatchError>) -> Self {
        Self {
            object: ObjectKind::List,
            data,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(in crate::api) struct BatchError {
    /// What is wrong, as a name, such as `invalid_json_line`.
    pub(super) code: String,
    /// Line number from 1, without empty lines.
    pub(super) line: Option<u64>,
    /// What is wrong, and what to do.
    pub(super) message: String,
    /// The line's field.
    pub(super) param: Option<String>,
}

/// Requests by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(in crate::api) struct RequestCounts {
    /// All requests in the file.
    pub(super) total: u64,
    /// Requests with status 200.
    pub(super) completed: u64,
    /// Requests with another status, or that did not run.
    pub(super) failed: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(in crate::api) struct BatchUsage {
    /// Input tokens of all requests.
    input_tokens: u64,
    /// Parts of the input tokens.
    input_tokens_details: InputTokens,
    /// Always 0.
    output_tokens: u64,
    /// Parts of the output tokens.
    output_tokens_details: OutputTokens,
    /// The same as `input_tokens`.
    total_tokens: u64,
}

impl BatchUsage {
    pub(super) fn of(tokens: u64) -> Self {
        Self {
            input_tokens: tokens,
            total_tokens: tokens,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct InputTokens {
    /// Always 0.
    cached_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct OutputTokens {
    /// Always 0.
    reasoning_tokens: u64,
}

/// A batch as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BatchRecord {
    pub(super) batch: Batch,
    /// The models that its owner's key may use; all if there are none.
    pub(super) models: Vec<String>,
    pub(super) output_expires_s: Option<u64>,
}

impl BatchRecord {
    /// A batch before its file is checked.
    pub(super) fn new(request: BatchRequest, models: Vec<String>) -> Result<Self> {
        request.metadata.iter().try_for_each(check_metadata)?;
        let expiry = request.output_expires_after;
        let output_expires_s = expiry
            .map(|expiry| expiry.seconds("output_expires_after"))
            .transpose()?;
        let created_at = now();
        let batch = Batch {
            id: new_id(BATCH),
            object: ObjectKind::Batch,
            endpoint: request.endpoint,
            model: None,
            errors: None,
            input_file_id: request.input_file_id,
            completion_window: request.completion_window,
            status: BatchStatus::Validating,
            output_file_id: None,
            error_file_id: None,
            created_at,
            in_progress_at: None,
            expires_at: created_at + request.completion_window.seconds(),
            finalizing_at: None,
            completed_at: None,
            failed_at: None,
            expired_at: None,
            cancelling_at: None,
            cancelled_at: None,
            request_counts: RequestCounts::default(),
            usage: None,
            metadata: request.metadata,
        };
        Ok(Self {
            batch,
            models,
            output_expires_s,
        })
    }
}

impl Batch {
    pub(super) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The batch after a request to cancel it.
    pub(super) fn cancel(&mut self, time: u64) {
        self.status = BatchStatus::Cancelling;
        self.cancelling_at.get_or_insert(time);
    }

    /// Sets the status, and the time at which it began.
    pub(super) fn enter(&mut self, status: BatchStatus) {
        self.status = status;
        let time = match status {
            BatchStatus::Validating => return,
            BatchStatus::Failed => &mut self.failed_at,
            BatchStatus::InProgress => &mut self.in_progress_at,
            BatchStatus::Finalizing => &mut self.finalizing_at,
            BatchStatus::Completed => &mut self.completed_at,
            BatchStatus::Expired => &mut self.expired_at,
            BatchStatus::Cancelling => &mut self.cancelling_at,
            BatchStatus::Cancelled => &mut self.cancelled_at,
        };
        time.get_or_insert_with(now);
    }

    pub(super) fn fail(&mut self, errors: Vec<BatchError>) {
        self.errors = Some(errors.into());
        self.enter(BatchStatus::Failed);
    }
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<()> {
    let check = |what: &str, found: usize, max: usize| match found <= max {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "expected at most {max} {what} in `metadata`, but found {found}"
        ))),
    };
    check("pairs", metadata.len(), MAX_PAIRS)?;
    metadata.iter().try_for_each(|(key, value)| {
        check("characters per name", key.chars().count(), MAX_KEY_CHARS)?;
        check(
            "characters per value",
            value.chars().count(),
            MAX_VALUE_CHARS,
        )
    })
}
