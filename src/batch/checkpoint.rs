//! The checkpoint of a job: an object or a hidden file beside its output, with everything that must survive the
//! process.
//!
//! In S3 it belongs to the process that wrote it last. A process that takes the job over rewrites the object, on the
//! condition that nobody else has meanwhile; the previous one detects that at its next write, and stops. A part that it
//! was just sending does no harm: the number of that part is skipped. On this machine a lock keeps the job to one
//! process: see [`local`](super::local).

use std::{
    collections::BTreeMap,
    fmt::Display,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    local::{Existing, LocalHome, OutputFile},
    output::Pieces,
    report::Progress,
    rows::Footers,
};
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
/// What is written to a file of this machine at once.
pub(super) const FILE_PIECE: usize = 4 * 1024 * 1024;

/// The state of a job, and the right to go on with it.
pub(super) struct Checkpoint {
    home: Home,
    state: State,
    /// Finished pieces of output that are too small for a part.
    pub(super) waiting: Vec<u8>,
    saved: Instant,
    interval: Duration,
}

/// Where the output and its checkpoint are.
enum Home {
    Remote(RemoteHome),
    Local(LocalHome),
}

struct RemoteHome {
    store: Store,
    output: Url,
    place: Url,
    /// The server's mark of what was written last.
    mark: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) job: String,
    /// Who wrote this, and how often before.
    pub(super) holder: String,
    pub(super) sequence: u64,
    upload: Option<Multipart>,
    parts: Vec<Part>,
    /// The number of the next part.
    next: i32,
    footers: Footers,
    progress: Progress,
    /// Whether every part is there.
    is_whole: bool,
    /// The length of the output so far, in bytes; of a file only, as what follows is.
    #[serde(default)]
    pub(super) bytes: u64,
    /// The BLAKE3 hash of the output, once it is whole.
    #[serde(default)]
    pub(super) digest: Option<String>,
    /// The same of the output of an earlier job, which this one replaces.
    #[serde(default)]
    pub(super) replaces: Option<String>,
    /// Whether the input can be read again, so that the job can be continued.
    #[serde(default)]
    pub(super) is_resumable: bool,
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
    ///
    /// # Errors
    /// There is an object that Kivu did not write, unless it may be overwritten.
    pub(super) fn claim(
        store: &Store,
        output: &Url,
        job: &str,
        interval: Duration,
        existing: Existing,
    ) -> Result<Claim> {
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
            let home = Home::Remote(RemoteHome { store: store.clone(), output: output.clone(), place, mark });
            let claim = Self { home, state, waiting, saved, interval };
            // Asked only now: what is done when the job is ours stays done.
            let found = if is_new { store.head(output, None)? } else { None };
            match found {
                Some(object) if claim.made(&object) => {
                    claim.forget()?;
                    return Ok(Claim::Done);
                }
                Some(object) if !existing.overwrite && !object.metadata.contains_key(JOB) => {
                    claim.forget()?;
                    return Err(Error::config(format!(
                        "expected no object at `{output}`, or one that Kivu wrote, but found another; choose another \
                         output, or remove it"
                    )));
                }
                _ => {}
            }
            return Ok(Claim::Taken(Box::new(claim)));
        }
        Err(taken(output))
    }

    /// Takes up the job that writes a file of this machine.
    pub(super) fn claim_file(
        output: OutputFile,
        job: &str,
        is_resumable: bool,
        interval: Duration,
    ) -> Result<Box<Self>> {
        let (home, state) = output.claim(job, &Uuid::new_v4().to_string(), is_resumable)?;
        let saved = Instant::now();
        Ok(Box::new(Self { home: Home::Local(home), state, waiting: Vec::new(), saved, interval }))
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

    /// The hash of an output that is whole, if it is a file.
    pub(super) fn digest(&self) -> Option<&str> {
        self.state.digest.as_deref()
    }

    /// The bytes that the next part should have.
    pub(super) fn part_bytes(&self) -> usize {
        match self.home {
            Home::Remote(_) => SMALLEST_PART * (1 + self.state.parts.len() / PARTS_OF_A_SIZE),
            Home::Local(_) => FILE_PIECE,
        }
    }

    /// Whether it is time to save what was done.
    pub(super) fn is_due(&self) -> bool {
        self.saved.elapsed() >= self.interval
    }

    /// Begins the upload, if that was not done.
    pub(super) fn begin(&mut self) -> Result<()> {
        if let (Home::Remote(home), None) = (&self.home, &self.state.upload) {
            let metadata = BTreeMap::from([(JOB.to_owned(), self.state.job.clone())]);
            self.state.upload = Some(home.store.begin(&home.output, &metadata)?);
            self.write(&[])?;
        }
        Ok(())
    }

    /// Saves where the job stands; what waits is kept with it, or written where it can be of any size.
    pub(super) fn save(&mut self, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        if let Home::Local(_) = self.home {
            let bytes = pieces.take()?;
            self.append(bytes)?;
        }
        let (waiting, footers) = pieces.state()?;
        self.state.footers = footers.clone();
        self.state.progress = progress.clone();
        self.write(waiting)
    }

    /// Sends bytes as the next part and saves where the job stands.
    pub(super) fn send(&mut self, bytes: Vec<u8>, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        self.append(bytes)?;
        self.save(pieces, progress)
    }

    /// Sends the last bytes, makes the output of all parts, and keeps the job until [`Self::forget`].
    pub(super) fn finish(&mut self, bytes: Vec<u8>, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        if !bytes.is_empty() || self.state.parts.is_empty() {
            self.append(bytes)?;
        }
        if let Home::Local(home) = &self.home {
            self.state.digest = Some(home.digest()?);
        }
        self.state.is_whole = true;
        self.save(pieces, progress)?;
        self.complete()
    }

    /// Makes the output of all parts; done twice it changes nothing.
    pub(super) fn complete(&self) -> Result<()> {
        let home = match &self.home {
            Home::Remote(home) => home,
            Home::Local(home) => return home.complete(),
        };
        let upload = self.state.upload.as_ref().ok_or_else(|| lost(&home.output))?;
        // An older output may be there, of an input that was replaced since.
        let condition = match home.store.head(&home.output, None)? {
            Some(object) if self.made(&object) => return Ok(()),
            Some(object) => Condition::IsStill(object.etag),
            None => Condition::IsAbsent,
        };
        if home.store.complete(upload, &self.state.parts, &condition)? || self.is_done()? {
            return Ok(());
        }
        Err(taken(&home.output))
    }

    /// Removes what is remembered of the job.
    pub(super) fn forget(&self) -> Result<()> {
        match &self.home {
            Home::Remote(home) => home.store.delete(&home.place),
            Home::Local(home) => home.forget(),
        }
    }

    /// Gives the job up, and all that was made for it.
    pub(super) fn abandon(&self) -> Result<()> {
        match (&self.home, &self.state.upload) {
            (Home::Local(home), _) => home.abandon(),
            (Home::Remote(home), Some(upload)) => {
                home.store.abort(upload)?;
                self.forget()
            }
            (Home::Remote(_), None) => self.forget(),
        }
    }

    fn is_done(&self) -> Result<bool> {
        match &self.home {
            Home::Remote(home) => {
                Ok(home.store.head(&home.output, None)?.is_some_and(|object| self.made(&object)))
            }
            Home::Local(_) => Ok(false),
        }
    }

    fn made(&self, object: &Object) -> bool {
        object.metadata.get(JOB) == Some(&self.state.job)
    }

    fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        let home = match &self.home {
            Home::Remote(home) => home,
            Home::Local(home) => {
                home.append(self.state.bytes, &bytes)?;
                self.state.bytes += bytes.len() as u64;
                return Ok(());
            }
        };
        if self.state.next > MOST_PARTS {
            return Err(Error::invalid(format!(
                "expected an output of at most {MOST_PARTS} parts, but found more"
            )));
        }
        let upload = self.state.upload.as_ref().ok_or_else(|| lost(&home.output))?;
        let part = home.store.upload(upload, self.state.next, bytes)?.ok_or_else(|| lost(&home.output))?;
        self.state.parts.push(part);
        self.state.next += 1;
        Ok(())
    }

    fn write(&mut self, waiting: &[u8]) -> Result<()> {
        let bytes = encode(&self.state, waiting)?;
        match &mut self.home {
            Home::Remote(home) => home.write(bytes, &self.state)?,
            Home::Local(home) => home.write(&bytes)?,
        }
        self.state.sequence += 1;
        self.saved = Instant::now();
        Ok(())
    }
}

