//! `huggingface_hub`'s cache: a folder per repository, with blobs named by hash, and snapshots per commit with relative
//! links to blobs.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use sha1::Sha1;
use sha2::{Digest, Sha256, digest::DynDigest};
use tokio::time::sleep;

use super::{
    client::Listing,
    repository_name::{RepositoryName, is_commit},
};
use kivu::{
    Error, Result,
    hexadecimal::{hex, is_hex},
    regular_file,
    repository::{bundle::sha256_of, sealed},
};

/// Folder for file lists by commit. Other programs ignore it.
const LISTINGS: &str = ".kivu";
/// Retry interval for a lock held by another process.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// A repository's folder in the cache.
#[derive(Clone, Debug)]
pub struct RepositoryCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub fn new(cache: &Path, name: &RepositoryName) -> Self {
        let folder = format!("models--{}", name.folder());
        Self {
            locks: cache.join(".locks").join(&folder),
            folder: cache.join(folder),
        }
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub fn blob(&self, hash: &str) -> PathBuf {
        self.folder.join("blobs").join(hash)
    }

    /// Path for a download in progress.
    pub fn incomplete(&self, hash: &str) -> PathBuf {
        self.blob(&format!("{hash}.incomplete"))
    }

    /// Commit that a revision referred to at its download.
    pub fn commit(&self, name: &RepositoryName) -> Option<String> {
        if name.is_commit() {
            return Some(name.revision.clone());
        }
        let commit =
            regular_file::read_to_string(&self.folder.join("refs").join(&name.revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    pub fn store_commit(&self, name: &RepositoryName, commit: &str) -> Result<()> {
        let path = self.folder.join("refs").join(&name.revision);
        if name.is_commit()
            || regular_file::read_to_string(&path).is_ok_and(|stored| stored == commit)
        {
            return Ok(());
        }
        create_parent(&path)?;
        fs::write(&path, commit).map_err(Error::cannot("write", path.display()))
    }

    /// A commit's full file list, stored once Kivu had downloaded what it needs.
    pub fn listing(&self, commit: &str) -> Option<Listing> {
        let sealed = regular_file::read(&self.folder.join(LISTINGS).join(commit)).ok()?;
        let listing: Listing = serde_json::from_slice(sealed::open(&sealed)?).ok()?;
        Some(listing).filter(|listing| listing.commit == commit)
    }

    pub fn store_listing(&self, listing: &Listing) -> Result<()> {
        if self
            .listing(&listing.commit)
            .is_some_and(|stored| stored == *listing)
        {
            return Ok(());
        }
        let path = self.folder.join(LISTINGS).join(&listing.commit);
        create_parent(&path)?;
        let text = serde_json::to_vec(listing)
            .map_err(|error| Error::model_because("the file list cannot be written", error))?;
        fs::write(&path, sealed::seal(&text)).map_err(Error::cannot("write", path.display()))
    }

    /// Whether `huggingface_hub` has noted that a commit lacks the file `path`.
    pub fn is_known_absent(&self, commit: &str, path: &str) -> bool {
        self.folder
            .join(".no_exist")
            .join(commit)
            .join(path)
            .exists()
    }

    /// Links a snapshot's file `path` to its blob.
    pub fn link(&self, commit: &str, path: &str, hash: &str) -> Result<()> {
        let link = self.snapshot(commit).join(path);
        let up = "../".repeat(2 + path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{hash}"));
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        create_parent(&link)?;
        let failed = || Error::cannot("create the link", link.display());
        // A link to another blob, or a copy.
        regular_file::if_exists(fs::remove_file(&link)).map_err(failed())?;
        match symlink(&target, &link) {
            // Another process has created it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked.map_err(failed()),
        }
    }

    /// Removes everything; returns the blobs' size in bytes, `None` if there are none.
    pub fn remove(&self) -> Result<Option<u64>> {
        if !self.folder.is_dir() {
            return Ok(None);
        }
        let blobs = fs::read_dir(self.folder.join("blobs"))
            .into_iter()
            .flatten()
            .flatten();
        let bytes = blobs
            .filter_map(|blob| blob.metadata().ok())
            .map(|blob| blob.len())
            .sum();
        for folder in [&self.folder, &self.locks] {
            regular_file::if_exists(fs::remove_dir_all(folder))
                .map_err(Error::cannot("remove", folder.display()))?;
        }
        Ok(Some(bytes))
    }

    /// Waits until no other process, including `huggingface_hub`, downloads the blob.
    pub async fn lock(&self, hash: &str) -> Result<File> {
        let path = self.locks.join(format!("{hash}.lock"));
        create_parent(&path)?;
        let failed = || Error::cannot("lock", path.display());
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed())?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => sleep(LOCK_INTERVAL).await,
                Err(TryLockError::Error(error)) => return Err(failed()(error)),
            }
        }
    }
}

/// Relative paths of all files in a snapshot.
///
/// # Errors
/// A link leads nowhere, since its blob was removed.
pub fn files(snapshot: &Path) -> Result<Vec<String>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(snapshot.join(&folder))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = folder.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                _ if entry.path().exists() => files.extend(path.to_str().map(str::to_owned)),
                _ => return Err(missing(&entry.path())),
            }
        }
    }
    Ok(files)
}

