//! The start of a CSV file: its byte order mark, Excel's `sep=` line, its header and its dialect.

use std::{cmp::Reverse, io::Read};

use super::{
    dialect::{CsvOptions, DELIMITERS, Dialect, LineEnd, Mark, shown},
    records::{Defect, Record, Splitter},
    source::Source,
};
use crate::input::format::HEAD_BYTES;
use crate::rows::{
    chunk::{CsvHeader, MAX_ROW_BYTES},
    lines::BYTE_ORDER_MARK,
};
use kivu::{Error, Result, error::Message};

/// Limited because column names are stored several times.
const MAX_HEADER_BYTES: usize = 1024 * 1024;
const MAX_COLUMNS: usize = 10_000;
/// Leading bytes that determine what the header does not: whether quotes are escaped, and the delimiter without header.
const SAMPLE_BYTES: usize = HEAD_BYTES as usize;
const ESCAPE: u8 = b'\\';

/// A file whose next record is its first row.
pub struct OpenedCsv {
    pub source: Source,
    pub splitter: Splitter,
    pub header: CsvHeader,
    /// Decisions that may be wrong.
    pub notes: Vec<String>,
}

impl OpenedCsv {
    /// Reads the start of `file`, and detects what `options` leave open.
    pub fn read(file: impl Read + Send + 'static, options: &CsvOptions) -> Result<Self> {
        let mut source = Source::new(file);
        while source.bytes().len() < SAMPLE_BYTES && !source.is_end() {
            source.fill(1)?;
        }
        let mark = match source.bytes().starts_with(BYTE_ORDER_MARK) {
            true => BYTE_ORDER_MARK.len(),
            false => 0,
        };
        let mut notes = Vec::new();
        let separator = Separator::of(&source.bytes()[mark..])?;
        let mut options = options.clone();
        if let Some(Separator { delimiter, .. }) = separator
            && *options.delimiter.get_or_insert(delimiter) == delimiter
        {
            notes.push(format!(
                "the delimiter is {}, as the first line says",
                shown(delimiter)
            ));
        }
        let begin = mark + separator.as_ref().map_or(0, |line| line.length);
        let first = FirstRecord::read(&mut source, begin, &options)?;
        let bytes = source.bytes();
        let sample = Sample {
            bytes: &bytes[first.begin..bytes.len().min(SAMPLE_BYTES.max(first.begin))],
            is_whole: source.is_end() && bytes.len() <= SAMPLE_BYTES,
        };
        let delimiter = match options.delimiter {
            Some(delimiter) => delimiter,
            None if options.has_header() => {
                let (delimiter, note) = first.delimiter();
                notes.extend(note);
                delimiter
            }
            None => first.delimiter_of_rows(&sample, &options)?,
        };
        if options.escape.is_none()
            && sample.has_escapes(&options.dialect(delimiter, first.line_end)?)
        {
            options.escape = Some(Mark::Character(ESCAPE));
            notes.push(
                "`\\` is read as an escape, since quotes within quotes follow it; set `escape` (`--escape`) to `none` \
                 otherwise"
                    .to_owned(),
            );
        }
        let dialect = options.dialect(delimiter, first.line_end)?.checked()?;
        let blank = &bytes[begin..first.begin];
        let blank_lines = blank.iter().filter(|byte| **byte == b'\n').count() as u64;
        let line = 1 + u64::from(separator.is_some());
        let mut splitter = Splitter::new(&dialect, MAX_COLUMNS, line + blank_lines);
        let record = first.record(&mut source, &mut splitter, &options)?;
        let row = &source.bytes()[first.begin..];
        let names = names(&row[..record.content], record, &splitter, &options)?;
        let line_end = match (&row[record.content..record.length], dialect.line_end) {
            ([], LineEnd::LineFeed) => b"\n",
            ([], LineEnd::CarriageReturn) => &b"\r"[..],
            (line_end, _) => line_end,
        };
        let has_header = options.has_header();
        let (start, used, line) = match has_header {
            true => (
                first.begin + record.content,
                first.begin + record.length,
                splitter.line(),
            ),
            // Empty lines may be rows.
            false => (begin, begin, line),
        };
        let header = CsvHeader {
            written: dialect.delimiter,
            has_header,
            start: source.bytes()[..start].to_vec(),
            line_end: line_end.to_vec(),
            names,
            dialect,
        };
        source.consume(used);
        let splitter = Splitter::new(&header.dialect, header.names.len(), line);
        Ok(Self {
            source,
            splitter,
            header,
            notes,
        })
    }
}

