//! Local outputs. The checkpoint is replaced by renaming, and a lock limits a job to one process.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::Duration,
};

use blake3::Hasher;
use bytes::Bytes;
use uuid::Uuid;

use super::{
    appender::Appender,
    checkpoint::{Checkpoint, State, Storage, StoredCheckpoint, encode},
    files::{digest, lookup, remove, rename_new},
    output_file::OutputFile,
    pieces::Pieces,
    report_file,
};
use kivu::{Error, Result};

/// Attempts to claim a job while another process finishes or starts a job for the same output.
const TRIES: usize = 20;
/// Part size in bytes.
pub const PART_BYTES: usize = 4 * 1024 * 1024;
/// Size of uncompressed parts, which may have any size: smaller ones take less memory.
const PLAIN_PART_BYTES: usize = 1024 * 1024;
/// A save waits for the disk, which a fast model must not do after each part.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

struct LocalStorage {
    output: OutputFile,
    /// The output so far, locked; `None` after it is renamed.
    file: Option<Arc<File>>,
    /// Hash of the output so far; `None` while the appender has it, and after the output is renamed.
    hasher: Option<Hasher>,
    /// Writes and hashes parts.
    appender: Option<Appender>,
}

impl LocalStorage {
    /// Waits until all parts are in the file.
    fn flush(&mut self) -> Result<()> {
        if let Some(appender) = self.appender.take() {
            self.hasher = appender.finish().map_err(self.output.failed())?;
        }
        Ok(())
    }
}

impl Drop for LocalStorage {
    /// The thread would keep the file locked.
    fn drop(&mut self) {
        // An error was returned earlier, or affects only parts after the last checkpoint.
        let _ = self.flush();
    }
}

/// A job's unfinished output.
enum Partial {
    Open(File),
    /// The output is complete and has its name.
    Named,
    /// There is nothing to resume: the output was moved or changed, or is not to be resumed.
    Missing,
}

/// Claims the job that writes `output`, and resumes or starts it.
///
/// # Errors
/// Another process has the job, or a different job for this output is unfinished.
pub fn claim(
    output: OutputFile,
    job: &str,
    is_resumable: bool,
    interval: Duration,
) -> Result<Box<Checkpoint>> {
    let holder = Uuid::new_v4().to_string();
    let folder = output
        .path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        fs::create_dir_all(folder).map_err(Error::cannot("create", folder.display()))?;
    }
    let begin = |replaces| State {
        is_resumable,
        replaces,
        ..State::new(job, &holder)
    };
    let mut replaces = report_file::known_digest(&output.path);
    for _ in 0..TRIES {
        let Some(StoredCheckpoint {
            state,
            mut waiting,
            bytes,
        }) = output.read_checkpoint()?
        else {
            match output.refuse_leftovers() {
                // Another process has just begun the job.
                Err(_) if output.read_checkpoint()?.is_some() => continue,
                checked => checked?,
            }
            match output.create(&output.checkpoint, &encode(&begin(replaces.clone()), &[])?) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created.map_err(output.failed())?,
            };
            continue;
        };
        let file = match open_partial(&output, &state)? {
            Partial::Open(file) => Some(file),
            Partial::Named => None,
            Partial::Missing => {
                remove(&output.checkpoint)?;
                continue;
            }
        };
        if let Some(file) = &file {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(output.busy()),
                // Some file systems do not support locks.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            let now = lookup(&output.partial)?.map(|found| found.ino());
            let mine = file.metadata().map_err(output.failed())?.ino();
            let is_current = output
                .read_checkpoint()?
                .is_some_and(|found| found.bytes == bytes);
            if now != Some(mine) || !is_current {
                continue;
            }
        }
        // With a sink, rows may be done without output; and an output without rows may have begun.
        let starts_over =
            output.existing.restart || !state.is_resumable || state.progress.rows == 0;
        let mut state = match (state.job == job, starts_over, &file) {
            (_, true, Some(_)) => {
                waiting.clear();
                begin(state.replaces)
            }
            (true, ..) => state,
            (false, _, None) => {
                // The other job is complete except for its report.
                replaces = state.digest;
                remove(&output.checkpoint)?;
                continue;
            }
            (false, false, Some(_)) => return Err(output.other_job()),
        };
        state.holder.clone_from(&holder);
        state.sequence += 1;
        if let Some(file) = &file {
            let length = file.metadata().map_err(output.failed())?.len();
            if length < state.bytes {
                return Err(output.damaged(&format!("{} bytes", state.bytes), &format!("{length}")));
            }
            file.set_len(state.bytes).map_err(output.failed())?;
        }
        let hasher = file
            .as_ref()
            .map(|file| hasher(file, &state, &output))
            .transpose()?;
        let mut storage = LocalStorage {
            output,
            file: file.map(Arc::new),
            hasher,
            appender: None,
        };
        storage.write(&state, encode(&state, &waiting)?)?;
        return Ok(Checkpoint::new(Box::new(storage), state, waiting, interval));
    }
    Err(output.busy())
}

