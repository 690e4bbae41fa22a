//! Opened inputs: files, streams and objects in S3.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    ops::Range,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use blake3::Hasher;
use bytes::Bytes;

use super::{
    compression::{Compression, Counted},
    format::{Format, HEAD_BYTES, head_bytes},
    location::JobInput,
};
use crate::rows::{Layout, reading};
use kivu::{
    error::{Error, Result},
    repository::s3::{Object, Reader, Store, Url},
};

/// An input. Files and objects support random access; a stream can be read once.
#[derive(Clone)]
pub enum OpenInput {
    /// A file, its path and its size when it was opened.
    File(Arc<File>, PathBuf, u64),
    Stream(Arc<InputStream>),
    Object(Arc<dyn Store>, Url, Object),
}

/// A pipe, a device or standard input.
pub struct InputStream {
    name: String,
    head: Vec<u8>,
    contents: Mutex<Option<Box<dyn Read + Send>>>,
}

impl OpenInput {
    /// Opens an input. Waits for a FIFO's writer, and for a stream's first bytes.
    pub fn new(input: &JobInput) -> Result<Self> {
        match input {
            JobInput::File(path) => Self::file(path),
            JobInput::Stdin => {
                let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
                Self::stream(
                    "standard input",
                    file.map_err(Error::io("cannot read standard input"))?,
                )
            }
            JobInput::Object(store, url, object) => {
                Ok(Self::Object(Arc::clone(store), url.clone(), object.clone()))
            }
        }
    }

    pub fn file(path: &Path) -> Result<Self> {
        let failed = || Error::cannot("read", path.display());
        let file = File::open(path).map_err(failed())?;
        let metadata = file.metadata().map_err(failed())?;
        if metadata.is_dir() {
            return Err(Error::config(format!(
                "expected a file for the input, but found the folder `{}`",
                path.display()
            )));
        }
        // Virtual files, such as in `/proc`, have size 0.
        if !metadata.is_file() || metadata.len() == 0 {
            return Self::stream(&path.display().to_string(), file);
        }
        Ok(Self::File(Arc::new(file), path.to_owned(), metadata.len()))
    }

    fn stream(name: &str, file: impl Read + Send + 'static) -> Result<Self> {
        let mut file = BufReader::new(file);
        let mut head = Vec::new();
        let failed = || Error::io(format!("cannot read `{name}`"));
        (&mut file)
            .take(HEAD_BYTES)
            .read_to_end(&mut head)
            .map_err(failed())?;
        let rest = head_bytes(&head) - HEAD_BYTES;
        (&mut file)
            .take(rest)
            .read_to_end(&mut head)
            .map_err(failed())?;
        let contents: Box<dyn Read + Send> = Box::new(Cursor::new(head.clone()).chain(file));
        let contents = Mutex::new(Some(contents));
        Ok(Self::Stream(Arc::new(InputStream {
            name: name.to_owned(),
            head,
            contents,
        })))
    }