/// Excel's first line `sep=;`, which names the delimiter.
struct Separator {
    delimiter: u8,
    /// Bytes with the line end.
    length: usize,
}

impl Separator {
    fn of(bytes: &[u8]) -> Result<Option<Self>> {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let end = bytes.iter().position(is_line_end).unwrap_or(bytes.len());
        let line = &bytes[..end];
        let line = line
            .strip_prefix(b"\"")
            .and_then(|line| line.strip_suffix(b"\""))
            .unwrap_or(line);
        let Some((name, delimiter)) = line.split_at_checked(4) else {
            return Ok(None);
        };
        if !name.eq_ignore_ascii_case(b"sep=") {
            return Ok(None);
        }
        let returns = bytes[end..].iter().take_while(|byte| **byte == b'\r');
        let returns = returns.count();
        let line_end = match bytes.get(end + returns) {
            Some(b'\n') => returns + 1,
            _ => returns.min(1),
        };
        match delimiter {
            [delimiter] if delimiter.is_ascii() && *delimiter != Dialect::QUOTE => Ok(Some(Self {
                delimiter: *delimiter,
                length: end + line_end,
            })),
            _ => Err(Error::invalid(
                "expected one ASCII character after `sep=` in the first line, but found another \
                 text",
            )
            .with_hint("remove the line, and set `delimiter` (`--delimiter`)")),
        }
    }
}

/// The rows, or the header and rows, in the first bytes.
struct Sample<'a> {
    bytes: &'a [u8],
    /// Whether the file ends here.
    is_whole: bool,
}

impl Sample<'_> {
    /// The number of fields in each record; `None` if one is malformed.
    fn widths(&self, dialect: &Dialect) -> Option<Vec<usize>> {
        let (mut splitter, mut rest) = (Splitter::new(dialect, 0, 1), self.bytes);
        let mut widths = Vec::new();
        while let Some(record) = splitter.next(rest, self.is_whole).ok()? {
            if record.defect.is_some() {
                return None;
            }
            if record.content > 0 {
                widths.push(record.fields);
            }
            rest = &rest[record.length..];
        }
        Some(widths)
    }

    /// Whether the records are malformed, unless quotes are escaped.
    fn has_escapes(&self, dialect: &Dialect) -> bool {
        let Some(quote) = dialect.quote else {
            return false;
        };
        let escaped = Dialect {
            escape: Some(ESCAPE),
            ..dialect.clone()
        };
        self.bytes.windows(2).any(|pair| pair == [ESCAPE, quote])
            && self.widths(dialect).is_none()
            && self.widths(&escaped).is_some()
    }
}