/// The hasher after the output so far, which must be what the checkpoint describes.
fn hasher(file: &File, state: &State, output: &OutputFile) -> Result<Hasher> {
    let mut hasher = Hasher::new();
    hasher
        .update_reader(file.take(state.bytes))
        .map_err(output.failed())?;
    let found = hasher.finalize().to_hex();
    let expected = state.digest.as_deref().unwrap_or("none");
    if state.bytes == 0 || found.as_str() == expected {
        return Ok(hasher);
    }
    Err(output.damaged(&format!("the BLAKE3 {expected}"), found.as_str()))
}

fn open_partial(output: &OutputFile, state: &State) -> Result<Partial> {
    match lookup(&output.partial)? {
        Some(found) if !found.is_file() => Err(output.unexpected(&output.partial)),
        Some(_) => {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&output.partial);
            file.map(Partial::Open).map_err(output.failed())
        }
        None if state.bytes == 0 => match output.create(&output.partial, &[]) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(output.busy()),
            created => created.map(Partial::Open).map_err(output.failed()),
        },
        None if state.is_whole => {
            let is_there = lookup(&output.path)?.is_some_and(|found| found.is_file())
                && Some(digest(&output.path)?) == state.digest;
            Ok(if is_there {
                Partial::Named
            } else {
                Partial::Missing
            })
        }
        None if output.existing.restart || !state.is_resumable => Ok(Partial::Missing),
        None => Err(output.damaged("the output so far", "none")),
    }
}

impl Storage for LocalStorage {
    fn begin(&self, _: &mut State) -> Result<bool> {
        Ok(false)
    }

    fn part_bytes(&self, _: &State, pieces: &Pieces) -> usize {
        if pieces.is_plain() {
            PLAIN_PART_BYTES
        } else {
            PART_BYTES
        }
    }

    fn accepts_small_parts(&self) -> bool {
        true
    }

    fn min_interval(&self) -> Duration {
        MIN_INTERVAL
    }

    fn append(&mut self, state: &mut State, bytes: Vec<u8>) -> Result<()> {
        let offset = state.bytes;
        state.bytes += bytes.len() as u64;
        if let Some(file) = &self.file {
            let appender = match self.appender.take() {
                Some(appender) => Ok(appender),
                None => Appender::start(Arc::clone(file), self.hasher.take()),
            };
            self.appender
                .insert(appender.map_err(self.output.failed())?)
                .append(offset, bytes);
        }
        Ok(())
    }

    fn write(&mut self, _: &State, checkpoint: Bytes) -> Result<()> {
        self.flush()?;
        // A checkpoint must not be more durable than the output.
        if let Some(file) = &self.file {
            file.sync_data().map_err(self.output.failed())?;
        }
        let OutputFile {
            checkpoint: path,
            next,
            ..
        } = &self.output;
        let written = self
            .output
            .create(next, &checkpoint)
            .or_else(|error| match error.kind() {
                // Left by a process that was killed before it renamed the file.
                io::ErrorKind::AlreadyExists => {
                    fs::remove_file(next).and_then(|()| self.output.create(next, &checkpoint))
                }
                _ => Err(error),
            });
        written
            .and_then(|_| fs::rename(next, path))
            .map_err(self.output.failed())
    }

    fn digest(&mut self) -> Result<Option<String>> {
        self.flush()?;
        Ok(Some(match &self.hasher {
            Some(hasher) => hasher.finalize().to_hex().to_string(),
            None => digest(if self.file.is_some() {
                &self.output.partial
            } else {
                &self.output.path
            })?,
        }))
    }

