//! Appends parts to a file on a thread, so that the next rows are written into memory meanwhile.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::Arc,
    thread::{self, JoinHandle},
};

use blake3::Hasher;

/// A thread that writes parts, and hashes what it writes if it has a hasher.
pub struct Appender {
    parts: flume::Sender<(u64, Vec<u8>)>,
    thread: JoinHandle<io::Result<Option<Hasher>>>,
}

impl Appender {
    pub fn start(file: Arc<File>, mut hasher: Option<Hasher>) -> io::Result<Self> {
        // No part waits in the channel, since each takes memory.
        let (parts, waiting) = flume::bounded::<(u64, Vec<u8>)>(0);
        let thread = thread::Builder::new()
            .name("batch-output".into())
            .spawn(move || {
                for (offset, bytes) in waiting {
                    file.write_all_at(&bytes, offset)?;
                    hasher.as_mut().map(|hasher| hasher.update(&bytes));
                }
                Ok(hasher)
            });
        Ok(Self {
            parts,
            thread: thread?,
        })
    }

    /// Writes `bytes` at `offset` later. [`finish`](Self::finish) returns any error.
    pub fn append(&self, offset: u64, bytes: Vec<u8>) {
        // After an error, the thread receives no more parts.
        let _ = self.parts.send((offset, bytes));
    }

    /// Waits until all parts are written.
    pub fn finish(self) -> io::Result<Option<Hasher>> {
        drop(self.parts);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn parts_are_written_and_hashed_in_order() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = Arc::new(path.reopen().unwrap());
        let appender = Appender::start(Arc::clone(&file), Some(Hasher::new())).unwrap();
        (0..50_u64).for_each(|number| appender.append(8 * number, number.to_le_bytes().to_vec()));
        let hasher = appender.finish().unwrap().unwrap();
        assert_eq!(hasher.finalize(), blake3::hash(&fs::read(&path).unwrap()));
        assert_eq!(file.metadata().unwrap().len(), 400);
    }

    #[test]
    fn an_error_ends_the_thread_and_is_returned() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let appender = Appender::start(Arc::new(File::open(path).unwrap()), None).unwrap();
        (0..50).for_each(|_| appender.append(0, vec![0]));
        assert!(appender.finish().is_err());
    }
}
