//! Downloads a file: resumes after interruptions, verifies the hash, and runs in one process at a time.

use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom, Write},
    path::PathBuf,
    time::Duration,
};

use http::{StatusCode, header::CONTENT_RANGE};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{
    cache::{Hasher, RepositoryCache, create_parent, is_intact},
    client::{Attempt, Attempts, Failure, Hub, HubFile},
    repository_name::RepositoryName,
};
use kivu::{Error, Result, regular_file, repository::Meter};

/// Minimum rate in bytes per second; a slower connection is replaced.
const MIN_RATE: u64 = 1024;

/// A repository at a commit.
pub struct Snapshot<'a> {
    pub hub: &'a Hub<'a>,
    pub name: &'a RepositoryName,
    pub commit: &'a str,
    pub cache: &'a RepositoryCache,
    pub meter: &'a dyn Meter,
}

/// A download in progress.
struct Download<'a> {
    file: &'a HubFile,
    path: PathBuf,
    target: File,
    hasher: Hasher,
    offset: u64,
    /// Bytes the meter has counted.
    metered: u64,
}

impl Snapshot<'_> {
    /// Stores a repository file in the cache, unless it exists, and links it.
    pub async fn fetch(&self, file: &HubFile) -> Result<()> {
        let _lock = self.cache.lock(&file.hash).await?;
        let blob = self.cache.blob(&file.hash);
        let found = fs::metadata(&blob).map(|found| found.len());
        if found.is_ok_and(|size| size == file.size) && is_intact(&blob, &file.hash)? {
            self.meter.advance(file.size);
        } else {
            if blob.exists() {
                tracing::warn!("`{}` is damaged and is downloaded again", blob.display());
            }
            self.download(file).await?;
        }
        self.cache.link(self.commit, &file.path, &file.hash)
    }

    async fn download(&self, file: &HubFile) -> Result<()> {
        let mut download = Download::open(file, self.cache.incomplete(&file.hash))?;
        // A partial file from another program may have different contents.
        let mut may_restart = download.offset > 0;
        loop {
            self.complete(&mut download).await?;
            let found = download.digest();
            if found == file.hash {
                break;
            }
            download.restart()?;
            if !may_restart {
                // The next attempt would also start with an empty file.
                let _ = fs::remove_file(&download.path);
                return Err(Error::model(format!(
                    "expected `{}` of `{}` to have the hash {}, but `{}` sent one with {found}",
                    file.path, self.name, file.hash, self.hub.endpoint
                ))
                .with_hint("try again, and check HF_ENDPOINT"));
            }
            may_restart = false;
        }
        let blob = self.cache.blob(&file.hash);
        fs::rename(&download.path, &blob).map_err(Error::cannot("create", blob.display()))
    }

    /// Reads until the file is complete, on as many connections as necessary.
    async fn complete(&self, download: &mut Download<'_>) -> Result<()> {
        let mut attempts = Attempts::new(self.hub.config);
        while download.offset < download.file.size {
            let before = download.offset;
            if let Err(failure) = self.read(download).await {
                if download.offset > before {
                    attempts.reset();
                }
                attempts.wait(failure).await?;
            }
        }
        Ok(())
    }

    /// Reads from one connection.
    async fn read(&self, download: &mut Download<'_>) -> Attempt<()> {
        self.meter.advance(download.unmetered());
        let Self {
            hub, name, commit, ..
        } = self;
        let response = hub
            .open(name, commit, &download.file.path, download.offset)
            .await?;
        let range = response
            .headers()
            .get(CONTENT_RANGE)
            .and_then(|range| range.to_str().ok());
        let is_continued = response.status() == StatusCode::PARTIAL_CONTENT
            && range.is_some_and(|range| range.starts_with(&format!("bytes {}-", download.offset)));
        if download.offset > 0 && !is_continued {
            download.restart()?;
        }
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(self.interrupted(download, "a refused range"));
        }
        let (mut body, window) = (response.into_body(), hub.config.timeout);
        let enough = MIN_RATE * window.as_secs().max(1);
        let (mut received, mut deadline) = (0, Instant::now() + window);
        while download.offset < download.file.size {
            let frame = match timeout_at(deadline, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(_)) | None) => {
                    return Err(self.interrupted(download, "a closed connection"));
                }
                Err(_) => {
                    return Err(self.interrupted(
                        download,
                        &format!("only {received} bytes in {}", within(window)),
                    ));
                }
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            received += bytes.len() as u64;
            if received >= enough {
                (received, deadline) = (0, Instant::now() + window);
            }
            download.write(&bytes)?;
            self.meter.advance(download.unmetered());
        }
        Ok(())
    }

    fn interrupted(&self, download: &Download<'_>, found: &str) -> Failure {
        let Download { file, offset, .. } = download;
        let error = Error::unavailable(format!(
            "expected {} bytes of `{}` from `{}`, but found {found} after {offset}",
            file.size, file.path, self.hub.endpoint
        ))
        .with_hint("run the command again to resume");
        Failure::Transient(error, None)
    }
}

fn within(window: Duration) -> String {
    format!("{} s", window.as_secs())
}

impl<'a> Download<'a> {
    /// Continues an earlier download, if there is one.
    fn open(file: &'a HubFile, path: PathBuf) -> Result<Self> {
        create_parent(&path)?;
        let target = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        let target = target.and_then(|file| regular_file::require_regular(&file).map(|()| file));
        let target = target.map_err(Error::cannot("write", path.display()))?;
        let hasher = Hasher::new(&file.hash, file.size);
        let mut download = Self {
            file,
            path,
            target,
            hasher,
            offset: 0,
            metered: 0,
        };
        let offset = download
            .target
            .metadata()
            .map(|found| found.len())
            .unwrap_or_default();
        if offset > file.size {
            download.restart()?;
        } else {
            let failed = Error::cannot("read", download.path.display());
            download.hasher.read(&mut download.target).map_err(failed)?;
            download.offset = offset;
        }
        Ok(download)
    }

    fn restart(&mut self) -> Result<()> {
        let emptied = self
            .target
            .set_len(0)
            .and_then(|()| self.target.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| self.unwritable(error))?;
        self.hasher = Hasher::new(&self.file.hash, self.file.size);
        self.offset = 0;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // An overlong response has a different hash, which is reported at the end.
        let rest = usize::try_from(self.file.size - self.offset).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(rest)];
        self.target
            .write_all(bytes)
            .map_err(|error| self.unwritable(error))?;
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Hash over all bytes.
    fn digest(&mut self) -> String {
        std::mem::replace(
            &mut self.hasher,
            Hasher::new(&self.file.hash, self.file.size),
        )
        .finish()
    }

    /// Bytes since the last call, not counting a part downloaded again.
    fn unmetered(&mut self) -> u64 {
        let new = self.offset.saturating_sub(self.metered);
        self.metered += new;
        new
    }

    fn unwritable(&self, error: io::Error) -> Error {
        unwritable(&self.path, error)
    }
}

/// Error for a failed write; a full disk gets its own hint.
fn unwritable(path: &std::path::Path, error: io::Error) -> Error {
    let kind = error.kind();
    let error = Error::cannot("write", path.display())(error);
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => error.with_hint(
            "free space there, or set HF_HOME to a folder on another disk, and run the command \
             again to resume",
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_that_says_what_to_do() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        insta::assert_snapshot!(
            unwritable("/cache/blobs/x.incomplete".as_ref(), full).chain(),
            @"cannot write `/cache/blobs/x.incomplete`; free space there, or set HF_HOME to a folder on another disk, and run the command again to resume: no storage space"
        );
    }
}
