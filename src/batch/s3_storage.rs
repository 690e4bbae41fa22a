//! Outputs in S3: a multipart upload, with the checkpoint in an object next to the output.
//!
//! A job belongs to the process that wrote the checkpoint last. A process claims a job by overwriting the checkpoint, on
//! the condition that it has not changed; the previous process detects that at its next write, and stops. It may still
//! upload a part, which does no harm, since the number of that part is skipped.

use std::{io, time::Duration};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    checkpoint::{Checkpoint, State, Storage, encode, parse},
    location::Existing,
};
use crate::{
    error::{Error, Result},
    repository::s3::{Condition, MIN_PART_BYTES, Object, Store, Url, fit_key},
};

/// The metadata key of an output for the job that wrote it.
const JOB: &str = "kivu-job";
const MAX_PARTS: i32 = 10_000;
/// After each such number of parts, parts grow by [`MIN_PART_BYTES`]: an upload can have 270 GB.
const PARTS_OF_SAME_SIZE: usize = 1_000;
/// Attempts to claim a job while other processes claim it.
const TRIES: usize = 20;

struct S3Storage {
    store: Store,
    output: Url,
    checkpoint: Url,
    /// The ETag of the checkpoint.
    etag: String,
}

/// Claims the job that writes `output`; `None` if the output exists.
///
/// # Errors
/// The output is an object that Kivu did not write, unless it may be overwritten.
pub(super) fn claim(
    store: &Store,
    output: &Url,
    job: &str,
    interval: Duration,
    existing: Existing,
) -> Result<Option<Box<Checkpoint>>> {
    let place = output.with_key(fit_key(&format!("{}.{}.checkpoint", output.key, &job[..16])));
    let holder = Uuid::new_v4().to_string();
    for _ in 0..TRIES {
        let (condition, mut state, waiting) = match store.read(&place)? {
            None => (Condition::IsAbsent, State::new(job, &holder), Vec::new()),
            Some((bytes, object)) => {
                let (mut state, waiting) = parse(&bytes, &place)?;
                // The previous process may still upload the part with that number.
                state.next += 1;
                state.sequence += 1;
                state.holder.clone_from(&holder);
                (Condition::IsStill(object.etag), state, waiting)
            }
        };
        let is_new = condition == Condition::IsAbsent;
        let bytes = encode(&state, &waiting)?;
        let Some(etag) = store.put(&place, bytes, &condition)? else { continue };
        state.sequence += 1;
        let storage = S3Storage { store: store.clone(), output: output.clone(), checkpoint: place, etag };
        // Checked after the claim: from now on, no other process writes the output.
        let found = if is_new { store.head(output, None)? } else { None };
        match found {
            Some(object) if is_of(&object, &state) => {
                storage.forget()?;
                return Ok(None);
            }
            Some(object) if !existing.overwrite && !object.metadata.contains_key(JOB) => {
                storage.forget()?;
                return Err(Error::config(format!(
                    "expected no object at `{output}`, or one that Kivu wrote, but found another; choose another \
                     output, or remove it"
                )));
            }
            _ => {}
        }
        return Ok(Some(Checkpoint::new(Box::new(storage), state, waiting, interval)));
    }
    Err(taken(output))
}

fn is_of(object: &Object, state: &State) -> bool {
    object.metadata.get(JOB) == Some(&state.job)
}

impl S3Storage {
    fn lost(&self) -> Error {
        let action =
            format!("expected an upload for `{}`, but the server does not have it any more", self.output);
        Error::io(action)(io::Error::new(io::ErrorKind::NotFound, "no such upload"))
    }
}

impl Storage for S3Storage {
    fn begin(&self, state: &mut State) -> Result<bool> {
        if state.upload.is_some() {
            return Ok(false);
        }
        state.upload = Some(self.store.begin(&self.output, (JOB, &state.job))?);
        Ok(true)
    }

    fn part_bytes(&self, state: &State, _: bool) -> usize {
        MIN_PART_BYTES * (1 + state.parts.len() / PARTS_OF_SAME_SIZE)
    }

    fn accepts_small_parts(&self) -> bool {
        false
    }

    /// An upload that the checkpoint does not name would be repeated.
    fn min_interval(&self) -> Duration {
        Duration::ZERO
    }

    fn append(&mut self, state: &mut State, bytes: Vec<u8>) -> Result<()> {
        if state.next > MAX_PARTS {
            return Err(Error::invalid(format!(
                "expected an output of at most {MAX_PARTS} parts, but found more"
            )));
        }
        let upload = state.upload.as_ref().ok_or_else(|| self.lost())?;
        let part = self.store.upload(upload, state.next, bytes)?.ok_or_else(|| self.lost())?;
        state.parts.push(part);
        state.next += 1;
        Ok(())
    }

    fn write(&mut self, state: &State, checkpoint: Bytes) -> Result<()> {
        let condition = Condition::IsStill(self.etag.clone());
        self.etag = match self.store.put(&self.checkpoint, checkpoint, &condition)? {
            Some(etag) => etag,
            // An earlier attempt may have succeeded, and its response may have been lost.
            None => match self.store.read(&self.checkpoint)? {
                Some((bytes, object))
                    if parse(&bytes, &self.checkpoint).is_ok_and(|(found, _)| {
                        found.holder == state.holder && found.sequence == state.sequence
                    }) =>
                {
                    object.etag
                }
                _ => return Err(taken(&self.output)),
            },
        };
        Ok(())
    }

    fn digest(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    fn complete(&self, state: &State) -> Result<()> {
        let upload = state.upload.as_ref().ok_or_else(|| self.lost())?;
        // An output of an older version of the input is replaced.
        let condition = match self.store.head(&self.output, None)? {
            Some(object) if is_of(&object, state) => return Ok(()),
            Some(object) => Condition::IsStill(object.etag),
            None => Condition::IsAbsent,
        };
        if self.store.complete(upload, &state.parts, &condition)? {
            return Ok(());
        }
        let is_done = self.store.head(&self.output, None)?.is_some_and(|object| is_of(&object, state));
        if is_done { Ok(()) } else { Err(taken(&self.output)) }
    }

    fn forget(&self) -> Result<()> {
        self.store.delete(&self.checkpoint)
    }

    fn abandon(&self, state: &State) -> Result<()> {
        if let Some(upload) = &state.upload {
            self.store.abort(upload)?;
        }
        self.forget()
    }
}

/// The error of a job that another process claimed.
fn taken(output: &Url) -> Error {
    let action =
        format!("expected one process for the job that writes `{output}`, but another one took it over");
    Error::io(action)(io::Error::new(io::ErrorKind::ResourceBusy, "another process resumed it"))
}
