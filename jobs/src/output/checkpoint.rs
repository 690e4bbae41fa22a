//! Checkpoints: job state and output so far, in a storage that survives the process.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{pieces::Pieces, report::Progress};
use crate::rows::{Footers, Layout};
use kivu::{
    Error, Result,
    pipeline::redaction::placeholders::Mapping,
    repository::{
        s3::{Multipart, Part},
        sealed,
    },
};

/// Stores an output and its checkpoint. Only one process can claim a job.
pub trait Storage: Send {
    /// Prepares the storage for the first part; returns whether the state changed.
    fn begin(&self, state: &mut State) -> Result<bool>;

    /// Next part's size in bytes, which may depend on whether the pieces are plain text.
    fn part_bytes(&self, state: &State, pieces: &Pieces) -> usize;

    /// Whether parts may be smaller than [`Self::part_bytes`].
    fn accepts_small_parts(&self) -> bool;

    /// The minimum time between saves after parts.
    fn min_interval(&self) -> Duration;

    /// Appends a part to the output, which becomes durable with the next checkpoint.
    fn append(&mut self, state: &mut State, bytes: Vec<u8>) -> Result<()>;

    /// Replaces the checkpoint; an error if another process claimed the job.
    fn write(&mut self, state: &State, checkpoint: Bytes) -> Result<()>;

    /// BLAKE3 of the output so far; `None` for storages that do not use it.
    fn digest(&mut self) -> Result<Option<String>>;

    /// Gives the complete output its name. Idempotent.
    fn complete(&self, state: &State) -> Result<()>;

    /// Deletes the checkpoint.
    fn forget(&self) -> Result<()>;

    /// Deletes the unfinished output and the checkpoint.
    fn abandon(&self, state: &State) -> Result<()>;
}

/// A claimed job.
pub struct Checkpoint {
    storage: Box<dyn Storage>,
    pub state: State,
    /// Finished output pieces that are too small for a part.
    pub waiting: Vec<u8>,
    saved: Instant,
    interval: Duration,
}

impl Checkpoint {
    /// A job that this process has claimed and saved; it is saved again after `interval`.
    pub fn new(
        storage: Box<dyn Storage>,
        state: State,
        waiting: Vec<u8>,
        interval: Duration,
    ) -> Box<Self> {
        Box::new(Self {
            storage,
            state,
            waiting,
            saved: Instant::now(),
            interval,
        })
    }

    pub fn part_bytes(&self, pieces: &Pieces) -> usize {
        self.storage.part_bytes(&self.state, pieces)
    }

    /// Whether the interval is over.
    pub fn is_due(&self) -> bool {
        self.saved.elapsed() >= self.interval
    }

    /// Prepares the storage, if that was not done.
    pub fn begin(&mut self) -> Result<()> {
        if self.storage.begin(&mut self.state)? {
            self.write(&[])
        } else {
            Ok(())
        }
    }

    /// Saves the job with its waiting output.
    pub fn save(&mut self, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        if self.storage.accepts_small_parts() {
            // Not by the pieces' size, which leaves out what an encoder has not written yet.
            let bytes = pieces.take()?;
            if !bytes.is_empty() {
                self.storage.append(&mut self.state, bytes)?;
            }
        }
        self.state.placeholders.clone_from(pieces.placeholders());
        let (waiting, footers) = pieces.state()?;
        self.state.footers.clone_from(footers);
        self.state.progress = progress.clone();
        self.write(waiting)
    }

    /// Appends a part, and saves the job if its last save is long enough ago.
    pub fn send(&mut self, bytes: Vec<u8>, pieces: &mut Pieces, progress: &Progress) -> Result<()> {
        self.storage.append(&mut self.state, bytes)?;
        if self.saved.elapsed() < self.storage.min_interval() {
            return Ok(());
        }
        self.save(pieces, progress)
    }

    /// Appends the last part and gives the output its name. The checkpoint remains until [`Self::forget`].
    pub fn finish(
        &mut self,
        bytes: Vec<u8>,
        pieces: &mut Pieces,
        progress: &Progress,
    ) -> Result<()> {
        if !bytes.is_empty() || self.state.parts.is_empty() {
            self.storage.append(&mut self.state, bytes)?;
        }
        self.state.is_whole = true;
        self.save(pieces, progress)?;
        self.complete()
    }