fn missing(path: &Path) -> Error {
    let found = if fs::symlink_metadata(path).is_ok() {
        "a link to nothing"
    } else {
        "none"
    };
    Error::config(format!(
        "expected the file `{}`, but found {found}",
        path.display()
    ))
    .with_hint("connect to the hub, without HF_HUB_OFFLINE, and it is downloaded again")
}

/// Expected hash for a snapshot file's blob: its name, or a copy's SHA-256.
pub fn blob_hash(path: &Path) -> Result<String> {
    let blob = fs::canonicalize(path).map_err(Error::cannot("read", path.display()))?;
    match blob.file_name().and_then(|name| name.to_str()) {
        Some(name) if is_hash(name) => Ok(name.to_owned()),
        _ => sha256_of(&blob),
    }
}

/// Refuses a snapshot file that is missing or has a different hash.
pub fn verify(path: &Path, hash: &str) -> Result<()> {
    if !path.exists() {
        return Err(missing(path));
    }
    if is_intact(path, hash)? {
        return Ok(());
    }
    let blob = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Err(Error::model(format!(
        "`{}` does not have the hash {hash}",
        path.display()
    ))
    .with_hint(format!(
        "remove `{}`, and it is downloaded again",
        blob.display()
    )))
}

/// Whether a blob is named by a hash. Copies in file systems without links keep their file names.
fn is_hash(name: &str) -> bool {
    is_hex(name, 64) || is_hex(name, 40)
}

/// Whether a file's contents have a hash.
pub fn is_intact(path: &Path, hash: &str) -> Result<bool> {
    let failed = || Error::cannot("read", path.display());
    let mut file = regular_file::open(path).map_err(failed())?;
    let size = file.metadata().map_err(failed())?.len();
    let mut hasher = Hasher::new(hash, size);
    hasher.read(&mut file).map_err(failed())?;
    Ok(hasher.finish() == hash)
}

/// Blob hash: SHA-256, or for 40 digits Git's SHA-1.
pub struct Hasher(Box<dyn DynDigest + Send>);

impl Hasher {
    /// Creates a hasher for `size` bytes with the expected hash `expected`.
    pub fn new(expected: &str, size: u64) -> Self {
        Self(match expected.len() {
            40 => Box::new(Sha1::new().chain_update(format!("blob {size}\0"))),
            _ => Box::new(Sha256::new()),
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Hashes a file from its current position on.
    pub fn read(&mut self, file: &mut File) -> io::Result<()> {
        let mut piece = vec![0; 1 << 18];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                read => self.update(&piece[..read]),
            }
        }
    }

    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Creates a file's folder.
pub fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(Error::cannot("create", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_have_the_hashes_of_git() {
        let mut hasher = Hasher::new(&"0".repeat(40), 6);
        hasher.update(b"hello\n");
        // printf 'hello\n' | git hash-object --stdin
        assert_eq!(hasher.finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn links_are_relative_and_replace_others() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RepositoryCache::new(folder.path(), &"a/b".parse().unwrap());
        fs::create_dir_all(cache.blob("x").parent().unwrap()).unwrap();
        fs::write(cache.blob("old"), "old").unwrap();
        fs::write(cache.blob("new"), "new").unwrap();
        for hash in ["old", "new", "new"] {
            cache.link("c", "1_Pooling/config.json", hash).unwrap();
        }
        let link = cache.snapshot("c").join("1_Pooling/config.json");
        assert_eq!(
            fs::read_link(&link).unwrap(),
            Path::new("../../../blobs/new")
        );
        assert_eq!(fs::read_to_string(link).unwrap(), "new");
        assert_eq!(
            files(&cache.snapshot("c")).unwrap(),
            ["1_Pooling/config.json"]
        );
        fs::remove_file(cache.blob("new")).unwrap();
        assert!(
            files(&cache.snapshot("c"))
                .unwrap_err()
                .to_string()
                .contains("found a link to nothing")
        );
    }
}
