//! Where a CSV file's records begin and end.
//!
//! Other readers guess: they drop quotes, or join records, where a file is not written as they expect. Here, a record
//! with text after a closing quote is marked as malformed, and the file is refused where its records cannot be told
//! apart.

use std::ops::Range;

use super::dialect::{Dialect, LineEnd, shown};
use kivu::{Error, Result};

/// Splits a CSV file's bytes into records.
///
/// # Contract
/// - A record is all bytes up to a line end outside of quotes, with this line end. Together, the records are the file: a
///   file can be split after any of them, and each part read on its own with the same [`Dialect`].
/// - An empty line is a record with one empty field. Whether it is a row depends on the number of columns.
/// - The start of the file, such as its byte order mark, is not part of a record: see `csv_header.rs`.
pub struct Splitter {
    dialect: Dialect,
    classes: [Class; 256],
    /// Number of fields whose places are kept.
    kept: usize,
    /// Where the fields of the current record end.
    ends: Vec<usize>,
    scan: Scan,
    /// Line in which the current record begins, from 1.
    line: u64,
    /// Line of a record with text after a closing quote, unless a later field shows that the record has ended there.
    doubtful: Option<u64>,
}

/// A record's place in the bytes that [`Splitter::next`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes without the line end.
    pub content: usize,
    /// Bytes with the line end, which is missing at the end of a file.
    pub length: usize,
    /// Number of fields, at least 1.
    pub fields: usize,
    pub defect: Option<Defect>,
}

/// Why a record is malformed, with the number of the first such field, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Text between a closing quote and the field's end.
    TextAfterQuote(usize),
    /// A CR outside of quotes that ends no line.
    CarriageReturn(usize),
}

/// How far the current record was read.
#[derive(Clone, Copy, Debug)]
struct Scan {
    at: usize,
    place: Place,
    fields: usize,
    /// Lines that end within the record.
    lines: u64,
    defect: Option<Defect>,
    /// Whether the current field has a delimiter in quotes.
    has_delimiter: bool,
    /// Whether the current field has a line end in quotes.
    has_line_end: bool,
    /// Whether a field has both.
    has_both: bool,
    /// Whether a field has a line end in quotes.
    has_lines: bool,
    /// Whether a field has a quote, but does not begin with it.
    has_stray_quote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote in a quoted field.
    Quote,
    /// After an escape.
    Escape {
        is_quoted: bool,
    },
    /// After CRs outside of quotes, which begin at this byte.
    CarriageReturn(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Other,
    Delimiter,
    Quote,
    Escape,
    CarriageReturn,
    LineFeed,
}

impl Scan {
    const START: Self = Self {
        at: 0,
        place: Place::FieldStart,
        fields: 0,
        lines: 0,
        defect: None,
        has_delimiter: false,
        has_line_end: false,
        has_both: false,
        has_lines: false,
        has_stray_quote: false,
    };
}

impl Splitter {
    /// Splits from the start of line `line`, and keeps the places of `kept` fields per record.
    pub fn new(dialect: &Dialect, kept: usize, line: u64) -> Self {
        let mut classes = [Class::Other; 256];
        classes[usize::from(b'\r')] = Class::CarriageReturn;
        classes[usize::from(b'\n')] = Class::LineFeed;
        classes[usize::from(dialect.delimiter)] = Class::Delimiter;
        for (character, class) in [
            (dialect.quote, Class::Quote),
            (dialect.escape, Class::Escape),
        ] {
            if let Some(character) = character {
                classes[usize::from(character)] = class;
            }
        }
        Self {
            dialect: dialect.clone(),
            classes,
            kept,
            ends: Vec::new(),
            scan: Scan::START,
            line,
            doubtful: None,
        }
    }

