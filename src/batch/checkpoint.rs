//! Where a job in S3 stands: an object beside its output, which belongs to whoever wrote it last.
//!
//! Everything about a job that must survive its process is in here. Whoever takes the job up writes the object
//! anew, on the condition that nobody else has meanwhile; the one from whom it was taken finds that out when it
//! wants to write the next time, and stops. A part that it was just sending does no harm: the number of that part
//! is passed over.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{output::Pieces, report::Progress, rows::Footers};
use crate::{
    error::{Error, Result},
    repository::s3::{Condition, Multipart, Object, Part, SMALLEST_PART, Store, Url, fit_key},
};

/// What the metadata of an output call the job that made it.
pub(super) const JOB: &str = "kivu-job";
/// The most parts of an upload.
const MOST_PARTS: i32 = 10_000;
/// After so many parts each is larger by one smallest part: an upload can so have 270 GB.
const PARTS_OF_A_SIZE: usize = 1_000;
/// How often taking up a job is tried while others do the same.
const TRIES: usize = 20;

/// The state of a job, and the right to go on with it.
pub(super) struct Checkpoint {
    store: Store,
    output: Url,
    place: Url,
    /// The server's mark of what was written last.
    mark: String,
    state: State,
    /// Finished pieces of output that are too small for a part.
    pub(super) waiting: Vec<u8>,
    saved: Instant,
    interval: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    job: String,
    /// Who wrote this, and how often before.
    holder: String,
    sequence: u64,
    upload: Option<Multipart>,
    parts: Vec<Part>,
    /// The number of the next part.
    next: i32,
    footers: Footers,
    progress: Progress,
    /// Whether every part is there.
    is_whole: bool,
}

/// What is found where a job is to be taken up.
pub(super) enum Claim {
    /// It is ours, at its beginning or somewhere in it.
    Taken(Box<Checkpoint>),
    /// Its output is there.
    Done,
}

impl Checkpoint {
    /// Takes up the job that writes `output`.
    pub(super) fn claim(store: &Store, output: &Url, job: &str, interval: Duration) -> Result<Claim> {
        let place = output.with_key(fit_key(&format!("{}.{}.checkpoint", output.key, &job[..16])));
        let holder = Uuid::new_v4().to_string();
        for _ in 0..TRIES {
            let (condition, mut state, waiting) = match store.read(&place)? {
                None => (Condition::IsAbsent, State::new(job, &holder), Vec::new()),
                Some((bytes, object)) => {
                    let (mut state, waiting) = parse(&bytes, &place)?;
                    // Whoever had it may still be sending the part of that number.
                    state.next += 1;
                    state.sequence += 1;
                    state.holder.clone_from(&holder);
                    (Condition::IsStill(object.etag), state, waiting)
                }
            };
            let is_new = condition == Condition::IsAbsent;
            let bytes = encode(&state, &waiting)?;
            let Some(mark) = store.put(&place, bytes, &condition, &BTreeMap::new())? else { continue };
            let saved = Instant::now();
            state.sequence += 1;
            let (store, output) = (store.clone(), output.clone());
            let claim = Self { store, output, place, mark, state, waiting, saved, interval };
            // Asked only now: what is done when the job is ours stays done.
            if is_new && claim.is_done()? {
                claim.forget()?;
                return Ok(Claim::Done);
            }
            return Ok(Claim::Taken(Box::new(claim)));
        }
        Err(taken(output))
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.state.progress
    }

    pub(super) fn footers(&self) -> &Footers {
        &self.state.footers
    }

    /// Whether nobody had it before.
    pub(super) fn is_new(&self) -> bool {
        self.state.upload.is_none()
    }

    /// Whether every part is there.
    pub(super) fn is_whole(&self) -> bool {
        self.state.is_whole
    }

    /// The bytes that the next part should have.
    pub(super) fn part_bytes(&self) -> usize {
        SMALLEST_PART * (1 + self.state.parts.len() / PARTS_OF_A_SIZE)
    }

    /// Whether it is time to save what was done.
    pub(super) fn is_due(&self) -> bool {
        self.saved.elapsed() >= self.interval
    }