/// A file's first record that is not empty, read before its delimiter is known.
///
/// As in other records, a field is quoted if a quote is its first character, and a doubled quote does not end it.
struct FirstRecord {
    /// Where the record begins, after empty lines.
    begin: usize,
    line_end: LineEnd,
    /// Occurrences per delimiter outside quotes.
    counts: [(u8, usize); DELIMITERS.len()],
    quote: Option<u8>,
    escape: Option<u8>,
    state: FirstState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstState {
    Before,
    FieldStart,
    Unquoted,
    Quoted,
    Escaped { is_quoted: bool },
    CarriageReturn,
    Ended,
}

impl FirstRecord {
    /// Reads the whole record, since the delimiter must not depend on read sizes.
    fn read(source: &mut Source, begin: usize, options: &CsvOptions) -> Result<Self> {
        // The delimiter is no candidate if it is known.
        let dialect = options.dialect(options.delimiter.unwrap_or_default(), LineEnd::LineFeed)?;
        let delimiters = match options.delimiter {
            Some(delimiter) => [delimiter; DELIMITERS.len()],
            None => DELIMITERS,
        };
        let mut record = Self {
            begin,
            line_end: LineEnd::LineFeed,
            counts: delimiters.map(|delimiter| (delimiter, 0)),
            quote: dialect.quote,
            escape: dialect.escape,
            state: FirstState::Before,
        };
        let (what, max) = limit(options);
        let mut at = begin;
        loop {
            while let Some(byte) = source.bytes().get(at)
                && record.state != FirstState::Ended
            {
                record.add(*byte, at);
                at += 1;
                if at >= max {
                    return Err(too_long(what, max));
                }
            }
            if record.state == FirstState::Ended || source.is_end() {
                return Ok(record);
            }
            source.fill(1)?;
        }
    }

    fn add(&mut self, byte: u8, at: usize) {
        use FirstState::{Before, CarriageReturn, Ended, Escaped, FieldStart, Quoted, Unquoted};
        if self.state == Before && !matches!(byte, b'\r' | b'\n') {
            (self.state, self.begin) = (FieldStart, at);
        }
        let is_quote = Some(byte) == self.quote;
        let is_escape = Some(byte) == self.escape;
        self.state = match (self.state, byte) {
            (CarriageReturn, b'\r') => CarriageReturn,
            (CarriageReturn, byte) => {
                if byte != b'\n' {
                    self.line_end = LineEnd::CarriageReturn;
                }
                Ended
            }
            (Escaped { is_quoted: true }, _) => Quoted,
            (Escaped { is_quoted: false }, _) => Unquoted,
            // A doubled quote's second half continues the field.
            (Quoted, _) if is_quote => FieldStart,
            (Quoted, _) if is_escape => Escaped { is_quoted: true },
            (Quoted, _) => Quoted,
            (Before, _) => Before,
            (_, b'\n') => Ended,
            (_, b'\r') => CarriageReturn,
            (FieldStart, _) if is_quote => Quoted,
            _ if is_escape => Escaped { is_quoted: false },
            _ => {
                let found = self
                    .counts
                    .iter_mut()
                    .find(|(delimiter, _)| *delimiter == byte);
                match found {
                    Some((_, count)) => {
                        *count += 1;
                        FieldStart
                    }
                    None => Unquoted,
                }
            }
        };
    }

    /// The delimiter, and a note if others occur as well.
    fn delimiter(&self) -> (u8, Option<String>) {
        let mut counts = self.counts;
        // Ties go to tabs, which names hardly have, or else to the first in [`DELIMITERS`].
        counts.sort_by_key(|(delimiter, count)| {
            (Reverse(*count), *count == 0 || *delimiter != b'\t')
        });
        let [(delimiter, _), alternatives @ ..] = counts;
        let alternatives = alternatives.iter().filter(|(_, count)| *count > 0);
        let alternatives: Vec<_> = alternatives
            .map(|(delimiter, _)| shown(*delimiter))
            .collect();
        let note = (!alternatives.is_empty()).then(|| {
            format!(
                "the header is read with {} between its fields, though it has {} outside quotes as well",
                shown(delimiter),
                alternatives.join(" and ")
            )
        });
        (delimiter, note)
    }

