//! Buffers a file, so that a record is in memory as a whole.

use std::io::{self, Read};

use crate::rows::chunk::{MAX_ROW_BYTES, reading};
use kivu::{Error, Result};

const BUFFER_BYTES: usize = 256 * 1024;

/// A file, and the bytes that were read from it but not used.
pub struct Source {
    file: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    is_end: bool,
    position: u64,
}

impl Source {
    pub fn new(file: impl Read + Send + 'static) -> Self {
        Self {
            file: Box::new(file),
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            is_end: false,
            position: 0,
        }
    }

    /// Bytes that are not used yet.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether the file ends after [`Self::bytes`]. Known only after a read that found nothing.
    pub fn is_end(&self) -> bool {
        self.is_end
    }

    /// Number of bytes that were used.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn consume(&mut self, length: usize) {
        self.start += length;
        self.position += length as u64;
    }

    /// Reads more bytes, as many as are available.
    ///
    /// # Errors
    /// The file cannot be read, or [`MAX_ROW_BYTES`] are not used.
    pub fn fill(&mut self, line: u64) -> Result<()> {
        let rest = self.end - self.start;
        if rest >= MAX_ROW_BYTES {
            return Err(Error::invalid(format!(
                "expected rows of at most {MAX_ROW_BYTES} bytes, but found a longer one that \
                 begins in line {line}"
            ))
            .with_hint("is a quote never closed?"));
        }
        let size = (rest + 1).next_power_of_two().max(BUFFER_BYTES);
        if size == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
        } else {
            let mut buffer = vec![0; size];
            buffer[..rest].copy_from_slice(self.bytes());
            self.buffer = buffer;
        }
        (self.start, self.end) = (0, rest);
        loop {
            match self.file.read(&mut self.buffer[rest..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(reading(error)),
                Ok(read) => {
                    self.end += read;
                    self.is_end = read == 0;
                    return Ok(());
                }
            }
        }
    }
}
