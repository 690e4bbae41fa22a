//! The contents of a checkpoint: the state as a line of JSON, and the waiting bytes.

use std::fmt::Display;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{report::Progress, rows::Footers};
use crate::{
    error::{Error, Result},
    repository::s3::{Multipart, Part},
};

/// The state of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// Identifies input, model and parameters.
    pub(super) job: String,
    /// The process that wrote the state.
    pub(super) holder: String,
    /// The number of earlier writes.
    pub(super) sequence: u64,
    pub(super) upload: Option<Multipart>,
    pub(super) parts: Vec<Part>,
    /// The number of the next part.
    pub(super) next: i32,
    pub(super) footers: Footers,
    pub(super) progress: Progress,
    /// Whether the output is complete except for its name.
    pub(super) is_whole: bool,
    /// The size of a local output so far.
    #[serde(default)]
    pub(super) bytes: u64,
    /// The BLAKE3 of a local output that is whole.
    #[serde(default)]
    pub(super) digest: Option<String>,
    /// The BLAKE3 of the local output that this job replaces.
    #[serde(default)]
    pub(super) replaces: Option<String>,
    /// Whether the job can resume, since its input can be read again.
    #[serde(default)]
    pub(super) is_resumable: bool,
}

impl State {
    pub(super) fn new(job: &str, holder: &str) -> Self {
        Self {
            job: job.to_owned(),
            holder: holder.to_owned(),
            sequence: 0,
            upload: None,
            parts: Vec::new(),
            next: 1,
            footers: Vec::new(),
            progress: Progress::default(),
            is_whole: false,
            bytes: 0,
            digest: None,
            replaces: None,
            is_resumable: true,
        }
    }
}

pub(super) fn encode(state: &State, waiting: &[u8]) -> Result<Bytes> {
    let mut bytes = serde_json::to_vec(state)
        .map_err(|error| Error::inference_because("the checkpoint cannot be written", error))?;
    bytes.push(b'\n');
    bytes.extend_from_slice(waiting);
    Ok(bytes.into())
}

pub(super) fn parse(bytes: &[u8], place: &dyn Display) -> Result<(State, Vec<u8>)> {
    let wrong = || {
        Error::model(format!(
            "expected a checkpoint of `kivu batch` in `{place}`, but found something else; move it away"
        ))
    };
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
    let state = serde_json::from_slice(&bytes[..end]).map_err(|_| wrong())?;
    Ok((state, bytes[end + 1..].to_vec()))
}