    pub fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// Line in which the next record begins, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Finds the record at the start of `bytes`, which begin where the last record ended. Without its end, returns
    /// `None`, and the next call needs the same bytes and more; at the end of the file, as `is_end` says, only if there
    /// are no bytes.
    ///
    /// # Errors
    /// The file's records cannot be told apart:
    /// - It ends within quotes.
    /// - A quoted field has a line end, and the rest of its record is malformed, or has stray quotes.
    /// - A record has text after a closing quote, and the next quote in the file does not begin a field either.
    /// - Without known quotes, a quoted field has a line end and a delimiter that texts rarely have, such as a tab.
    /// - The file, or a line in a file with quotes, ends with an escape outside of quotes.
    /// - A line ends with LF, though the first one ends with CR.
    pub fn next(&mut self, bytes: &[u8], is_end: bool) -> Result<Option<Record>> {
        if self.scan.at == 0 {
            self.ends.clear();
        }
        while let Some(&byte) = bytes.get(self.scan.at) {
            let class = self.classes[usize::from(byte)];
            if class == Class::Other {
                if self.scan.place == Place::FieldStart {
                    self.scan.place = Place::Unquoted;
                }
                if matches!(self.scan.place, Place::Unquoted | Place::Quoted) {
                    self.skip_other(bytes);
                    continue;
                }
            }
            if let Some(content) = self.step(class)? {
                return self.end(content).map(Some);
            }
        }
        if !is_end || bytes.is_empty() {
            return Ok(None);
        }
        let content = match self.scan.place {
            Place::Quoted | Place::Escape { is_quoted: true } => return Err(self.unclosed()),
            Place::Escape { is_quoted: false } => return Err(self.escaped_line_end()),
            Place::CarriageReturn(start) => start,
            _ => bytes.len(),
        };
        self.end(content).map(Some)
    }

    /// The place of field `number`, from 0, in the last record. It is one of the first `kept` fields.
    pub fn field(&self, number: usize) -> Range<usize> {
        let start = match number.checked_sub(1) {
            Some(before) => self.ends[before] + 1,
            None => 0,
        };
        start..self.ends[number]
    }

    /// Splits one record, which was found before, and is malformed or not. An empty one has an empty field.
    pub fn split(&mut self, content: &[u8]) -> Result<Option<Record>> {
        (self.scan, self.doubtful) = (Scan::START, None);
        let found = self.next(content, true)?;
        if content.is_empty() {
            self.ends.resize(self.kept.min(1), 0);
        }
        Ok(found)
    }

    fn skip_other(&mut self, bytes: &[u8]) {
        let others = bytes[self.scan.at..]
            .iter()
            .take_while(|byte| self.classes[usize::from(**byte)] == Class::Other);
        self.scan.at += others.count();
    }

    /// Reads the next byte. Returns the length of the record's content at its end.
    fn step(&mut self, class: Class) -> Result<Option<usize>> {
        let at = self.scan.at;
        match self.scan.place {
            Place::Quoted => self.step_quoted(class),
            Place::Escape { is_quoted: true } => self.step_escaped(class, Place::Quoted)?,
            Place::Escape { is_quoted: false } => self.step_escaped(class, Place::Unquoted)?,
            Place::CarriageReturn(start) => match class {
                Class::CarriageReturn => {}
                Class::LineFeed => {
                    self.scan.at += 1;
                    return Ok(Some(start));
                }
                _ => {
                    if self.dialect.quote.is_some() {
                        let field = self.scan.fields + 1;
                        self.scan
                            .defect
                            .get_or_insert(Defect::CarriageReturn(field));
                    }
                    self.scan.place = Place::Unquoted;
                    return Ok(None);
                }
            },
            place => match class {
                Class::Delimiter => {
                    self.end_field(at);
                    self.scan.place = Place::FieldStart;
                }
                Class::LineFeed if self.dialect.line_end == LineEnd::CarriageReturn => {
                    return Err(self.mixed_line_ends());
                }
                Class::LineFeed => {
                    self.scan.at += 1;
                    return Ok(Some(at));
                }
                Class::CarriageReturn if self.dialect.line_end == LineEnd::CarriageReturn => {
                    self.scan.at += 1;
                    return Ok(Some(at));
                }
                Class::CarriageReturn => self.scan.place = Place::CarriageReturn(at),
                Class::Quote => self.step_quote(place)?,
                _ => self.step_text(class, place)?,
            },
        }
        self.scan.at += 1;
        Ok(None)
    }