    /// Begins the upload, if that was not done.
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.state.upload.is_none() {
            let metadata = BTreeMap::from([(JOB.to_owned(), self.state.job.clone())]);
            self.state.upload = Some(self.store.begin(&self.output, &metadata)?);
            self.write(&[])?;
        }
        Ok(())
    }

    /// Saves where the job stands; what waits is kept with it.
    pub(super) fn save(&mut self, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        let (waiting, footers) = pieces.state()?;
        self.state.footers = footers.clone();
        self.state.progress = progress.clone();
        self.write(waiting)
    }

    /// Sends bytes as the next part and saves where the job stands.
    pub(super) fn send(&mut self, bytes: Vec<u8>, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        self.upload(bytes)?;
        self.save(pieces, progress)
    }

    /// Sends the last bytes, makes the object of all parts, and keeps the job until [`Self::forget`].
    pub(super) fn finish(&mut self, bytes: Vec<u8>, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        if !bytes.is_empty() || self.state.parts.is_empty() {
            self.upload(bytes)?;
        }
        self.state.is_whole = true;
        self.save(pieces, progress)?;
        self.complete()
    }

    /// Makes the object of all parts; done twice it changes nothing.
    pub(super) fn complete(&self) -> Result<()> {
        let upload = self.state.upload.as_ref().ok_or_else(|| lost(&self.output))?;
        // An older output may be there, of an input that was replaced since.
        let condition = match self.store.head(&self.output, None)? {
            Some(object) if self.made(&object) => return Ok(()),
            Some(object) => Condition::IsStill(object.etag),
            None => Condition::IsAbsent,
        };
        if self.store.complete(upload, &self.state.parts, &condition)? || self.is_done()? {
            return Ok(());
        }
        Err(taken(&self.output))
    }

    /// Removes what is remembered of the job.
    pub(super) fn forget(&self) -> Result<()> {
        self.store.delete(&self.place)
    }

    /// Gives the job up, and all that was made for it.
    pub(super) fn abandon(&self) -> Result<()> {
        if let Some(upload) = &self.state.upload {
            self.store.abort(upload)?;
        }
        self.forget()
    }

    fn is_done(&self) -> Result<bool> {
        Ok(self.store.head(&self.output, None)?.is_some_and(|object| self.made(&object)))
    }

    fn made(&self, object: &Object) -> bool {
        object.metadata.get(JOB) == Some(&self.state.job)
    }

    fn upload(&mut self, bytes: Vec<u8>) -> Result<()> {
        if self.state.next > MOST_PARTS {
            return Err(Error::invalid(format!(
                "expected an output of at most {MOST_PARTS} parts, but found more"
            )));
        }
        let upload = self.state.upload.as_ref().ok_or_else(|| lost(&self.output))?;
        let part = self.store.upload(upload, self.state.next, bytes)?.ok_or_else(|| lost(&self.output))?;
        self.state.parts.push(part);
        self.state.next += 1;
        Ok(())
    }

    fn write(&mut self, waiting: &[u8]) -> Result<()> {
        let bytes = encode(&self.state, waiting)?;
        let condition = Condition::IsStill(self.mark.clone());
        self.mark = match self.store.put(&self.place, bytes, &condition, &BTreeMap::new())? {
            Some(mark) => mark,
            // The answer to an attempt that did succeed may have been lost.
            None => match self.store.read(&self.place)? {
                Some((bytes, object)) if self.wrote(&bytes) => object.etag,
                _ => return Err(taken(&self.output)),
            },
        };
        self.state.sequence += 1;
        self.saved = Instant::now();
        Ok(())
    }

    fn wrote(&self, bytes: &[u8]) -> bool {
        parse(bytes, &self.place).is_ok_and(|(state, _)| {
            state.holder == self.state.holder && state.sequence == self.state.sequence
        })
    }
}

impl State {
    fn new(job: &str, holder: &str) -> Self {
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
        }
    }
}

/// The state on a line, and behind it the bytes that wait.
fn encode(state: &State, waiting: &[u8]) -> Result<Bytes> {
    let mut bytes = serde_json::to_vec(state)
        .map_err(|error| Error::inference("where the job stands cannot be written", error))?;
    bytes.push(b'\n');
    bytes.extend_from_slice(waiting);
    Ok(bytes.into())
}

pub(super) fn parse(bytes: &[u8], place: &Url) -> Result<(State, Vec<u8>)> {
    let wrong = || {
        Error::model(format!("expected where a job stands in `{place}`, but found something else; remove it"))
    };
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
    let state = serde_json::from_slice(&bytes[..end]).map_err(|_| wrong())?;
    Ok((state, bytes[end + 1..].to_vec()))
}

/// The error of a job that somebody else goes on with.
fn taken(output: &Url) -> Error {
    Error::Io {
        action: format!(
            "expected the job for `{output}` to be this one's, but somebody else goes on with it"
        ),
        source: std::io::Error::new(std::io::ErrorKind::ResourceBusy, "it was taken up twice"),
    }
}

fn lost(output: &Url) -> Error {
    Error::Io {
        action: format!("expected an upload for `{output}`, but the server no longer knows of it"),
        source: std::io::Error::new(std::io::ErrorKind::NotFound, "no such upload"),
    }
}
