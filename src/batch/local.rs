//! Output files of this machine: which paths may be written, and what is kept beside an output until it is complete.
//!
//! Beside `OUT` a job keeps `.OUT.kivu-partial`, the output so far, and `.OUT.kivu-checkpoint`, which says how far it
//! is. Both are created only where no file of that name exists, and are removed when the output is complete. The same
//! checks protect `OUT` itself and its report: a file that Kivu did not write is neither replaced nor removed.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
};

use tempfile::TempPath;

use super::{
    REPORT, Source,
    checkpoint::{State, encode, parse},
    report::Report,
};
use crate::error::{Error, Result};

/// How often a claim is repeated while another process finishes or starts a job for the same output.
const TRIES: usize = 20;
/// The longest file name of common file systems, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// A larger file is no report of Kivu's.
const MAX_REPORT_BYTES: u64 = 16 * 1024 * 1024;
const PARTIAL: &str = ".kivu-partial";
const CHECKPOINT: &str = ".kivu-checkpoint";
/// The next version of the checkpoint, before it gets its name.
const NEXT: &str = ".new";
/// The names of this process's standard output, which may be redirected to a regular file.
const STDOUT: [&str; 4] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"];

/// What to do about files of an earlier run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Replace an output that Kivu did not write, or that was changed since.
    pub overwrite: bool,
    /// Start an unfinished job from the beginning instead of continuing it.
    pub restart: bool,
}

/// Output that is written from its beginning to its end and cannot be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    /// A device, a FIFO or whatever else is no regular file.
    Special(PathBuf),
}

impl Stream {
    /// What `path` is, if it is no regular file and none is to be created there.
    ///
    /// Links to special files are followed, as `/dev/stdout` is one; so nothing is ever renamed over them.
    pub(super) fn of(path: &Path) -> Option<Self> {
        if STDOUT.iter().any(|stdout| path == Path::new(stdout)) {
            return Some(Self::Stdout);
        }
        let found = fs::metadata(path).ok()?;
        (!found.is_file() && !found.is_dir()).then(|| Self::Special(path.to_owned()))
    }

    /// Opens it; a FIFO waits for its reader.
    pub(super) fn open(&self) -> Result<File> {
        match self {
            Self::Stdout => {
                let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
                file.map_err(Error::io("cannot write to standard output"))
            }
            Self::Special(path) => {
                let file = OpenOptions::new().write(true).open(path);
                file.map_err(Error::io(format!("cannot write `{}`", path.display())))
            }
        }
    }
}

/// A regular file to be written, and the names beside it.
#[derive(Clone, Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    partial: PathBuf,
    checkpoint: PathBuf,
    next: PathBuf,
    existing: Existing,
}