    fn step_quoted(&mut self, class: Class) {
        match class {
            Class::Quote => self.scan.place = Place::Quote,
            Class::Escape => self.scan.place = Place::Escape { is_quoted: true },
            Class::Delimiter => self.scan.has_delimiter = true,
            Class::CarriageReturn | Class::LineFeed => self.count_line_end(class),
            Class::Other => {}
        }
    }

    /// The character after an escape at this `place`.
    fn step_escaped(&mut self, class: Class, place: Place) -> Result<()> {
        if matches!(class, Class::CarriageReturn | Class::LineFeed) {
            if place == Place::Unquoted && self.dialect.quote.is_some() {
                return Err(self.escaped_line_end());
            }
            self.count_line_end(class);
            // The escape applies to CR and LF.
            if class == Class::CarriageReturn && self.dialect.line_end == LineEnd::LineFeed {
                return Ok(());
            }
        }
        self.scan.place = place;
        Ok(())
    }

    /// A quote outside of quotes, or after one.
    fn step_quote(&mut self, place: Place) -> Result<()> {
        match place {
            Place::FieldStart => {
                self.scan.place = Place::Quoted;
                // The last record has ended before this field.
                self.doubtful = None;
            }
            Place::Quote => self.scan.place = Place::Quoted,
            _ => {
                if let Some(line) = self.doubtful {
                    return Err(indistinct(line));
                }
                self.scan.has_stray_quote = true;
            }
        }
        Ok(())
    }

    /// A character outside of quotes, or after one.
    fn step_text(&mut self, class: Class, place: Place) -> Result<()> {
        if place == Place::Quote {
            if self.scan.has_line_end {
                return Err(indistinct(self.line));
            }
            let field = self.scan.fields + 1;
            self.scan
                .defect
                .get_or_insert(Defect::TextAfterQuote(field));
        }
        self.scan.place = match class {
            Class::Escape => Place::Escape { is_quoted: false },
            _ => Place::Unquoted,
        };
        Ok(())
    }

    fn count_line_end(&mut self, class: Class) {
        let is_line_end = match self.dialect.line_end {
            LineEnd::LineFeed => class == Class::LineFeed,
            LineEnd::CarriageReturn => class == Class::CarriageReturn,
        };
        self.scan.lines += u64::from(is_line_end);
        self.scan.has_line_end |= is_line_end;
        self.scan.has_lines |= is_line_end;
    }

    fn end_field(&mut self, end: usize) {
        let scan = &mut self.scan;
        scan.fields += 1;
        scan.has_both |= scan.has_delimiter && scan.has_line_end;
        (scan.has_delimiter, scan.has_line_end) = (false, false);
        if scan.fields <= self.kept {
            self.ends.push(end);
        }
    }

    fn end(&mut self, content: usize) -> Result<Record> {
        self.end_field(content);
        let scan = self.scan;
        if scan.has_lines && (scan.defect.is_some() || scan.has_stray_quote) {
            return Err(indistinct(self.line));
        }
        let is_plausible = matches!(self.dialect.delimiter, b',' | b';');
        if scan.has_both && !is_plausible && !self.dialect.is_quote_known {
            return Err(self.implausible());
        }
        if let Some(Defect::TextAfterQuote(_)) = scan.defect {
            self.doubtful = Some(self.line);
        }
        self.line += scan.lines + 1;
        self.scan = Scan::START;
        Ok(Record {
            content,
            length: scan.at,
            fields: scan.fields,
            defect: scan.defect,
        })
    }

    fn unclosed(&self) -> Error {
        Error::invalid(format!(
            "expected a quote that closes the field in the row that begins in line {}, but found \
             the end of the file",
            self.line
        ))
        .with_hint(
            "complete the file, or set `quote` (`--quote`) to `none` if quotes are part of its \
             fields",
        )
    }