    fn complete(&self, _: &State) -> Result<()> {
        let OutputFile { path, partial, .. } = &self.output;
        if self.file.is_none() || lookup(partial)?.is_none() {
            return Ok(());
        }
        self.output.check_replaceable()?;
        let named = match lookup(path)? {
            Some(_) => fs::rename(partial, path).or_else(|error| match error.kind() {
                // A mounted file, as in a container, cannot be replaced.
                io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices => {
                    fs::copy(partial, path).and_then(|_| fs::remove_file(partial))
                }
                _ => Err(error),
            }),
            None => rename_new(partial, path),
        };
        named.map_err(self.output.failed())
    }

    fn forget(&self) -> Result<()> {
        remove(&self.output.next)?;
        remove(&self.output.checkpoint)
    }

    fn abandon(&self, _: &State) -> Result<()> {
        if self.file.is_some() {
            remove(&self.output.partial)?;
        }
        self.forget()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        input::{
            compression::Compression,
            location::{Existing, JobInput},
        },
        output::{
            answer::label_columns,
            pieces::{Pieces, Shape},
            report::Progress,
        },
        rows::Head,
    };

    /// The pieces and the progress of a job after some rows.
    fn progressed(rows: u64) -> (Pieces, Progress) {
        let pieces = Pieces::new(Shape {
            compression: Compression::None,
            columns: label_columns(),
            head: Head::JsonLines,
        });
        let progress = Progress {
            rows,
            ..Progress::default()
        };
        (pieces, progress)
    }

    #[test]
    fn a_damaged_output_is_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let claimed = |restart| {
            let existing = Existing {
                restart,
                ..Existing::default()
            };
            let output = OutputFile::new(&path, &JobInput::Stdin, existing).unwrap();
            claim(output, "job", true, Duration::MAX)
        };
        let (mut pieces, progress) = progressed(2);
        let mut first = claimed(false).unwrap();
        first
            .send(b"one\ntwo\n".to_vec(), &mut pieces, &progress)
            .unwrap();
        first.save(&mut pieces, &progress).unwrap();
        drop(first);
        let partial = folder.path().join(".out.jsonl.kivu-partial");
        fs::write(&partial, "one\ntwp\n").unwrap();
        let error = claimed(false).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("expected the BLAKE3 ") && error.ends_with("`--restart`"),
            "{error}"
        );
        assert_eq!(claimed(true).unwrap().state.bytes, 0);
    }

    #[test]
    fn rows_without_output_are_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let output = OutputFile::new(&path, &JobInput::Stdin, Existing::default()).unwrap();
        let claimed = |job| claim(output.clone(), job, true, Duration::MAX);
        let (mut pieces, progress) = progressed(64);
        claimed("job")
            .unwrap()
            .save(&mut pieces, &progress)
            .unwrap();
        assert_eq!(claimed("job").unwrap().state.progress.rows, 64);
        assert!(claimed("another job").is_err());
    }

    #[test]
    fn parts_are_saved_together_and_hashed_in_every_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let output = OutputFile::new(&path, &JobInput::Stdin, Existing::default()).unwrap();
        let claimed = || claim(output.clone(), "job", true, Duration::MAX).unwrap();
        let saved = || output.read_checkpoint().unwrap().unwrap().state.bytes;
        let (mut pieces, progress) = progressed(2);
        let mut first = claimed();
        first
            .send(b"one\n".to_vec(), &mut pieces, &progress)
            .unwrap();
        first
            .send(b"two\n".to_vec(), &mut pieces, &progress)
            .unwrap();
        assert_eq!(saved(), 0, "a save within the interval");
        first.save(&mut pieces, &progress).unwrap();
        assert_eq!(saved(), 8);
        first
            .send(b"lost\n".to_vec(), &mut pieces, &progress)
            .unwrap();
        drop(first);
        let mut second = claimed();
        second
            .finish(b"three\n".to_vec(), &mut pieces, &progress)
            .unwrap();
        let expected = b"one\ntwo\nthree\n";
        assert_eq!(fs::read(&path).unwrap(), expected);
        let digest = blake3::hash(expected).to_hex().to_string();
        assert_eq!(second.state.digest.as_deref(), Some(digest.as_str()));
    }
}