    /// The size in bytes; `None` for a stream.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::File(_, _, size) => Some(*size),
            Self::Stream(_) => None,
            Self::Object(_, _, object) => Some(object.size),
        }
    }

    /// Identifies the input and its contents; `None` for a stream, which is a different one each time.
    ///
    /// A file is identified by path, size, times and inode. Programs can set the modification time, but
    /// not the change time.
    pub fn version(&self) -> Result<Option<String>> {
        match self {
            Self::Stream(_) => Ok(None),
            Self::Object(_, url, object) => Ok(Some(format!(
                "{url}\n{:?}, {}",
                object.version, object.etag
            ))),
            Self::File(file, path, _) => {
                let found = file
                    .metadata()
                    .map_err(Error::cannot("read", path.display()))?;
                let place = path.canonicalize().unwrap_or_else(|_| path.clone());
                let times = [
                    found.mtime(),
                    found.mtime_nsec(),
                    found.ctime(),
                    found.ctime_nsec(),
                ];
                Ok(Some(format!(
                    "{}\n{}, {times:?}, {}",
                    place.display(),
                    found.len(),
                    found.ino()
                )))
            }
        }
    }

    /// When a file was last written to, in seconds and nanoseconds.
    pub fn modified(&self) -> Result<Option<[i64; 2]>> {
        let Self::File(file, path, _) = self else {
            return Ok(None);
        };
        let found = file
            .metadata()
            .map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        Ok(Some([found.mtime(), found.mtime_nsec()]))
    }

    fn name(&self) -> String {
        match self {
            Self::File(_, path, _) => path.display().to_string(),
            Self::Stream(stream) => stream.name.clone(),
            Self::Object(_, url, _) => url.key.clone(),
        }
    }

    /// The contents from `start` on; for a stream, all contents, once.
    pub fn read_from(&self, start: u64) -> Result<Box<dyn Read + Send>> {
        self.read(start..self.size().unwrap_or_default())
    }

    /// The bytes in a range; for a stream, all contents, once.
    pub fn read(&self, range: Range<u64>) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::File(file, path, _) => {
                let file = Arc::clone(file);
                let part = FilePart {
                    file,
                    name: path.display().to_string(),
                    next: range.start,
                    end: range.end,
                };
                Ok(Box::new(BufReader::new(part)))
            }
            Self::Stream(stream) => {
                let contents = locked(&stream.contents).take();
                contents.ok_or_else(|| self.not_seekable())
            }
            Self::Object(store, url, object) => {
                Ok(Box::new(Reader::new(store.pieces(url, object, range)?)))
            }
        }
    }

    /// The unpacked contents, counted in `gauge`.
    pub fn unpacked(
        &self,
        compression: Compression,
        gauge: &BytesRead,
    ) -> Result<Box<dyn Read + Send>> {
        let contents = match self {
            Self::File(..) => Box::new(Hashed {
                file: self.read_from(0)?,
                hasher: Arc::clone(&gauge.hasher),
            }),
            _ => self.read_from(0)?,
        };
        let contents = compression.unpack(contents, &gauge.packed);
        let file = contents.map_err(reading)?;
        Ok(Box::new(Counted {
            file,
            count: Arc::clone(&gauge.unpacked),
        }))
    }

    /// Refuses a file whose first bytes are others now than those counted in `gauge`: rows of both may be mixed. Bytes that
    /// were appended do not matter. One that is read from many places, as Parquet is, must not be written to.
    pub fn check_read(&self, gauge: &BytesRead, modified: Option<[i64; 2]>) -> Result<()> {
        let read = locked(&gauge.hasher).clone();
        let is_same = match read.count() {
            0 => self.modified()? == modified,
            count => {
                let mut now = Hasher::new();
                now.update_reader(self.read(0..count)?).map_err(reading)?;
                now.finalize() == read.finalize()
            }
        };
        if is_same {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "expected `{}` to stay as it was while it is read, but it was written to",
            self.name()
        ))
        .with_hint("run the job again when nothing writes to the file"))
    }

    /// `length` bytes from `start` on.
    pub fn bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match self {
            Self::File(file, path, _) => {
                let mut bytes = vec![0; length];
                let read = file.read_exact_at(&mut bytes, start);
                read.map_err(Error::cannot("read", path.display()))?;
                Ok(bytes.into())
            }
            Self::Stream(_) => Err(self.not_seekable()),
            Self::Object(store, url, object) => {
                let mut bytes = Vec::with_capacity(length);
                for piece in store.pieces(url, object, start..start + length as u64)? {
                    piece?
                        .iter()
                        .for_each(|chunk| bytes.extend_from_slice(chunk));
                }
                Ok(bytes.into())
            }
        }
    }

    fn not_seekable(&self) -> Error {
        Error::invalid(format!(
            "Parquet needs a file that can be read from any place, but `{}` is a stream",
            self.name()
        ))
        .with_hint("save it to a file first")
    }

    /// The format and the compression; see [`Format::detect`].
    pub fn format(
        &self,
        requested: Option<Format>,
        layout: &Layout,
    ) -> Result<(Format, Compression)> {
        let head = match self {
            Self::Stream(stream) => stream.head.clone(),
            _ => match self.size() {
                None | Some(0) => Vec::new(),
                Some(size) => {
                    let head = self.bytes(0, size.min(HEAD_BYTES) as usize)?;
                    let bytes = size.min(head_bytes(&head));
                    if bytes > HEAD_BYTES {
                        self.bytes(0, bytes as usize)?.to_vec()
                    } else {
                        head.to_vec()
                    }
                }
            },
        };
        match Format::detect(&head, &self.name(), requested, layout)? {
            (Format::Parquet, _) if self.size().is_none() => Err(self.not_seekable()),
            found => Ok(found),
        }
    }
}