    /// Gives the complete output its name. Idempotent.
    pub fn complete(&self) -> Result<()> {
        self.storage.complete(&self.state)
    }

    /// Deletes the checkpoint.
    pub fn forget(&self) -> Result<()> {
        self.storage.forget()
    }

    /// Deletes the unfinished output and the checkpoint.
    pub fn abandon(&self) -> Result<()> {
        self.storage.abandon(&self.state)
    }

    fn write(&mut self, waiting: &[u8]) -> Result<()> {
        self.state.digest = self.storage.digest()?;
        self.storage
            .write(&self.state, encode(&self.state, waiting)?)?;
        self.state.sequence += 1;
        self.saved = Instant::now();
        Ok(())
    }
}

/// A checkpoint in a file.
pub struct StoredCheckpoint {
    pub state: State,
    pub waiting: Vec<u8>,
    /// The file.
    pub bytes: Vec<u8>,
}

/// A job's state: the first line of its sealed checkpoint. The waiting bytes follow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Identifies input, model and parameters.
    pub job: String,
    /// The process that wrote the state.
    pub holder: String,
    /// Number of earlier writes.
    pub sequence: u64,
    pub upload: Option<Multipart>,
    pub parts: Vec<Part>,
    /// Next part number.
    pub next: i32,
    pub footers: Footers,
    pub progress: Progress,
    /// Whether the output is complete except for its name.
    pub is_whole: bool,
    /// Size of a local output so far.
    pub bytes: u64,
    /// BLAKE3 of a local output so far.
    pub digest: Option<String>,
    /// BLAKE3 of the local output that this job replaces.
    pub replaces: Option<String>,
    /// Whether the job can resume, since its input can be read again.
    pub is_resumable: bool,
    /// The originals of the rows so far by placeholder, if these are numbered in the file.
    #[serde(default, skip_serializing_if = "Mapping::is_empty")]
    pub placeholders: Mapping,
    /// The detected text column and CSV dialect.
    pub layout: Option<Layout>,
}

impl State {
    pub fn new(job: &str, holder: &str) -> Self {
        let (job, holder) = (job.to_owned(), holder.to_owned());
        Self {
            job,
            holder,
            next: 1,
            is_resumable: true,
            ..Self::default()
        }
    }
}

pub fn encode(state: &State, waiting: &[u8]) -> Result<Bytes> {
    let mut contents = serde_json::to_vec(state)
        .map_err(|error| Error::inference_because("the checkpoint cannot be written", error))?;
    contents.push(b'\n');
    contents.extend_from_slice(waiting);
    Ok(sealed::seal(&contents).into())
}

pub fn parse(bytes: &[u8], place: &dyn Display) -> Result<(State, Vec<u8>)> {
    let wrong = || {
        Error::model(format!(
            "`{place}` is not a checkpoint of `kivu batch`, or is damaged"
        ))
        .with_hint("move it away")
    };
    let contents = sealed::open(bytes).ok_or_else(wrong)?;
    let end = contents.iter().position(|byte| *byte == b'\n');
    let (line, waiting) = contents.split_at(end.ok_or_else(wrong)?);
    let state = serde_json::from_slice(line).map_err(|_| wrong())?;
    Ok((state, waiting[1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damaged_bit_of_a_checkpoint_is_noticed() {
        let state = State {
            bytes: 4096,
            layout: Some(Layout::default()),
            progress: Progress {
                rows: 64,
                ..Progress::default()
            },
            ..State::new("job", "me")
        };
        let checkpoint = encode(&state, b"rows that\nwait").unwrap();
        let (found, waiting) = parse(&checkpoint, &"here").unwrap();
        assert_eq!(
            (found.progress.rows, waiting.as_slice()),
            (64, &b"rows that\nwait"[..])
        );
        for bit in 0..checkpoint.len() * 8 {
            let mut damaged = checkpoint.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&damaged, &"here").is_err(), "bit {bit}");
        }
        insta::assert_snapshot!(parse(b"{}", &"here").unwrap_err(), @"`here` is not a checkpoint of `kivu batch`, or is damaged; move it away");
    }
}