    /// The delimiter of a file without a header: the only one that gives all rows the same number of fields.
    fn delimiter_of_rows(&self, sample: &Sample<'_>, options: &CsvOptions) -> Result<u8> {
        let counts = self.counts.iter();
        let found: Vec<u8> = counts
            .filter(|(_, count)| *count > 0)
            .map(|(delimiter, _)| *delimiter)
            .collect();
        if found.is_empty() {
            return Ok(DELIMITERS[0]);
        }
        let mut fitting = Vec::new();
        for delimiter in found {
            let dialect = options.dialect(delimiter, self.line_end)?;
            let escaped = sample.has_escapes(&dialect);
            let dialect = Dialect {
                escape: dialect.escape.or(escaped.then_some(ESCAPE)),
                ..dialect
            };
            let widths = sample.widths(&dialect).unwrap_or_default();
            if widths.windows(2).all(|pair| pair[0] == pair[1]) && !widths.is_empty() {
                fitting.push(delimiter);
            }
        }
        match fitting.as_slice() {
            [delimiter] => Ok(*delimiter),
            _ => Err(
                Error::invalid("the delimiter is unclear, since the file has no header")
                    .with_hint("set `delimiter` (`--delimiter`)"),
            ),
        }
    }

    /// The record, split with the delimiter that is known now.
    fn record(
        &self,
        source: &mut Source,
        splitter: &mut Splitter,
        options: &CsvOptions,
    ) -> Result<Record> {
        let (what, max) = limit(options);
        if self.state == FirstState::Before {
            return Err(Error::invalid(format!(
                "expected {what}, but found only empty lines"
            )));
        }
        loop {
            let is_end = source.is_end();
            if let Some(record) = splitter.next(&source.bytes()[self.begin..], is_end)? {
                return Ok(record);
            }
            if source.bytes().len() >= max {
                return Err(too_long(what, max));
            }
            source.fill(1)?;
        }
    }
}

/// The first record's kind, and its maximum bytes.
fn limit(options: &CsvOptions) -> (&'static str, usize) {
    match options.has_header() {
        true => ("a header", MAX_HEADER_BYTES),
        false => ("a first row", MAX_ROW_BYTES),
    }
}

fn too_long(what: &str, max: usize) -> Error {
    Error::invalid(format!(
        "expected {what} of at most {max} bytes, but found a longer one"
    ))
    .with_hint("is a quote never closed?")
}

/// The names in the first record, or numbered names if it is a row.
fn names(
    content: &[u8],
    record: Record,
    splitter: &Splitter,
    options: &CsvOptions,
) -> Result<Vec<String>> {
    let (what, _) = limit(options);
    if record.fields > MAX_COLUMNS {
        return Err(Error::invalid(format!(
            "expected {what} of at most {MAX_COLUMNS} columns, but found {}",
            record.fields
        )));
    }
    if let Some(byte) = foreign_byte(content, options) {
        return Err(Error::invalid(format!(
            "expected {what} in UTF-8, but found the byte 0x{byte:02x}"
        ))
        .with_hint("convert the file, such as with `iconv`"));
    }
    if !options.has_header() {
        let numbers = 1..=record.fields;
        return Ok(numbers.map(|number| format!("column{number}")).collect());
    }
    if let Some(defect) = record.defect {
        let message = defect.message(splitter.dialect());
        return Err(Error::invalid(message.at("in the header")));
    }
    let name = |field| {
        let value = splitter.dialect().value(&content[splitter.field(field)]);
        String::from_utf8_lossy(&value).into_owned()
    };
    Ok((0..record.fields).map(name).collect())
}

/// A byte that is not in UTF-8. Text in UTF-16 has NUL in every other place.
fn foreign_byte(content: &[u8], options: &CsvOptions) -> Option<u8> {
    match std::str::from_utf8(content) {
        _ if content.contains(&0) => Some(0),
        Err(error) if options.has_header() => Some(content[error.valid_up_to()]),
        _ => None,
    }
}

impl Defect {
    /// The message of a row's error.
    pub fn message(self, dialect: &Dialect) -> Message {
        match self {
            Self::TextAfterQuote(field) => Message::new(format!(
                "expected {} or the row's end after the quote that closes field {field}, but found \
                 more text",
                shown(dialect.delimiter)
            ))
            .with_hint("see `escape` (`--escape`) and `quote` (`--quote`)"),
            Self::CarriageReturn(field) => Message::new(format!(
                "expected a line end or quotes around CR in field {field}, but found CR outside of \
                 quotes"
            )),
        }
    }
}