/// Counts the input bytes read so far, for the share that is done.
#[derive(Clone, Debug, Default)]
pub struct BytesRead {
    packed: Arc<AtomicU64>,
    unpacked: Arc<AtomicU64>,
    /// Hash of a file's bytes, packed.
    hasher: Arc<Mutex<Hasher>>,
}

/// Hashes the bytes that are read.
struct Hashed {
    file: Box<dyn Read + Send>,
    hasher: Arc<Mutex<Hasher>>,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        locked(&self.hasher).update(&buffer[..read]);
        Ok(read)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BytesRead {
    /// Share of an input with `size` bytes that is before `position`, in unpacked bytes.
    ///
    /// Bytes that are read ahead do not count, since a small file is read at once.
    pub fn share(&self, position: u64, size: Option<u64>) -> Option<f64> {
        let [packed, unpacked] =
            [&self.packed, &self.unpacked].map(|count| count.load(Ordering::Relaxed).max(1) as f64);
        let share = position as f64 / unpacked * packed / size?.max(1) as f64;
        Some(share.clamp(0.0, 1.0))
    }
}

/// A file up to its size when it was opened: rows appended later are ignored, and a file truncated later is an error.
struct FilePart {
    file: Arc<File>,
    name: String,
    next: u64,
    end: u64,
}

impl Read for FilePart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer
            .len()
            .min((self.end - self.next).min(usize::MAX as u64) as usize);
        if length == 0 {
            return Ok(0);
        }
        let failed = |source| {
            io::Error::other(Error::Io {
                action: format!("cannot read `{}`", self.name).into(),
                source,
            })
        };
        let read = self
            .file
            .read_at(&mut buffer[..length], self.next)
            .map_err(|error| match error.kind() {
                io::ErrorKind::Interrupted => error,
                // Distinguishes operating system errors, which may be temporary, from damaged contents.
                _ => failed(error),
            })?;
        if read == 0 {
            let message = format!(
                "it had {} bytes, and was cut to {} while it was read",
                self.end, self.next
            );
            return Err(failed(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                message,
            )));
        }
        self.next += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_were_read_must_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let (input, gauge) = (OpenInput::file(&path).unwrap(), BytesRead::default());
        let mut contents = input.unpacked(Compression::None, &gauge).unwrap();
        io::copy(&mut contents, &mut io::sink()).unwrap();
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        input.check_read(&gauge, None).unwrap();
        std::fs::write(&path, "one\ntoo\nthree\n").unwrap();
        let error = input.check_read(&gauge, None).unwrap_err().to_string();
        assert!(
            error.ends_with("to stay as it was while it is read, but it was written to; run the job again when nothing writes to the file"),
            "{error}"
        );
        let (gauge, modified) = (BytesRead::default(), input.modified().unwrap());
        input.check_read(&gauge, modified).unwrap();
        input.check_read(&gauge, Some([0, 0])).unwrap_err();
    }

    #[test]
    fn a_file_is_read_up_to_its_size_when_it_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\"text\": \"a\"}\n").unwrap();
        let place = OpenInput::file(&path).unwrap();
        let text = |place: &OpenInput| {
            let mut text = String::new();
            place
                .read_from(0)
                .unwrap()
                .read_to_string(&mut text)
                .map(|_| text)
        };
        // Neither appended rows nor another file with the same name change the opened input.
        let mut longer = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        io::Write::write_all(&mut longer, b"{\"text\": \"b\"}\n").unwrap();
        assert_eq!(text(&place).unwrap(), "{\"text\": \"a\"}\n");
        longer.set_len(5).unwrap();
        let error = reading(text(&place).unwrap_err());
        assert!(matches!(error, Error::Io { .. }));
        assert!(
            error
                .chain()
                .ends_with("it had 14 bytes, and was cut to 5 while it was read"),
            "{}",
            error.chain()
        );
    }
}
