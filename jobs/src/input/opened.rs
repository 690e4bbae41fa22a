//! Opened inputs: files, streams and objects in S3.

use std::{
    fs::{File, Metadata},
    io::{self, BufReader, Cursor, Read},
    ops::Range,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
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
    Error, Result, locked,
    repository::s3::{Object, Reader, Store, Url},
};

/// An input. Files and objects support random access; a stream can be read once.
#[derive(Clone)]
pub enum OpenInput {
    File(Arc<LocalFile>),
    Stream(Arc<InputStream>),
    Object(Arc<dyn Store>, Url, Object),
}

/// A file, and what it was when it was opened.
pub struct LocalFile {
    file: File,
    path: PathBuf,
    metadata: Metadata,
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
        Ok(Self::File(Arc::new(LocalFile {
            file,
            path: path.to_owned(),
            metadata,
        })))
    }

    fn stream(name: &str, file: impl Read + Send + 'static) -> Result<Self> {
        let mut file = BufReader::new(file);
        let mut head = Vec::new();
        let failed = || Error::cannot("read", &name);
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
            Self::File(file) => Some(file.metadata.len()),
            Self::Stream(_) => None,
            Self::Object(_, _, object) => Some(object.size),
        }
    }

    /// Identifies the input and its contents when it was opened; `None` for a stream, which is a different one each time.
    ///
    /// A file is identified by path, size, times and inode. Programs can set the modification time, but
    /// not the change time.
    pub fn version(&self) -> Option<String> {
        match self {
            Self::Stream(_) => None,
            Self::Object(_, url, object) => {
                Some(format!("{url}\n{:?}, {}", object.version, object.etag))
            }
            Self::File(file) => {
                let place = file.path.canonicalize();
                let place = place.unwrap_or_else(|_| file.path.clone());
                Some(format!("{}\n{}", place.display(), state(&file.metadata)))
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File(file) => file.path.display().to_string(),
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
            Self::File(file) => {
                let part = FilePart {
                    file: Arc::clone(file),
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

    /// Whether a file was changed since it was opened. It is refused if its first bytes are others now than those counted in
    /// `gauge`: rows of both may be mixed. Bytes that were appended do not matter. One that is read from many places, as
    /// Parquet is, must not be written to.
    pub fn is_changed(&self, gauge: &BytesRead) -> Result<bool> {
        let Self::File(file) = self else {
            return Ok(false);
        };
        let (opened, now) = (&file.metadata, file.file.metadata());
        let now = now.map_err(Error::io(format!("cannot read `{}`", self.name())))?;
        if state(&now) == state(opened) {
            return Ok(false);
        }
        let read = locked(&gauge.hasher).clone();
        let is_same = match read.count() {
            0 => (now.mtime(), now.mtime_nsec()) == (opened.mtime(), opened.mtime_nsec()),
            count => {
                let mut found = Hasher::new();
                found.update_reader(self.read(0..count)?).map_err(reading)?;
                found.finalize() == read.finalize()
            }
        };
        if is_same {
            return Ok(true);
        }
        Err(Error::invalid(format!(
            "expected `{}` to stay as it was while it is read, but it was written to",
            self.name()
        ))
        .with_hint("start again when nothing writes to the file"))
    }

    /// `length` bytes from `start` on.
    pub fn bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match self {
            Self::File(file) => {
                let mut bytes = vec![0; length];
                let read = file.file.read_exact_at(&mut bytes, start);
                read.map_err(Error::cannot("read", self.name()))?;
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

/// Differs after a change of a file.
fn state(found: &Metadata) -> String {
    let times = [
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ];
    format!("{}, {times:?}, {}", found.len(), found.ino())
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
    file: Arc<LocalFile>,
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
                action: format!("cannot read `{}`", self.file.path.display()).into(),
                source,
            })
        };
        let read = self
            .file
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
        // Times have steps of a few milliseconds.
        let file = File::open(&path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let (input, gauge) = (OpenInput::file(&path).unwrap(), BytesRead::default());
        let mut contents = input.unpacked(Compression::None, &gauge).unwrap();
        io::copy(&mut contents, &mut io::sink()).unwrap();
        assert!(!input.is_changed(&gauge).unwrap());
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert!(input.is_changed(&gauge).unwrap());
        std::fs::write(&path, "one\ntoo\nthree\n").unwrap();
        let error = input.is_changed(&gauge).unwrap_err().to_string();
        assert!(
            error.ends_with("to stay as it was while it is read, but it was written to; start again when nothing writes to the file"),
            "{error}"
        );
        // Of what was read from many places, only the time of the last write is known.
        let gauge = BytesRead::default();
        input.is_changed(&gauge).unwrap_err();
        let (input, link) = (OpenInput::file(&path).unwrap(), folder.path().join("b"));
        std::fs::hard_link(&path, link).unwrap();
        input.is_changed(&gauge).unwrap();
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
