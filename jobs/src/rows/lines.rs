//! Reads a file's lines, with a limit on their length.

use std::io::{self, BufRead, BufReader, Read};

use super::chunk::{MAX_ROW_BYTES, reading};
use crate::output::answer::{ErrorKind, RowError};
use kivu::Result;

/// Some programs write it at the start of UTF-8 files.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A line's text; an error if it is too long, or not UTF-8.
pub fn line_text(line: &[u8]) -> Result<&str, RowError> {
    if line.len() > MAX_ROW_BYTES {
        let message = format!("expected a row of at most {MAX_ROW_BYTES} bytes, but found more");
        return Err(RowError::new(ErrorKind::Row, message));
    }
    std::str::from_utf8(line).map_err(|error| foreign_byte(line, error.valid_up_to()))
}

/// The error for a line with a byte that no text has at `place`.
pub fn foreign_byte(line: &[u8], place: usize) -> RowError {
    let byte = line.get(place).copied().unwrap_or_default();
    let column = place + 1;
    let message = format!("expected UTF-8, but found the byte 0x{byte:02x} at column {column}");
    RowError::new(ErrorKind::Row, message).with_hint("convert the file, such as with `iconv`")
}

/// Reads a file's lines.
pub struct Lines {
    file: BufReader<Box<dyn Read + Send>>,
    is_begun: bool,
    position: u64,
}

impl Lines {
    pub fn new(file: impl Read + Send + 'static) -> Self {
        let file: Box<dyn Read + Send> = Box::new(file);
        Self {
            file: BufReader::with_capacity(256 * 1024, file),
            is_begun: false,
            position: 0,
        }
    }

    /// The bytes that were read, including empty lines.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads a line that is not empty, without its line end; `false` at the end of the file.
    ///
    /// A line longer than [`MAX_ROW_BYTES`] is cut to one byte more.
    pub fn next(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        loop {
            self.skip_empty().map_err(reading)?;
            line.clear();
            if self.read(line).map_err(reading)? == 0 {
                return Ok(false);
            }
            self.strip_mark(line);
            let end = line.trim_ascii_end().len();
            line.truncate(end);
            if !line.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Reads a line, which may be empty, without its line end; `false` at the end of the file.
    ///
    /// A line longer than [`MAX_ROW_BYTES`] is cut to one byte more.
    pub fn next_or_empty(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        line.clear();
        if self.read(line).map_err(reading)? == 0 {
            return Ok(false);
        }
        self.strip_mark(line);
        let end = line.strip_suffix(b"\n").unwrap_or(line);
        let end = end.strip_suffix(b"\r").unwrap_or(end).len();
        line.truncate(end);
        Ok(true)
    }

    /// Removes the mark at the beginning of the file.
    fn strip_mark(&mut self, line: &mut Vec<u8>) {
        if !self.is_begun && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        self.is_begun = true;
    }

    fn read(&mut self, line: &mut Vec<u8>) -> io::Result<usize> {
        let limit = MAX_ROW_BYTES as u64 + 1;
        let mut read = (&mut self.file).take(limit).read_until(b'\n', line)?;
        if line.len() > MAX_ROW_BYTES && line.last() != Some(&b'\n') {
            line.truncate(MAX_ROW_BYTES + 1);
            read += self.file.skip_until(b'\n')?;
        }
        self.position += read as u64;
        Ok(read)
    }

    /// Skips empty lines without copying them, since a compressed file may have billions.
    fn skip_empty(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.file.fill_buf()?;
            let mut empty = 0;
            while let [b'\n', ..] | [b'\r', b'\n', ..] = buffer[empty..] {
                empty += 1;
            }
            if empty == 0 {
                return Ok(());
            }
            self.is_begun = true;
            self.position += empty as u64;
            self.file.consume(empty);
        }
    }
}
