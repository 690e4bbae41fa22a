//! Detects a CSV file's delimiter from its header.

use std::io::{self, BufRead, Read};

/// The most frequent delimiter in the header is used, or the first in this list in a tie.
const DELIMITERS: [u8; 4] = *b",;\t|";
const QUOTE: u8 = b'"';
/// Limited because column names are stored several times.
pub(super) const MAX_HEADER_BYTES: usize = 1024 * 1024;
/// Some programs write it at the start of UTF-8 files.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file's first record, for its delimiter.
///
/// As in the CSV reader, a field is quoted if a quote is its first character, and a doubled quote does not end it.
pub(super) struct FirstRecord {
    /// The record, up to its end or [`MAX_HEADER_BYTES`], and the empty lines before it.
    pub(super) bytes: Vec<u8>,
    /// Occurrences per delimiter outside quotes.
    counts: [(u8, usize); DELIMITERS.len()],
    is_begun: bool,
    is_quoted: bool,
    starts_field: bool,
    is_complete: bool,
}

impl FirstRecord {
    /// Reads the whole record, since neither the delimiter nor a byte order mark may depend on read sizes.
    pub(super) fn read(file: &mut impl BufRead) -> io::Result<Self> {
        let mut record = Self {
            bytes: Vec::new(),
            counts: DELIMITERS.map(|delimiter| (delimiter, 0)),
            is_begun: false,
            is_quoted: false,
            starts_field: true,
            is_complete: false,
        };
        let mut mark = Vec::new();
        file.take(BYTE_ORDER_MARK.len() as u64)
            .read_to_end(&mut mark)?;
        if mark != BYTE_ORDER_MARK {
            let taken = record.add(&mark);
            // Bytes after a short record's end.
            record.bytes.extend_from_slice(&mark[taken..]);
        }
        while !record.is_complete && record.bytes.len() < MAX_HEADER_BYTES {
            let buffer = match file.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                break;
            }
            let taken = record.add(buffer);
            file.consume(taken);
        }
        Ok(record)
    }

    /// Adds bytes up to the record's end, and returns how many it added.
    fn add(&mut self, bytes: &[u8]) -> usize {
        let room = MAX_HEADER_BYTES - self.bytes.len();
        let end = bytes
            .iter()
            .take(room)
            .position(|byte| self.ends_with(*byte));
        self.is_complete = end.is_some();
        let taken = end.map_or(bytes.len().min(room), |end| end + 1);
        self.bytes.extend_from_slice(&bytes[..taken]);
        taken
    }

    /// Whether the next byte ends the record.
    fn ends_with(&mut self, byte: u8) -> bool {
        match byte {
            // Empty lines before the header are skipped.
            b'\n' | b'\r' if !self.is_begun => return false,
            b'\n' | b'\r' if !self.is_quoted => return true,
            // A doubled quote's second half continues the field.
            QUOTE if self.is_quoted => (self.is_quoted, self.starts_field) = (false, true),
            QUOTE if self.starts_field => self.is_quoted = true,
            _ if self.is_quoted => {}
            byte => {
                let found = self
                    .counts
                    .iter_mut()
                    .find(|(delimiter, _)| *delimiter == byte);
                self.starts_field = found.is_some();
                found.into_iter().for_each(|(_, count)| *count += 1);
            }
        }
        self.is_begun = true;
        false
    }

    /// The delimiter, and a note if others occur as well.
    pub(super) fn delimiter(&self) -> (u8, Option<String>) {
        let mut counts = self.counts;
        // Ties go to the first in [`DELIMITERS`].
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let [(delimiter, _), alternatives @ ..] = counts;
        let alternatives = alternatives.iter().filter(|(_, count)| *count > 0);
        let alternatives: Vec<_> = alternatives
            .map(|(delimiter, _)| quoted_delimiter(*delimiter))
            .collect();
        let note = (!alternatives.is_empty()).then(|| {
            format!(
                "the header is read with {} between its fields, though it has {} outside quotes as well",
                quoted_delimiter(delimiter),
                alternatives.join(" and ")
            )
        });
        (delimiter, note)
    }
}

fn quoted_delimiter(delimiter: u8) -> String {
    if delimiter == b'\t' {
        "tabs".to_owned()
    } else {
        format!("`{}`", char::from(delimiter))
    }
}