    fn implausible(&self) -> Error {
        Error::invalid(format!(
            "the row that begins in line {} has a field with {} and a line end within quotes, \
             which may be part of several rows' texts instead",
            self.line,
            shown(self.dialect.delimiter)
        ))
        .with_hint(format!(
            "set `quote` (`--quote`) to `none` if they are, and otherwise to {}",
            shown(self.dialect.quote.unwrap_or(Dialect::QUOTE))
        ))
    }

    fn mixed_line_ends(&self) -> Error {
        Error::invalid(format!(
            "line {} has a line end LF, but the first line ends with CR",
            self.line
        ))
        .with_hint("convert the file to one of them")
    }

    fn escaped_line_end(&self) -> Error {
        Error::invalid(format!(
            "line {} ends with the `escape` {} outside of quotes, so that it is unclear whether \
             the row continues",
            self.line,
            shown(self.dialect.escape.unwrap_or(b'\\'))
        ))
        .with_hint("set `escape` (`--escape`) to `none`, or complete the row")
    }
}

fn indistinct(line: u64) -> Error {
    Error::invalid(format!(
        "the row that begins in line {line} has text after a closing quote, so that its end is \
         unclear"
    ))
    .with_hint(
        "if quotes within fields follow another character, such as `\\`, set `escape` \
         (`--escape`) to it, and if quotes are part of the fields, set `quote` (`--quote`) to \
         `none`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::CsvOptions;

    type Records = Result<Vec<(Record, Vec<Range<usize>>)>, String>;

    /// The records in `file`, and their fields, if reads end at each of these places.
    fn records(dialect: &Dialect, file: &[u8], reads: impl Iterator<Item = usize>) -> Records {
        let mut splitter = Splitter::new(dialect, 3, 1);
        let (mut start, mut records) = (0, Vec::new());
        for end in reads.chain([file.len()]) {
            let is_end = end == file.len();
            while let Some(record) = splitter
                .next(&file[start..end], is_end)
                .map_err(|error| error.to_string())?
            {
                start += record.length;
                let fields = (0..record.fields.min(3)).map(|number| splitter.field(number));
                records.push((record, fields.collect()));
            }
        }
        assert_eq!(start, file.len(), "bytes are missing");
        Ok(records)
    }

    #[test]
    fn records_do_not_depend_on_read_sizes_and_are_the_whole_file() {
        let mut refused = 0;
        for seed in 0..5000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let length = random.usize(1..40);
            let file: Vec<u8> = (0..length)
                .map(|_| *random.choice(b"ab,,\"\"\"\\\r\n\n").unwrap())
                .collect();
            let mut options = CsvOptions::default();
            options.set("escape", ["none", "\\"][random.usize(..2)]);
            options.set("quote", ["\"", "none"][random.usize(..2)]);
            let line_end = [LineEnd::LineFeed, LineEnd::CarriageReturn][random.usize(..2)];
            let dialect = options.dialect(b',', line_end).unwrap();
            let whole = records(&dialect, &file, [].into_iter());
            let slow = records(&dialect, &file, 1..file.len());
            assert_eq!(slow, whole, "{:?}", String::from_utf8_lossy(&file));
            let Ok(whole) = whole else {
                refused += 1;
                continue;
            };
            // Each record on its own is the same, so that a file can be split anywhere between them.
            let mut start = 0;
            for (record, fields) in whole {
                let content = &file[start..start + record.content];
                start += record.length;
                let mut splitter = Splitter::new(&dialect, 3, 1);
                if let Some(again) = splitter.split(content).unwrap() {
                    let again_fields =
                        (0..again.fields.min(3)).map(|number| splitter.field(number));
                    assert_eq!(
                        (again.fields, again.defect, again_fields.collect::<Vec<_>>()),
                        (record.fields, record.defect, fields)
                    );
                }
            }
        }
        assert!(
            (500..4500).contains(&refused),
            "{refused} files are refused"
        );
    }
}
