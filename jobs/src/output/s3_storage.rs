//! Outputs in S3: a multipart upload, with the checkpoint in an object next to the output.
//!
//! A job belongs to the process that wrote the checkpoint last. A process claims a job by overwriting the checkpoint,
//! on the condition that it has not changed; the previous process detects that at its next write, and stops. It may
//! still upload a part, which does no harm, since that part number is skipped.
//!
//! An output gets its name only while its job's input is the current object: another job has the newer one, and may be
//! done already.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    checkpoint::{Checkpoint, State, Storage, encode, parse},
    pieces::Pieces,
    report_file,
};
use crate::input::location::{Existing, JobInput};
use kivu::{
    Error, Result,
    repository::s3::{Change, Condition, MIN_PART_BYTES, Object, Store, Url, fit_key},
};

/// Metadata key that names the job that wrote an output.
const JOB: &str = "kivu-job";
const MAX_PARTS: i32 = 10_000;
/// After this many parts, part sizes grow by [`MIN_PART_BYTES`]: an upload can have 270 GB.
const PARTS_OF_SAME_SIZE: usize = 1_000;
/// Attempts to claim a job while other processes claim it.
const TRIES: usize = 20;

struct S3Storage {
    store: Arc<dyn Store>,
    output: Url,
    checkpoint: Url,
    input: JobInput,
    /// Checkpoint ETag.
    etag: String,
    existing: Existing,
}

/// The object at an output's key.
enum Found {
    /// This job's output.
    Own,
    /// Nothing, or an object that may be replaced on this condition.
    Replaceable(Condition),
    /// An object that Kivu did not write.
    Foreign,
}

/// Claims the job that writes `output` from `input`; `None` if the output exists.
///
/// # Errors
/// The output is an object that Kivu did not write, unless it may be overwritten.
pub fn claim(
    store: &Arc<dyn Store>,
    output: &Url,
    input: &JobInput,
    job: &str,
    interval: Duration,
    existing: Existing,
) -> Result<Option<Box<Checkpoint>>> {
    let place = output.with_key(fit_key(&format!(
        "{}.{}.checkpoint",
        output.key,
        &job[..16]
    )));
    let holder = Uuid::new_v4().to_string();
    for _ in 0..TRIES {
        let (condition, mut state, waiting) = match store.read(&place)? {
            None => (Condition::IsAbsent, State::new(job, &holder), Vec::new()),
            Some((bytes, object)) => {
                let (state, waiting) = parse(&bytes, &place)?;
                (
                    Condition::IsStill(object.etag),
                    resumed(state, &holder),
                    waiting,
                )
            }
        };
        let is_new = condition == Condition::IsAbsent;
        let bytes = encode(&state, &waiting)?;
        let Some(etag) = store.put(&place, bytes, &condition)? else {
            continue;
        };
        state.sequence += 1;
        let (store, output, input) = (Arc::clone(store), output.clone(), input.clone());
        let storage = S3Storage {
            store,
            output,
            checkpoint: place,
            input,
            etag,
            existing,
        };
        // Checked after the claim: from now on, no other process writes this job's output.
        let found = storage.found(job).inspect_err(|_| {
            if is_new {
                let _ = storage.forget();
            }
        });
        match found? {
            Found::Own if is_new => {
                storage.forget()?;
                return Ok(None);
            }
            Found::Foreign => {
                // An earlier process's rows are kept, until the object is moved away.
                if is_new {
                    storage.forget()?;
                }
                return Err(storage.foreign());
            }
            found => {
                let (state, waiting) = storage.restarted(state, waiting, &found)?;
                return Ok(Some(Checkpoint::new(
                    Box::new(storage),
                    state,
                    waiting,
                    interval,
                )));
            }
        }
    }
    Err(taken(output))
}

/// State of a job that was begun, for its next process.
fn resumed(state: State, holder: &str) -> State {
    State {
        // The previous process may still upload the part with that number.
        next: state.next + 1,
        sequence: state.sequence + 1,
        holder: holder.to_owned(),
        ..state
    }
}