impl OutputFile {
    /// Checks that a job may write `path`.
    ///
    /// # Errors
    /// - it is a folder, or a link to another file;
    /// - it, its report or its checkpoint is the file that is read;
    /// - it is a file that Kivu did not write, unless it is empty or may be overwritten;
    /// - the name of its report is taken by another file.
    pub(super) fn new(path: &Path, source: &Source, existing: Existing) -> Result<Self> {
        let shown = path.display();
        let is_folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let name = path.file_name().filter(|_| !is_folder);
        let name = name.ok_or_else(|| {
            Error::config(format!("expected a file for the output, but found the folder `{shown}`"))
        })?;
        if let Ok(target) = fs::read_link(path) {
            return Err(Error::config(format!(
                "expected a file for the output, but `{shown}` is a link to `{}`; name that file instead",
                target.display()
            )));
        }
        let beside = |end: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(end);
            path.with_file_name(hidden)
        };
        let next = format!("{CHECKPOINT}{NEXT}");
        let most = MAX_NAME_BYTES - 1 - next.len();
        if name.len() > most {
            return Err(Error::config(format!(
                "expected a name of at most {most} bytes for the output, but found {}; the files beside it have \
                 longer names",
                name.len()
            )));
        }
        let output = Self {
            partial: beside(PARTIAL),
            checkpoint: beside(CHECKPOINT),
            next: beside(&next),
            path: path.to_owned(),
            existing,
        };
        output.check_source(source)?;
        check_report(&report_path(path))?;
        output.check_replaceable()?;
        Ok(output)
    }

    fn check_source(&self, source: &Source) -> Result<()> {
        let Source::File(input) = source else { return Ok(()) };
        let Ok(input) = fs::metadata(input).map(|input| (input.dev(), input.ino())) else { return Ok(()) };
        for path in [&self.path, &report_path(&self.path), &self.partial, &self.checkpoint, &self.next] {
            if fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == input) {
                return Err(Error::config(format!(
                    "expected an output other than the input, but `{}` is the same file",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Whether the output may get its name: nothing is lost but what Kivu wrote, or what the caller gave up.
    fn check_replaceable(&self) -> Result<()> {
        let shown = self.path.display();
        let Some(found) = lookup(&self.path)? else { return Ok(()) };
        if !found.is_file() {
            return Err(Error::config(format!("expected a file in `{shown}`, but found something else")));
        }
        // A user who may not write the file may not replace it either, though the folder would allow it.
        let writable = OpenOptions::new().write(true).open(&self.path);
        writable.map_err(Error::io(format!("cannot write `{shown}`")))?;
        if found.len() == 0 || self.existing.overwrite || self.is_known()? {
            return Ok(());
        }
        Err(Error::config(format!(
            "expected no file in `{shown}`, or the last output of `kivu batch`, but found another or a changed one; \
             choose another output, or replace it with `--overwrite`"
        )))
    }

    /// Whether the file is an output that the report or the checkpoint beside it is about.
    fn is_known(&self) -> Result<bool> {
        let checkpoint = self.read_checkpoint().ok().flatten().map(|(state, _)| state);
        let checkpoint = checkpoint.into_iter().flat_map(|state| [state.digest, state.replaces]).flatten();
        let known: Vec<String> = known_digest(&self.path).into_iter().chain(checkpoint).collect();
        Ok(!known.is_empty() && known.contains(&digest(&self.path)?))
    }

    /// Takes up the job for this output, or starts it.
    pub(super) fn claim(self, job: &str, holder: &str, is_resumable: bool) -> Result<(LocalHome, State)> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder).map_err(Error::io(format!("cannot create `{}`", folder.display())))?;
        }
        let begin = |replaces: Option<String>| State::new(job, holder).of_file(is_resumable, replaces);
        let mut replaces = known_digest(&self.path);
        for _ in 0..TRIES {
            let Some((state, bytes)) = self.read_checkpoint()? else {
                self.refuse_leftovers()?;
                match self.create(&self.checkpoint, &encode(&begin(replaces.clone()), &[])?) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    created => created.map_err(self.failed())?,
                };
                continue;
            };
            let file = match self.open_partial(&state)? {
                Partial::Open(file) => Some(file),
                Partial::Named => None,
                // There is nothing to continue.
                Partial::Gone => {
                    remove(&self.checkpoint)?;
                    continue;
                }
            };
            if let Some(file) = &file {
                match file.try_lock() {
                    Err(TryLockError::WouldBlock) => return Err(self.busy()),
                    // Some file systems have no locks.
                    Ok(()) | Err(TryLockError::Error(_)) => {}
                }
                let now = lookup(&self.partial)?.map(|found| found.ino());
                let mine = file.metadata().map_err(self.failed())?.ino();
                let is_current = self.read_checkpoint()?.is_some_and(|(_, now)| now == bytes);
                if now != Some(mine) || !is_current {
                    continue;
                }
            }
            let starts_over = self.existing.restart || !state.is_resumable || state.bytes == 0;
            let mut state = match (state.job == job, starts_over, &file) {
                (_, true, Some(_)) => begin(state.replaces),
                (true, ..) => state,
                (false, _, None) => {
                    // That job is done but for its report.
                    replaces = state.digest;
                    remove(&self.checkpoint)?;
                    continue;
                }
                (false, false, Some(_)) => return Err(self.other_job()),
            };
            state.holder = holder.to_owned();
            state.sequence += 1;
            if let Some(file) = &file {
                let length = file.metadata().map_err(self.failed())?.len();
                if length < state.bytes {
                    return Err(self.damaged(&format!("{} bytes", state.bytes), &format!("{length}")));
                }
                file.set_len(state.bytes).map_err(self.failed())?;
            }
            let home = LocalHome { output: self, file };
            home.write(&encode(&state, &[])?)?;
            return Ok((home, state));
        }
        Err(self.busy())
    }

    fn read_checkpoint(&self) -> Result<Option<(State, Vec<u8>)>> {
        let Some(found) = lookup(&self.checkpoint)? else { return Ok(None) };
        if !found.is_file() {
            return Err(self.unexpected(&self.checkpoint));
        }
        match fs::read(&self.checkpoint) {
            Ok(bytes) => {
                let (state, _) = parse(&bytes, &self.checkpoint.display())?;
                Ok(Some((state, bytes)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed()(error)),
        }
    }

    /// Without a checkpoint, a file of these names is not known to be Kivu's.
    fn refuse_leftovers(&self) -> Result<()> {
        for path in [&self.partial, &self.next] {
            if lookup(path)?.is_some() {
                return Err(self.unexpected(path));
            }
        }
        Ok(())
    }

    fn open_partial(&self, state: &State) -> Result<Partial> {
        match lookup(&self.partial)? {
            Some(found) if !found.is_file() => Err(self.unexpected(&self.partial)),
            Some(_) => {
                let file = OpenOptions::new().read(true).write(true).open(&self.partial);
                file.map(Partial::Open).map_err(self.failed())
            }
            None if state.bytes == 0 => match self.create(&self.partial, &[]) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(self.busy()),
                created => created.map(Partial::Open).map_err(self.failed()),
            },
            None if state.is_whole() => {
                let is_there = lookup(&self.path)?.is_some_and(|found| found.is_file())
                    && Some(digest(&self.path)?) == state.digest;
                Ok(if is_there { Partial::Named } else { Partial::Gone })
            }
            None if self.existing.restart || !state.is_resumable => Ok(Partial::Gone),
            None => Err(self.damaged("the output so far", "none")),
        }
    }

    /// A new file with the mode and, where that is permitted, the owner of the output that it is to replace; otherwise
    /// the umask decides.
    fn create(&self, path: &Path, contents: &[u8]) -> io::Result<File> {
        let replaced = fs::symlink_metadata(&self.path).ok().filter(fs::Metadata::is_file);
        let mode = replaced.as_ref().map(|replaced| replaced.mode() & 0o777);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode.unwrap_or(0o666))
            .open(path)?;
        if let (Some(replaced), Some(mode)) = (replaced, mode) {
            // Only root may give files away.
            let _ = fchown(&file, Some(replaced.uid()), Some(replaced.gid()));
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        let written = file.write_all(contents).and_then(|()| file.sync_data());
        if let Err(error) = written {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(file)
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(format!("cannot write `{}`", self.path.display()))
    }

    fn busy(&self) -> Error {
        Error::config(format!(
            "expected one `kivu batch` at a time for `{}`, but another one is writing it",
            self.path.display()
        ))
    }

    fn other_job(&self) -> Error {
        Error::config(format!(
            "expected the input, model and options of the unfinished job for `{}`, but found others; run it as \
             before to continue it, or start over with `--restart`",
            self.path.display()
        ))
    }

    fn damaged(&self, expected: &str, found: &str) -> Error {
        Error::config(format!(
            "expected {expected} in `{}`, but found {found}; start over with `--restart`",
            self.partial.display()
        ))
    }

    fn unexpected(&self, path: &Path) -> Error {
        Error::config(format!(
            "expected no file in `{}`, where an unfinished output is kept, but found one; move it away, or choose \
             another output",
            path.display()
        ))
    }
}

/// The output of a job that was begun.
enum Partial {
    Open(File),
    /// It is complete and has its name already.
    Named,
    /// It had its name and was moved or changed since, or nobody wants to continue it.
    Gone,
}

/// The files of a job under way.
pub(super) struct LocalHome {
    output: OutputFile,
    /// The output so far, locked; nothing once it has its name.
    file: Option<File>,
}

impl LocalHome {
    /// Writes bytes behind the first `start` of the output.
    pub(super) fn append(&self, start: u64, bytes: &[u8]) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        // The checkpoint must not promise what a power failure can take back.
        file.write_all_at(bytes, start).and_then(|()| file.sync_data()).map_err(self.output.failed())
    }

    /// Replaces the checkpoint.
    pub(super) fn write(&self, checkpoint: &[u8]) -> Result<()> {
        let OutputFile { checkpoint: path, next, .. } = &self.output;
        let written = self.output.create(next, checkpoint).or_else(|error| match error.kind() {
            // Of a process that was killed between its two steps.
            io::ErrorKind::AlreadyExists => {
                fs::remove_file(next).and_then(|()| self.output.create(next, checkpoint))
            }
            _ => Err(error),
        });
        written.and_then(|_| fs::rename(next, path)).map_err(self.output.failed())
    }

    /// The digest of the output so far.
    pub(super) fn digest(&self) -> Result<String> {
        digest(if self.file.is_some() { &self.output.partial } else { &self.output.path })
    }

    /// Gives the output its name; done twice it changes nothing.
    pub(super) fn complete(&self) -> Result<()> {
        let OutputFile { path, partial, .. } = &self.output;
        if self.file.is_none() || lookup(partial)?.is_none() {
            return Ok(());
        }
        self.output.check_replaceable()?;
        let named = match lookup(path)? {
            Some(_) => fs::rename(partial, path).or_else(|error| match error.kind() {
                // A file that is mounted by itself, as in a container, cannot be replaced, only filled.
                io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices => {
                    fs::copy(partial, path).and_then(|_| fs::remove_file(partial))
                }
                _ => Err(error),
            }),
            None => rename_new(partial, path),
        };
        named.map_err(self.output.failed())
    }

    /// Removes the checkpoint.
    pub(super) fn forget(&self) -> Result<()> {
        remove(&self.output.next)?;
        remove(&self.output.checkpoint)
    }

    /// Removes the output so far, and the checkpoint.
    pub(super) fn abandon(&self) -> Result<()> {
        if self.file.is_some() {
            remove(&self.output.partial)?;
        }
        self.forget()
    }
}

/// What is at `path` itself, links not followed; nothing where there is nothing.
fn lookup(path: &Path) -> Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("cannot look at `{}`", path.display()))(error)),
    }
}

