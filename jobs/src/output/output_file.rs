//! Local output files: the paths that may be written, and the file names next to them.
//!
//! While a job writes `OUT`, `.OUT.kivu-partial` contains the output so far, and `.OUT.kivu-checkpoint` the checkpoint.
//! Both are created only if no file has their name, and are removed when the output is complete. Files that Kivu did
//! not write are neither replaced nor removed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

use super::{
    checkpoint::{State, StoredCheckpoint, parse},
    files::{digest, lookup},
    report_file,
};
use crate::input::location::{Existing, JobInput};
use kivu::{Error, Result, regular_file};

/// Maximum file name length in common file systems.
const MAX_NAME_BYTES: usize = 255;
const PARTIAL: &str = ".kivu-partial";
const CHECKPOINT: &str = ".kivu-checkpoint";
/// Suffix for the next checkpoint before it replaces the current one.
const NEXT: &str = ".new";

/// A regular file to be written, and the file names next to it.
#[derive(Clone, Debug)]
pub struct OutputFile {
    pub path: PathBuf,
    pub partial: PathBuf,
    pub checkpoint: PathBuf,
    pub next: PathBuf,
    pub existing: Existing,
}

impl OutputFile {
    /// Checks that a job may write `path`.
    ///
    /// # Errors
    /// - It is a folder, or a link to another file.
    /// - It, its report or its checkpoint is the input.
    /// - It is a file that Kivu did not write, unless it is empty or may be overwritten.
    /// - The file with its report's name is not a report.
    pub fn new(path: &Path, input: &JobInput, existing: Existing) -> Result<Self> {
        let shown = path.display();
        let is_folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let name = path.file_name().filter(|_| !is_folder);
        let name = name.ok_or_else(|| {
            Error::config(format!(
                "expected a file for the output, but found the folder `{shown}`"
            ))
        })?;
        if let Ok(target) = fs::read_link(path) {
            return Err(Error::config(format!(
                "expected a file for the output, but `{shown}` is a link to `{}`",
                target.display()
            ))
            .with_hint("name that file instead"));
        }
        let hidden = |end: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(end);
            path.with_file_name(hidden)
        };
        let next = format!("{CHECKPOINT}{NEXT}");
        let max = MAX_NAME_BYTES - 1 - next.len();
        if name.len() > max {
            return Err(Error::config(format!(
                "expected a name of at most {max} bytes for the output, but found {}",
                name.len()
            ))
            .with_hint("the files next to it have longer names"));
        }
        let output = Self {
            partial: hidden(PARTIAL),
            checkpoint: hidden(CHECKPOINT),
            next: hidden(&next),
            path: path.to_owned(),
            existing,
        };
        output.check_input(input)?;
        report_file::check(&report_file::path_of(path))?;
        output.check_replaceable()?;
        Ok(output)
    }

    fn check_input(&self, input: &JobInput) -> Result<()> {
        let JobInput::File(input) = input else {
            return Ok(());
        };
        let Ok(input) = fs::metadata(input).map(|input| (input.dev(), input.ino())) else {
            return Ok(());
        };
        for path in [
            &self.path,
            &report_file::path_of(&self.path),
            &self.partial,
            &self.checkpoint,
            &self.next,
        ] {
            if fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == input) {
                return Err(Error::config(format!(
                    "the output would overwrite the input: `{}` is the same file",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Checks that the output may replace the file with its name: Kivu's own output, or one that may be overwritten.
    pub fn check_replaceable(&self) -> Result<()> {
        let shown = self.path.display();
        let Some(found) = lookup(&self.path)? else {
            return Ok(());
        };
        if !found.is_file() {
            return Err(Error::config(format!("`{shown}` is not a regular file")));
        }
        // A file that the user cannot write is not replaced, even if the folder permits it.
        let writable = OpenOptions::new().write(true).open(&self.path);
        writable.map_err(Error::io(format!("cannot write `{shown}`")))?;
        if found.len() == 0 || self.existing.overwrite || self.is_known()? {
            return Ok(());
        }
        Err(Error::config(format!(
            "`{shown}` was not written by `kivu batch`, or has changed since"
        ))
        .with_hint("choose another output, or replace it with `--overwrite`"))
    }

    /// Whether the report or the checkpoint describes the file.
    fn is_known(&self) -> Result<bool> {
        let checkpoint = self
            .read_checkpoint()
            .ok()
            .flatten()
            .map(|found| found.state);
        let written = |state: &State| state.digest.clone().filter(|_| state.is_whole);
        let checkpoint = checkpoint
            .into_iter()
            .flat_map(|state| [written(&state), state.replaces])
            .flatten();
        let known: Vec<String> = report_file::known_digest(&self.path)
            .into_iter()
            .chain(checkpoint)
            .collect();
        Ok(!known.is_empty() && known.contains(&digest(&self.path)?))
    }

    pub fn read_checkpoint(&self) -> Result<Option<StoredCheckpoint>> {
        let Some(found) = lookup(&self.checkpoint)? else {
            return Ok(None);
        };
        if !found.is_file() {
            return Err(self.unexpected(&self.checkpoint));
        }
        let read = regular_file::if_exists(regular_file::read(&self.checkpoint));
        let Some(bytes) = read.map_err(self.failed())? else {
            return Ok(None);
        };
        let (state, waiting) = parse(&bytes, &self.checkpoint.display())?;
        Ok(Some(StoredCheckpoint {
            state,
            waiting,
            bytes,
        }))
    }

    /// Refuses files with these names without a checkpoint, since Kivu may not have written them.
    pub fn refuse_leftovers(&self) -> Result<()> {
        for path in [&self.partial, &self.next] {
            if lookup(path)?.is_some() {
                return Err(self.unexpected(path));
            }
        }
        Ok(())
    }

    /// Creates a file with the mode and, if permitted, the owner of the output that it will replace. Only the owner may read a
    /// checkpoint, which may have originals of redacted texts.
    pub fn create(&self, path: &Path, contents: &[u8]) -> io::Result<File> {
        let replaced = fs::symlink_metadata(&self.path)
            .ok()
            .filter(fs::Metadata::is_file);
        let allowed = if path == self.partial { 0o777 } else { 0o600 };
        let mode = replaced.as_ref().map(|replaced| replaced.mode() & allowed);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode.unwrap_or(0o666 & allowed))
            .open(path)?;
        if let (Some(replaced), Some(mode)) = (replaced, mode) {
            // Only root may change the owner.
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

    pub fn failed(&self) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(format!("cannot write `{}`", self.path.display()))
    }

    pub fn busy(&self) -> Error {
        Error::config(format!(
            "another `kivu batch` is writing `{}`",
            self.path.display()
        ))
    }

    pub fn other_job(&self) -> Error {
        Error::config(format!(
            "the unfinished job for `{}` has a different input, model or options",
            self.path.display()
        ))
        .with_hint("run it as before to continue it, or start over with `--restart`")
    }

    pub fn damaged(&self, expected: &str, found: &str) -> Error {
        Error::config(format!(
            "expected {expected} in `{}`, but found {found}",
            self.partial.display()
        ))
        .with_hint("start over with `--restart`")
    }

    pub fn unexpected(&self, path: &Path) -> Error {
        Error::config(format!(
            "`{}` exists, where an unfinished output is kept",
            path.display()
        ))
        .with_hint("move it away, or choose another output")
    }
}
