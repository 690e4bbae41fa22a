//! A Parquet file's bytes.

use std::{
    fmt::Display,
    io::{self, Read},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use kivu::{Error, locked};
use kivu_jobs::input::opened::OpenInput;
use parquet::{
    errors::{ParquetError, Result as ParquetResult},
    file::reader::{ChunkReader, Length},
};

/// A reader from any place is used for a page's header, which is short: of an object in S3, no more is requested.
const MAX_HEADER_BYTES: u64 = 16 * 1024;

/// A Parquet reader's input.
///
/// It keeps read errors, which may be temporary: the reader converts all errors to texts, although
/// damaged pages are permanent.
#[derive(Clone)]
pub struct Source {
    input: OpenInput,
    failure: Arc<Mutex<Option<Error>>>,
}

impl Source {
    pub fn new(input: OpenInput) -> Self {
        Self {
            input,
            failure: Arc::default(),
        }
    }

    /// Error from a failed read, or for a damaged file.
    pub fn error(&self, error: &dyn Display) -> Error {
        let failure = locked(&self.failure).take();
        failure.unwrap_or_else(|| {
            Error::invalid(format!(
                "expected a Parquet file, but found one that cannot be read: {error}"
            ))
        })
    }

    fn keep(&self, error: Error) -> ParquetError {
        let message = error.to_string();
        locked(&self.failure).get_or_insert(error);
        ParquetError::General(message)
    }

    /// Refuses ranges outside the file, which damaged metadata may contain: allocating them could exhaust memory.
    fn check(&self, start: u64, length: u64) -> ParquetResult<()> {
        let size = self.len();
        match start.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(ParquetError::EOF(format!(
                "expected at most {size} bytes, but found a reference to {length} bytes at {start}"
            ))),
        }
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.input.size().unwrap_or_default()
    }
}

impl ChunkReader for Source {
    type T = SourceReader;

    fn get_read(&self, start: u64) -> ParquetResult<SourceReader> {
        self.check(start, 0)?;
        let header = self.len().min(start + MAX_HEADER_BYTES);
        let contents = self.input.read(start..header);
        Ok(SourceReader {
            source: self.clone(),
            contents: contents.map_err(|error| self.keep(error))?,
            rest: header,
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.check(start, length as u64)?;
        self.input
            .bytes(start, length)
            .map_err(|error| self.keep(error))
    }
}

/// Reads the contents from an offset on.
pub struct SourceReader {
    source: Source,
    contents: Box<dyn Read + Send>,
    /// Where the bytes after the contents begin.
    rest: u64,
}

impl SourceReader {
    fn read_contents(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.contents.read(buffer)?;
        if read > 0 || buffer.is_empty() || self.rest == self.source.len() {
            return Ok(read);
        }
        let contents = self.source.input.read_from(self.rest);
        self.contents = contents.map_err(io::Error::other)?;
        self.rest = self.source.len();
        self.contents.read(buffer)
    }
}

impl Read for SourceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_contents(buffer)
            .map_err(|error| match error.downcast::<Error>() {
                Ok(error) => io::Error::other(self.source.keep(error)),
                Err(error) => error,
            })
    }
}