/// Renames a file, unless there is one of the new name: in one step where the file system can do that.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    TempPath::try_from_path(from)?.persist_noclobber(to).or_else(|refused| {
        // It is not temporary: a later run gives it its name.
        let _ = refused.path.keep();
        match (refused.error.kind(), fs::symlink_metadata(to)) {
            (io::ErrorKind::AlreadyExists, _) | (_, Ok(_)) => Err(refused.error),
            _ => fs::rename(from, to),
        }
    })
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove `{}`", path.display()))(error))
        }
        _ => Ok(()),
    }
}

fn report_path(output: &Path) -> PathBuf {
    let mut name = output.to_owned().into_os_string();
    name.push(REPORT);
    name.into()
}

/// The digest of the output that an earlier job wrote, as its report has it.
pub(super) fn known_digest(output: &Path) -> Option<String> {
    read_report(&report_path(output)).and_then(|report| report.output_digest)
}

fn check_report(path: &Path) -> Result<Option<fs::Metadata>> {
    match lookup(path)? {
        Some(found) if !found.is_file() || found.len() > 0 && read_report(path).is_none() => {
            Err(Error::config(format!(
                "expected `{}` to be absent or a report of `kivu batch`, but found another file; choose another output",
                path.display()
            )))
        }
        found => Ok(found),
    }
}

/// Writes the report beside an output, in place of an older one.
pub(super) fn write_report(output: &Path, text: &[u8]) -> Result<()> {
    let path = report_path(output);
    let replaced = check_report(&path)?;
    let failed = || Error::io(format!("cannot write `{}`", path.display()));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed())?;
    let mode = fs::Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().prefix(".kivu-report-").permissions(mode).tempfile_in(folder);
    let mut file = file.map_err(failed())?;
    if let Some(replaced) = replaced {
        file.as_file().set_permissions(replaced.permissions()).map_err(failed())?;
    }
    file.write_all(text).map_err(failed())?;
    file.persist(&path).map(drop).map_err(|refused| failed()(refused.error))
}

/// The report at `path`, if there is one.
fn read_report(path: &Path) -> Option<Report> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_REPORT_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The BLAKE3 hash of a file.
fn digest(path: &Path) -> Result<String> {
    let failed = || Error::io(format!("cannot read `{}`", path.display()));
    let mut file = File::open(path).map_err(failed())?;
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; 1024 * 1024]);
    loop {
        match file.read(&mut buffer).map_err(failed())? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            read => hasher.update(&buffer[..read]),
        };
    }
}