/// Whether an object is the output of this job.
pub fn is_of(object: &Object, job: &str) -> bool {
    object.metadata.get(JOB).is_some_and(|found| found == job)
}

impl S3Storage {
    /// The object at the output's key. Another job's output, for example for an older input version, is replaced.
    ///
    /// # Errors
    /// It is the output for another object.
    fn found(&self, job: &str) -> Result<Found> {
        Ok(match self.store.head(&self.output)? {
            None => Found::Replaceable(Condition::IsAbsent),
            Some(object) if is_of(&object, job) => Found::Own,
            Some(object) if self.existing.overwrite => {
                Found::Replaceable(Condition::IsStill(object.etag))
            }
            Some(object) if object.metadata.contains_key(JOB) => {
                report_file::check_output(&self.store, &self.output, &self.input.to_string())?;
                Found::Replaceable(Condition::IsStill(object.etag))
            }
            Some(_) => Found::Foreign,
        })
    }

    /// The state to continue with: the first row if that was requested, or if the server has lost the upload.
    fn restarted(&self, state: State, waiting: Vec<u8>, found: &Found) -> Result<(State, Vec<u8>)> {
        let Some(upload) = &state.upload else {
            return Ok((state, waiting));
        };
        let is_own = matches!(found, Found::Own);
        if self.existing.restart && !is_own {
            self.store.abort(upload)?;
        } else if is_own || self.store.has_upload(upload)? {
            return Ok((state, waiting));
        } else {
            tracing::warn!(output = %self.output, "the server has lost the upload, which starts again");
        }
        let State {
            sequence,
            job,
            holder,
            ..
        } = state;
        Ok((
            State {
                sequence,
                ..State::new(&job, &holder)
            },
            Vec::new(),
        ))
    }

    fn foreign(&self) -> Error {
        Error::config(format!(
            "the object at `{}` was not written by Kivu",
            self.output
        ))
        .with_hint("choose another output, remove it, or replace it with `--overwrite`")
    }

    fn lost(&self) -> Error {
        let action = format!("the server no longer has the upload for `{}`", self.output);
        Error::io(action)(io::Error::new(io::ErrorKind::NotFound, "no such upload"))
    }
}

impl Storage for S3Storage {
    fn begin(&self, state: &mut State) -> Result<bool> {
        if state.upload.is_some() {
            return Ok(false);
        }
        state.upload = Some(self.store.begin(&self.output, JOB, &state.job)?);
        Ok(true)
    }

    fn part_bytes(&self, state: &State, _: &Pieces) -> usize {
        MIN_PART_BYTES * (1 + state.parts.len() / PARTS_OF_SAME_SIZE)
    }

    fn accepts_small_parts(&self) -> bool {
        false
    }

    /// A part that no checkpoint lists would be uploaded again.
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
        let part = self
            .store
            .upload(upload, state.next, bytes.into())?
            .ok_or_else(|| self.lost())?;
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
        for _ in 0..TRIES {
            let condition = match self.found(&state.job)? {
                Found::Own => return Ok(()),
                Found::Replaceable(condition) => condition,
                Found::Foreign => return Err(self.foreign()),
            };
            // Checked after the output: if a newer input's job completes it from now on, the condition is false.
            if let Err(error) = self.input.check_current() {
                if Change::of(&error).is_some() {
                    self.abandon(state)?;
                }
                return Err(error);
            }
            // Otherwise, the object changed meanwhile, or the upload was completed by a request without a response.
            if self.store.complete(upload, &state.parts, &condition)? {
                return Ok(());
            }
            if !self.store.has_upload(upload)? {
                break;
            }
        }
        if matches!(self.found(&state.job)?, Found::Own) {
            Ok(())
        } else {
            Err(taken(&self.output))
        }
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

/// Error for a job that another process has claimed.
fn taken(output: &Url) -> Error {
    let action = format!("another process took over the job that writes `{output}`");
    Error::io(action)(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "another process resumed it",
    ))
}