impl RemoteHome {
    /// Rewrites the object, if nobody else has since.
    fn write(&mut self, bytes: Bytes, state: &State) -> Result<()> {
        let condition = Condition::IsStill(self.mark.clone());
        self.mark = match self.store.put(&self.place, bytes, &condition, &BTreeMap::new())? {
            Some(mark) => mark,
            // The answer to an attempt that did succeed may have been lost.
            None => match self.store.read(&self.place)? {
                Some((bytes, object)) if self.wrote(&bytes, state) => object.etag,
                _ => return Err(taken(&self.output)),
            },
        };
        Ok(())
    }

    fn wrote(&self, bytes: &[u8], state: &State) -> bool {
        parse(bytes, &self.place)
            .is_ok_and(|(found, _)| found.holder == state.holder && found.sequence == state.sequence)
    }
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

    /// The same for an output on this machine, which may replace the one with that hash.
    pub(super) fn of_file(self, is_resumable: bool, replaces: Option<String>) -> Self {
        Self { is_resumable, replaces, ..self }
    }

    /// Whether every part is there.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// The state on a line, and behind it the bytes that wait.
pub(super) fn encode(state: &State, waiting: &[u8]) -> Result<Bytes> {
    let mut bytes = serde_json::to_vec(state)
        .map_err(|error| Error::inference_because("where the job stands cannot be written", error))?;
    bytes.push(b'\n');
    bytes.extend_from_slice(waiting);
    Ok(bytes.into())
}

pub(super) fn parse(bytes: &[u8], place: &impl Display) -> Result<(State, Vec<u8>)> {
    let wrong = || {
        Error::model(format!(
            "expected a checkpoint of `kivu batch` in `{place}`, but found something else; move it away"
        ))
    };
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
    let state = serde_json::from_slice(&bytes[..end]).map_err(|_| wrong())?;
    Ok((state, bytes[end + 1..].to_vec()))
}

/// The error of a job that somebody else goes on with.
fn taken(output: &Url) -> Error {
    Error::Io {
        action: format!(
            "expected one process for the job that writes `{output}`, but another one took it over"
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
