//! Multi-threaded BLAKE3: each thread takes the next subtree of BLAKE3's tree from one queue.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use kivu_base::{Error, Result, regular_file};

/// Subtree size in bytes; a power of two, as BLAKE3 requires.
const SUBTREE: u64 = 1 << 20;
/// The bytes that are read at once.
const READ: u64 = 64 * 1024;

/// Files that are being hashed.
#[derive(Debug)]
pub struct FileHashes {
    files: Vec<OpenFile>,
    /// For all files, in order.
    subtrees: Vec<Subtree>,
    /// Next subtree's index.
    next: AtomicUsize,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    size: u64,
}

#[derive(Debug)]
struct Subtree {
    /// File index.
    file: usize,
    start: u64,
    value: OnceLock<ChainingValue>,
}

impl FileHashes {
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let (mut files, mut subtrees) = (Vec::new(), Vec::new());
        for path in paths {
            let unreadable = || Error::cannot("read", path.display());
            let file = regular_file::open(&path).map_err(unreadable())?;
            let size = file.metadata().map_err(unreadable())?.len();
            let starts = (0..size.max(1)).step_by(SUBTREE as usize);
            subtrees.extend(starts.map(|start| Subtree {
                file: files.len(),
                start,
                value: OnceLock::new(),
            }));
            files.push(OpenFile { path, file, size });
        }
        Ok(Self {
            files,
            subtrees,
            next: AtomicUsize::new(0),
        })
    }

    /// Hashes subtrees until none is left. Other threads that do the same may still be busy then.
    pub fn work(&self) -> Result<()> {
        let mut buffer = vec![0; READ as usize];
        while let Some(subtree) = self.subtrees.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let value = self.files[subtree.file].hash(subtree.start, &mut buffer)?;
            subtree.value.get_or_init(|| value);
        }
        Ok(())
    }

    /// Size and hash per file; `None` while a thread is busy, and after a thread's error.
    pub fn finish(&self) -> Option<Vec<(u64, blake3::Hash)>> {
        let hash = |(index, file): (usize, &OpenFile)| {
            let subtrees = self.subtrees.iter().filter(|subtree| subtree.file == index);
            let values: Vec<ChainingValue> = subtrees
                .map(|subtree| subtree.value.get().copied())
                .collect::<Option<_>>()?;
            let hash = match values.as_slice() {
                [whole] => blake3::Hash::from_bytes(*whole),
                values => {
                    let (left, right) = values.split_at(left(values.len()));
                    merge_subtrees_root(&merged(left), &merged(right), Mode::Hash)
                }
            };
            Some((file.size, hash))
        };
        self.files.iter().enumerate().map(hash).collect()
    }
}

impl OpenFile {
    /// Chaining value for the subtree at `start`, or the file's hash if it has only one.
    fn hash(&self, start: u64, buffer: &mut [u8]) -> Result<ChainingValue> {
        let end = self.size.min(start + SUBTREE);
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(start);
        for start in (start..end).step_by(READ as usize) {
            let piece = &mut buffer[..READ.min(end - start) as usize];
            self.file
                .read_exact_at(piece, start)
                .map_err(Error::cannot("read", self.path.display()))?;
            hasher.update(piece);
        }
        Ok(match self.size <= SUBTREE {
            true => *hasher.finalize().as_bytes(),
            false => hasher.finalize_non_root(),
        })
    }
}

/// Number of subtrees left of the root: the largest power of two below `count`.
fn left(count: usize) -> usize {
    count.next_power_of_two() / 2
}

fn merged(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [value] => *value,
        values => {
            let (left, right) = values.split_at(left(values.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    #[test]
    fn hashes_are_those_of_one_thread() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = [
            0,
            1,
            SUBTREE - 1,
            SUBTREE,
            SUBTREE + 1,
            3 * SUBTREE - 7,
            4 * SUBTREE,
            6 * SUBTREE + 5,
        ];
        let contents: Vec<Vec<u8>> = sizes
            .iter()
            .map(|size| (0..*size).map(|byte| (byte % 251) as u8).collect())
            .collect();
        let paths: Vec<PathBuf> = (0..sizes.len())
            .map(|name| folder.path().join(name.to_string()))
            .collect();
        for (path, bytes) in paths.iter().zip(&contents) {
            fs::write(path, bytes).unwrap();
        }
        let hashes = FileHashes::open(paths).unwrap();
        assert!(hashes.finish().is_none());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| hashes.work().unwrap());
            }
        });
        let expected: Vec<_> = contents
            .iter()
            .map(|bytes| (bytes.len() as u64, blake3::hash(bytes)))
            .collect();
        assert_eq!(hashes.finish().unwrap(), expected);
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [1; 1000]).unwrap();
        let hashes = FileHashes::open([file.path().to_owned()]).unwrap();
        fs::write(file.path(), [1; 10]).unwrap();
        assert!(hashes.work().is_err());
        assert!(hashes.finish().is_none());
    }
}
